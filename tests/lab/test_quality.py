"""``kvist eval``'s figures, recomputed from whole arrays of logits, and a run that is broken off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fakes.model import byte_tokenizer
from tiny.models import tiny_model
from tiny.tensors import write_directory

from kvist import LLM
from kvist.checkpoint.catalog import open_checkpoint
from kvist.errors import KvistError
from kvist.lab.figures import save_figure
from kvist.lab.figures_quality import draw_quality, pareto
from kvist.lab.needle import make_needle
from kvist.lab.quality import Models, Work, cut, evaluate, rounds_activations
from kvist.lab.quality_rows import Row, reference_perplexity, row
from kvist.lab.quality_state import EvalState
from kvist.model.decoder import load_decoder
from kvist.spec.cache import CacheSpec, allocated_bytes, bytes_per_token, pool_bytes

CONTEXT = 200
SPECS = [CacheSpec("f32"), CacheSpec("bf16"), CacheSpec(k="f32", v="bf16")]
HAY = list(b"hay " * 80)
THREADS = 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tiny_model("llama", 6), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def models(path: Path) -> Iterator[Models]:
    with closing(open_checkpoint(path)) as checkpoint:
        decoder = load_decoder(checkpoint, threads=THREADS)
    with closing(decoder):
        yield Models(decoder, decoder)


@pytest.fixture(scope="module")
def work() -> Work:
    token_ids = tiny_model("llama", 6).prompt(2 * CONTEXT + 50)
    needles = (make_needle(byte_tokenizer(), HAY, CONTEXT, 0, depth) for depth in (0.2, 0.8))
    return Work(cut(token_ids, CONTEXT), tuple(needles))


@pytest.fixture(scope="module")
def rows(models: Models, work: Work) -> list[Row]:
    state = EvalState(None, "key")
    evaluate(models, SPECS, work, state)
    return [row(models.quality.spec, spec, work, state, THREADS) for spec in SPECS]


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def figures(path: Path, work: Work, spec: CacheSpec) -> dict[str, float]:
    """Return a row's figures the plain way: all logits at once, NumPy's functions."""
    kl, nll, same = [], [], []
    for window in work.windows:
        with LLM(path, cache=CacheSpec("f32"), threads=1) as exact, LLM(path, cache=spec, threads=1) as smaller:
            p, q = softmax(exact.logits(window)[:-1]), softmax(smaller.logits(window)[:-1])
        kl += list((p * np.log(p / q)).sum(axis=1))
        nll += list(-np.log(q[np.arange(len(q)), window[1:]]))
        same += list(p.argmax(axis=1) == q.argmax(axis=1))
    return {
        "perplexity": float(np.exp(np.mean(nll))),
        "kl_mean": float(np.mean(kl)),
        "kl_p99": float(np.quantile(kl, 0.99)),
        "top1_agreement": float(np.mean(same)),
    }


def test_the_figures_are_those_of_whole_arrays(rows: list[Row], path: Path, work: Work) -> None:
    for found, spec in zip(rows, SPECS, strict=True):
        document = json.loads(json.dumps(found.as_json()))
        for name, expected in figures(path, work, spec).items():
            assert document[name] == pytest.approx(expected, rel=1e-6, abs=1e-12), name
        assert document["tpot_s"] > 0
        assert [entry["depth"] for entry in document["needle_depths"]] == [0.2, 0.8]
        assert document["needle"] == pytest.approx(np.mean([entry["score"] for entry in document["needle_depths"]]))
    assert (rows[2].as_json()["k"], rows[2].as_json()["v"], rows[2].name) == ("f32", "bf16", "f32/bf16")


def test_the_reference_beside_itself_differs_in_nothing(rows: list[Row]) -> None:
    exact, smaller, _ = rows
    assert (exact.kl_mean, exact.kl_p99, exact.top1_agreement, exact.perplexity_change) == (0.0, 0.0, 1.0, 0.0)
    assert 0 < smaller.kl_mean < 0.01


def test_bytes_are_those_that_the_formula_says(rows: list[Row], models: Models) -> None:
    for found, spec in zip(rows, SPECS, strict=True):
        assert found.bytes_per_token == bytes_per_token(models.quality.spec, spec)
        assert found.num_bytes == allocated_bytes(models.quality.spec, spec, CONTEXT)


def without_times(found: list[Row]) -> list[dict[str, object]]:
    return [{name: value for name, value in one.as_json().items() if name != "tpot_s"} for one in found]


class BrokenOffError(Exception):
    """What ends a run in its midst."""


@pytest.mark.parametrize("after", [1, 700, 1500, 2000])
def test_a_run_that_was_broken_off_goes_on_to_the_same_figures(
    models: Models, work: Work, rows: list[Row], tmp_path: Path, after: int
) -> None:
    total = sum(work.num_missing(spec, EvalState(None, "key"), THREADS) for spec in SPECS)
    done = 0

    def count(num_tokens: int) -> None:
        nonlocal done
        done += num_tokens
        if done > after:
            raise BrokenOffError

    with pytest.raises(BrokenOffError):
        evaluate(models, SPECS, work, EvalState(tmp_path / "state", "key"), on_tokens=count)
    again = EvalState(tmp_path / "state", "key")
    missing = sum(work.num_missing(spec, again, THREADS) for spec in SPECS)
    heard: list[int] = []
    evaluate(models, SPECS, work, again, on_tokens=heard.append)
    assert sum(heard) == missing <= total
    assert without_times([row(models.quality.spec, spec, work, again, THREADS) for spec in SPECS]) == without_times(
        rows
    )


def test_what_is_done_is_not_computed_again(models: Models, work: Work, rows: list[Row], tmp_path: Path) -> None:
    evaluate(models, SPECS[:2], work, EvalState(tmp_path / "state", "key"))
    state = EvalState(tmp_path / "state", "key")
    before = models.quality.num_forward_tokens
    evaluate(models, SPECS[:2], work, state)
    assert models.quality.num_forward_tokens == before
    evaluate(models, SPECS, work, state)  # the third one is new: the reference runs beside it once more
    assert without_times([row(models.quality.spec, spec, work, state, THREADS) for spec in SPECS]) == without_times(
        rows
    )
    assert models.quality.num_forward_tokens - before < 2 * sum(map(len, work.windows)) + 4 * CONTEXT


def test_decode_times_are_taken_apart_and_kept_by_threads(models: Models, work: Work, rows: list[Row]) -> None:
    state, spec = EvalState(None, "key"), SPECS[1]
    evaluate(models, [spec], work, state, is_timed=False)
    untimed = row(models.quality.spec, spec, work, state, THREADS)
    assert untimed.tpot_s is None
    assert without_times([untimed]) == without_times(rows[1:2])
    assert work.num_missing(spec, state, None) == 0
    heard: list[int] = []
    evaluate(models, [spec], work, state, on_tokens=heard.append)
    assert sum(heard) == CONTEXT, "nothing but the times was missing"
    assert row(models.quality.spec, spec, work, state, THREADS).tpot_s is not None
    assert row(models.quality.spec, spec, work, state, THREADS + 1).tpot_s is None
    state.forget_tpot(spec, THREADS)
    assert work.num_missing(spec, state, THREADS) == CONTEXT


def test_caches_that_do_not_fit_at_once_come_one_after_the_other(models: Models, work: Work, rows: list[Row]) -> None:
    spec, step = models.quality.spec, models.quality.step_tokens
    for memory in (1, 2 * pool_bytes(spec, CacheSpec("f32"), CONTEXT, step)):
        state = EvalState(None, "key")
        evaluate(models, SPECS, work, state, memory=memory)
        assert without_times([row(spec, one, work, state, THREADS) for one in SPECS]) == without_times(rows)
        assert reference_perplexity(work, state) == rows[0].perplexity


def test_a_state_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state"
    EvalState(file, "one").save()
    with pytest.raises(KvistError, match="another model, text or setting"):
        EvalState(file, "two")
    EvalState(file, "two", is_fresh=True).save()
    assert EvalState(file, "two").num_windows == 0
    for text in ("", "{", "[]", '{"key": "two"}', '"\\ud800"'):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(KvistError, match="no state of kvist eval"):
            EvalState(file, "two")
    assert [found.name for found in tmp_path.iterdir()] == ["state"]


def test_the_identity_is_of_weights_settings_and_work(models: Models, work: Work) -> None:
    other = Work(work.windows[:1], work.needles)
    assert models.identity(work) == models.identity(Work(work.windows, work.needles))
    assert models.identity(work) != models.identity(other)
    assert work.digest != other.digest


def test_rounding_of_activations_is_told_from_the_weights(path: Path, models: Models) -> None:
    assert not rounds_activations(models.quality)
    with closing(open_checkpoint(path)) as checkpoint, closing(load_decoder(checkpoint, weights="q8")) as decoder:
        assert rounds_activations(decoder)


def test_windows_cover_the_text() -> None:
    assert cut([1, 2, 3, 4, 5], 2) == ((1, 2), (3, 4))  # a rest of one token has nothing to compare
    assert cut([1, 2, 3, 4, 5, 6], 4, [9]) == ((9, 1, 2, 3), (9, 4, 5, 6))


def test_the_front_has_what_nothing_beats() -> None:
    assert pareto([(4, 1), (1, 9), (2, 9), (3, 2), (5, 2)]) == [(1, 9), (3, 2), (4, 1)]


def test_the_picture_is_drawn(rows: list[Row], tmp_path: Path) -> None:
    save_figure(draw_quality(rows, CONTEXT, "a tiny model"), tmp_path / "quality.svg")
    assert (tmp_path / "quality.svg").stat().st_size > 1000
