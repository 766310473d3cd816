from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny.models import tiny_model
from tiny.tensors import write_directory

from kvist import LLM
from kvist.errors import KvistError, RequestError
from kvist.lab.bench_cache import CacheBench, bench_cache
from kvist.lab.figures import check_figure_path, save_figure
from kvist.lab.figures_bench import draw_cache, smoothed

NUM_TOKENS = 20
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheBench]:
    path = write_directory(tiny_model("llama", 0), tmp_path_factory.mktemp("model"))
    with LLM(path, threads=2, context=64) as llm:
        yield bench_cache(llm, PROMPT, NUM_TOKENS)


def test_the_document_has_what_scripts_rely_on(bench: CacheBench) -> None:
    document = json.loads(json.dumps(bench.as_json()))
    assert document["identical"] is True
    assert document["ratio"] == pytest.approx(document["uncached_s"] / document["cached_s"])
    assert document["positions"] == list(range(len(PROMPT), len(PROMPT) + NUM_TOKENS))
    for name in ("cached", "uncached"):
        assert len(document[f"{name}_token_s"]) == NUM_TOKENS
        assert sum(document[f"{name}_token_s"]) == pytest.approx(document[f"{name}_s"])


def test_each_way_computed_what_it_says(bench: CacheBench) -> None:
    lengths = range(len(PROMPT), len(PROMPT) + NUM_TOKENS)
    assert bench.cached.forward_tokens == lengths[-1]
    assert bench.uncached.forward_tokens == sum(lengths)


def test_a_difference_in_one_bit_of_the_logits_shows(bench: CacheBench) -> None:
    import dataclasses

    other = dataclasses.replace(bench.uncached, logits_sha256="0" * 64)
    assert not dataclasses.replace(bench, uncached=other).is_identical


def test_more_tokens_than_the_context_holds_are_refused(tmp_path: Path) -> None:
    path = write_directory(tiny_model("llama", 0), tmp_path / "model")
    with LLM(path, threads=1, context=32) as llm, pytest.raises(RequestError, match="context"):
        bench_cache(llm, PROMPT, 100)


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_the_curve_is_drawn(bench: CacheBench, tmp_path: Path, form: str) -> None:
    path = tmp_path / f"curve.{form}"
    save_figure(draw_cache(bench, "a tiny model"), path)
    assert path.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[form])


@pytest.mark.parametrize("name", ["curve", "curve.gif", "nowhere/curve.png"])
def test_a_file_that_cannot_be_drawn_is_refused_before_measuring(tmp_path: Path, name: str) -> None:
    with pytest.raises(KvistError, match="can't draw into"):
        check_figure_path(tmp_path / name)


def test_smoothing_keeps_length_and_level() -> None:
    assert smoothed([1.0, 1.0, 9.0, 1.0, 1.0]) == [1.0] * 5
    assert smoothed([2.0]) == [2.0]
