"""Each benchmark has a schema, each schema a benchmark; what a schema doesn't know is refused."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from lab.schemas import SCHEMAS, check, schema

from kvist.cli.main import bench_app

NAMES = sorted(path.stem for path in SCHEMAS.glob("*.json"))


def test_every_benchmark_has_a_schema() -> None:
    commands = {command.name for command in bench_app.registered_commands}
    assert commands == {name.removeprefix("bench_") for name in NAMES if name.startswith("bench_")}


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_is_one(name: str) -> None:
    found = schema(name)
    Draft202012Validator.check_schema(found)
    assert found["$id"] == f"{name}.json"


def long_document(**more: Any) -> dict[str, Any]:
    versions = dict.fromkeys(("python", "kvist", "numpy", "numba", "llvmlite"), "1")
    return {
        "bench": "long",
        "quick": True,
        "model": "tiny",
        "threads": 2,
        "kv": {"k": "bf16", "v": "bf16"},
        "retention": "sinks:4+12",
        "weight_types": {"q4_0": 100},
        **dict.fromkeys(("read_bandwidth", "int_dot_peak", "matmul_rate", "matmul_factor"), 1.0),
        "tokens": 20,
        "trained_context": 64,
        "bytes_per_token": 128,
        "segments": [
            {
                "first_token": 0,
                "tokens": 20,
                "perplexity": 3.0,
                "perplexity_without_sinks": 9.0,
                "probed_tokens": 0,
                "probed_perplexity": None,
                "recomputed_perplexity": None,
                "ratio": None,
            }
        ],
        "generated": [{"tokens": 10, "allocated_bytes": 4096, "resident_bytes": None, "elapsed_s": 0.5}],
        "machine": {
            "processor": "any",
            "processors": 2,
            "last_level_cache_bytes": 1 << 20,
            "memory_bytes": 1 << 30,
            "system": "Linux",
            "versions": versions,
        },
        **more,
    }


def test_a_document_is_held_to_its_schema() -> None:
    check(long_document())


@pytest.mark.parametrize(
    "wrong", [{"tokens": "20"}, {"surprise": 1}, {"kv": {"k": "bf16"}}, {"read_bandwidth": 0}, {"segments": []}]
)
def test_what_a_schema_does_not_say_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        check(long_document(**wrong))
    missing = long_document()
    del missing["machine"]
    with pytest.raises(ValidationError):
        check(missing)
