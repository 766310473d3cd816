"""What `import kvist` gives, and what it must not bring along."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest

import kvist

HEAVY = ("numba", "llvmlite", "matplotlib", "numpy", "gguf", "tokenizers", "huggingface_hub", "jinja2", "typer", "rich")


def modules_after(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return {name.split(".", maxsplit=1)[0] for name in json.loads(shown)}


def test_exported_names_are_these_and_resolve() -> None:
    names = ["LLM", "AsyncEngine", "CacheSpec", "KvistError", "ModelSpec", "Request", "SamplingParams", "plan"]
    assert kvist.__all__ == names
    for name in kvist.__all__:
        assert getattr(kvist, name).__name__ == name
    assert set(kvist.__all__) <= set(dir(kvist))


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"LLM, AsyncEngine, CacheSpec, .*, plan"):
        kvist.LMM  # noqa: B018


@pytest.mark.parametrize(
    "statement",
    [
        "import kvist",
        "from kvist import CacheSpec, KvistError, ModelSpec, plan",
        "import kvist.spec.config",
        "import kvist.planner",
    ],
)
def test_facts_and_arithmetic_load_nothing_heavy(statement: str) -> None:
    assert modules_after(statement).isdisjoint(HEAVY)


def test_the_python_face_loads_no_figures() -> None:
    assert modules_after("from kvist import LLM, SamplingParams").isdisjoint({"matplotlib", "torch", "transformers"})


def test_one_version_number() -> None:
    assert importlib.metadata.version("kvist") == kvist.__version__
