"""``kvist eval``'s figures, recomputed from whole arrays of logits, and a run that is broken off."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.model import byte_tokenizer
from tiny.models import tiny_model
from tiny.tensors import write_directory

from kvist import LLM
from kvist.checkpoint.catalog import open_checkpoint
from kvist.errors import KvistError, RequestError
from kvist.lab.figures import save_figure
from kvist.lab.figures_quality import draw_quality, pareto
from kvist.lab.needle import make_needle
from kvist.lab.quality import Models, Work, cut, evaluate, rounds_activations
from kvist.lab.quality_rows import Row, reference_perplexity, row
from kvist.lab.quality_state import EvalState, Losses, check_state_directory, check_state_file
from kvist.model.decoder import load_decoder
from kvist.spec.cache import CacheSpec, allocated_bytes, bytes_per_token, pool_bytes
from kvist.spec.retention import RetentionSpec

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
    for text in ("", "{", "[]", '{"key": "two"}', '"\\ud800"', "[" * 100_000):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(KvistError, match="no state of kvist eval"):
            EvalState(file, "two")
    assert [found.name for found in tmp_path.iterdir()] == ["state"]


LOSSES = Losses(kl=(0.5, 0.25), nll_sum=3.0, num_same_top=1, allocated_bytes=4096)


def kl_text(*values: float) -> str:
    return base64.b64encode(np.array(values, "<f8").tobytes()).decode()


def put(*where: str, value: object) -> Callable[[dict[str, Any]], None]:
    """Return what puts ``value`` into a document at ``where``."""

    def change(document: dict[str, Any]) -> None:
        found = document
        for name in where[:-1]:
            found = found[name]
        found[where[-1]] = value

    return change


BF16 = repr(CacheSpec("bf16"))
WINDOW = ("figures", BF16, "windows", "0")


@pytest.mark.parametrize(
    "damage",
    [
        put("figures", value=[]),
        put("figures", value=None),
        put("figures", BF16, value={}),
        put("figures", BF16, value=[]),
        put("figures", BF16, "windows", value=[]),
        put("figures", BF16, "windows", "one", value=LOSSES.as_json()),
        put("figures", BF16, "windows", "1", value=LOSSES.as_json()),
        put("figures", "reference", "windows", "0", value=None),
        put("figures", BF16, "needles", value=None),
        put("figures", BF16, "needles", "0", value="all"),
        put("figures", BF16, "needles", "0", value=2),
        put("figures", BF16, "tpot_s", "2", value=[]),
        put("figures", BF16, "tpot_s", "2", value=float("inf")),
        put(*WINDOW, value={"nll_sum": 3.0, "num_same_top": 1, "allocated_bytes": 4096}),
        *(put(*WINDOW, "kl", value=kl) for kl in ("AAAA", "", "?", "\u00e9", 7, None)),
        *(put(*WINDOW, "kl", value=kl_text(*kl)) for kl in ([0.5], [0.5] * 3, [0.5, np.nan], [0.5, np.inf], [0.5, -1])),
        *(put(*WINDOW, "nll_sum", value=nll) for nll in ("3", None, float("nan"), float("inf"), 1e300, 10**400, True)),
        *(put(*WINDOW, "num_same_top", value=count) for count in (3, -1, 1.5, "1")),
        *(put(*WINDOW, "allocated_bytes", value=count) for count in (-1, 1e3, None)),
        put("key", value=["key"]),
        put("format", value="2"),
    ],
)
def test_a_damaged_state_is_one_line(damage: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    file = tmp_path / "state"
    state = EvalState(file, "key", positions=(2,))
    for spec in (None, CacheSpec("bf16")):
        state.put_window(spec, 0, LOSSES)
    state.put_needle(CacheSpec("bf16"), 0, 0.5)
    state.put_tpot(CacheSpec("bf16"), 2, 0.001)
    state.save()
    assert EvalState(file, "key", positions=(2,)).windows(CacheSpec("bf16"), 1) == [LOSSES]
    check_state_file(file)
    document = json.loads(file.read_text(encoding="utf-8"))
    damage(document)
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(KvistError) as caught:
        EvalState(file, "key", positions=(2,))
    assert str(caught.value) == f'"{file}" holds no state of kvist eval; give another to --state, or remove it'
    with pytest.raises(KvistError, match="holds no state of kvist eval"):
        state.save()  # what another has put there isn't written over either


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "which is no file; give another to --state"),
        ("file/state", "Not a directory; give --state a file that can be read and written"),
        ("file/below/state", "Not a directory; give --state"),
        ("n" * 5000, "File name too long; give --state"),
        ("text", "holds no state of kvist eval"),
    ],
)
@pytest.mark.parametrize("is_fresh", [False, True])
def test_where_no_state_can_be_kept_is_said_and_left_alone(
    tmp_path: Path, name: str, said: str, *, is_fresh: bool
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "text").write_text("a novel", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    file = tmp_path / name
    with pytest.raises(KvistError, match=said) as caught:
        check_state_file(file, is_fresh=is_fresh)
    assert "\n" not in str(caught.value)
    with pytest.raises(KvistError) as caught:
        EvalState(file, "key", is_fresh=is_fresh).save()
    assert ".new" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "text").read_text(encoding="utf-8") == "a novel"


def test_a_directory_that_is_not_there_yet_is_made_when_a_state_is_saved(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "state"
    check_state_file(file)
    check_state_directory(file.parent)
    assert list(tmp_path.iterdir()) == []
    EvalState(file, "key").save()
    check_state_file(file)
    assert EvalState(file, "key").num_windows == 0


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="a directory that nobody can write into")
def test_a_directory_that_cannot_be_written_is_told_before_anything_is_measured() -> None:
    with pytest.raises(KvistError, match=r'in "/proc": .*; give --state a file that can be read and written'):
        check_state_file(Path("/proc/state"))


def test_any_state_may_be_measured_afresh(tmp_path: Path) -> None:
    file = tmp_path / "state"
    for document in ({"format": 1, "key": "old", "figures": []}, {"format": 2, "key": "two", "figures": {"x": {}}}):
        file.write_text(json.dumps(document), encoding="utf-8")
        check_state_file(file, is_fresh=True)
        EvalState(file, "two", is_fresh=True).save()
        assert EvalState(file, "two").num_windows == 0


def test_runs_at_once_on_one_file_keep_the_figures_of_all(tmp_path: Path) -> None:
    file = tmp_path / "state"
    kept = [CacheSpec(retention=RetentionSpec("window", number)) for number in range(1, 9)]
    states = [EvalState(file, "key", is_fresh=not number) for number in range(len(kept))]

    def run(number: int) -> None:
        for window in range(20):
            states[number].put_window(kept[number], window, LOSSES)
            states[number].save()

    states[0].save()
    with ThreadPoolExecutor(len(kept)) as threads:
        list(threads.map(run, range(len(kept))))
    found = EvalState(file, "key")
    assert [len(found.windows(spec, 20)) for spec in kept] == [20] * len(kept)
    assert [left.name for left in tmp_path.iterdir()] == ["state"]


def test_a_time_that_was_forgotten_stays_so_in_this_run_and_its_new_one_counts(tmp_path: Path) -> None:
    file, spec = tmp_path / "state", CacheSpec("bf16")
    first = EvalState(file, "key")
    first.put_tpot(spec, 1, 0.5)
    first.put_tpot(spec, 2, 0.25)
    first.save()
    again = EvalState(file, "key")
    again.forget_tpot(spec, 1)
    again.save()
    assert again.tpot_s(spec, 1) is None
    again.put_tpot(spec, 1, 0.125)
    again.save()
    assert [EvalState(file, "key").tpot_s(spec, threads) for threads in (1, 2)] == [0.125, 0.25]


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
    assert cut([1, 2, 3, 4], 3, [9]) == ((9, 1, 2), (9, 3, 4))


@pytest.mark.parametrize("context", [1, 2])
def test_a_window_without_two_tokens_of_the_text_is_refused(context: int) -> None:
    with pytest.raises(RequestError, match=f"--context {context} has no place for two tokens .*; give 3 or more"):
        cut([1, 2, 3, 4, 5], context, [9])


def test_the_front_has_what_nothing_beats() -> None:
    assert pareto([(4, 1), (1, 9), (2, 9), (3, 2), (5, 2)]) == [(1, 9), (3, 2), (4, 1)]


def test_the_picture_is_drawn(rows: list[Row], tmp_path: Path) -> None:
    save_figure(draw_quality(rows, CONTEXT, "a tiny model"), tmp_path / "quality.svg")
    assert (tmp_path / "quality.svg").stat().st_size > 1000
