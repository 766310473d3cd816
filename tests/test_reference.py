"""The lesson's two loops give the same tokens, its cache changes no logits, and its pieces do what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny.lesson import lesson
from tiny.models import FAMILIES, TinyModel, tiny_model
from tiny.stream import Stream

from kvist import reference
from kvist.errors import RequestError, SpecError
from kvist.reference import GptConfig, KeyValueCache, attend, forward, generate_cached, generate_uncached, rotate

MODELS = [tiny_model(family, number) for family in FAMILIES for number in (0, 3)]
SMALL = GptConfig(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4)


@pytest.fixture(params=MODELS, ids=lambda model: model.name)
def model(request) -> TinyModel:
    return request.param


def test_both_loops_give_the_same_tokens(model: TinyModel) -> None:
    weights, config = lesson(model)
    prompt = model.prompt(17)
    tokens = generate_uncached(weights, config, prompt, 40)
    assert len(tokens) == 40
    assert generate_cached(weights, config, prompt, 40) == tokens


@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_cache_changes_no_logits(model: TinyModel, chunk: int) -> None:
    weights, config = lesson(model)
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    ids = model.prompt(50)
    cache = KeyValueCache(config, 50, np.float64)
    pieces = [forward(weights, config, ids[at : at + chunk], cache) for at in range(0, 50, chunk)]
    whole = forward(weights, config, ids)
    assert whole.dtype == np.float64
    assert cache.num_tokens == 50
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=0, atol=1e-12)


def test_later_tokens_change_no_earlier_logits(model: TinyModel) -> None:
    weights, config = lesson(model)
    ids = model.prompt(30)
    changed = [*ids[:20], *reversed(ids[20:])]
    before, after = forward(weights, config, ids), forward(weights, config, changed)
    np.testing.assert_allclose(before[:20], after[:20], rtol=0, atol=1e-5)
    assert np.abs(before[25:] - after[25:]).max() > 0.01


def test_cached_runs_each_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, config = lesson(tiny_model("llama", 0))
    num_run: list[int] = []

    def counting(weights, config, token_ids, cache=None):
        num_run.append(len(token_ids))
        return forward(weights, config, token_ids, cache)

    monkeypatch.setattr(reference, "forward", counting)
    generate_cached(weights, config, [5, 6, 7, 8], 10)
    assert num_run == [4] + [1] * 9
    num_run.clear()
    generate_uncached(weights, config, [5, 6, 7, 8], 10)
    assert num_run == list(range(4, 14))


def test_arithmetic_is_done_in_the_weights_type(model: TinyModel) -> None:
    weights, config = lesson(model)
    assert forward(weights, config, [1, 2, 3]).dtype == np.float32
    doubled = {name: array.astype(np.float64) for name, array in weights.items()}
    exact = forward(doubled, config, model.prompt(40))
    error = np.abs(forward(weights, config, model.prompt(40)) - exact).max() / np.abs(exact).max()
    assert 0 < error < 2e-5


def test_a_rotated_match_depends_on_the_distance_alone() -> None:
    q, k = Stream(1).normal((2, 1, 1, 8)).astype(np.float64)
    frequencies = reference.rope_frequencies(replace(SMALL, head_dim=8))

    def match(at_query: int, at_key: int) -> float:
        return float(np.sum(rotate(q, at_query, frequencies) * rotate(k, at_key, frequencies)))

    assert match(12, 5) == pytest.approx(match(112, 105), abs=1e-12)
    assert abs(match(12, 5) - match(12, 6)) > 1e-3


def test_rope_ramp_keeps_fast_pairs_and_slows_slow_ones() -> None:
    plain = replace(SMALL, head_dim=64)
    frequencies = reference.rope_frequencies(plain)
    ramped = reference.rope_frequencies(replace(plain, rope_factor=8.0, rope_ramp=(1.0, 4.0, 64)))
    assert frequencies[0] == ramped[0] == 1
    np.testing.assert_allclose(ramped[-10:], frequencies[-10:] / 8)
    np.testing.assert_allclose(reference.rope_frequencies(replace(plain, rope_factor=8.0)), frequencies / 8)
    assert np.all((ramped <= frequencies) & (ramped >= frequencies / 8))


def test_a_window_of_one_sees_itself_alone() -> None:
    q, k, v = Stream(2).normal((3, 2, 5, 4))
    np.testing.assert_array_equal(attend(q, k, v, 1), v.swapaxes(0, 1).reshape(5, 8))


def test_query_heads_share_kv_heads_in_order() -> None:
    q, k, v = Stream(3).normal((3, 4, 5, 8))
    shared = attend(q, k[:2], v[:2], None)
    np.testing.assert_array_equal(shared, attend(q, k[[0, 0, 1, 1]], v[[0, 0, 1, 1]], None))


def test_one_kv_head_takes_its_share_of_bytes() -> None:
    many, one = KeyValueCache(replace(SMALL, num_kv_heads=2), 10), KeyValueCache(SMALL, 10)
    assert one.k.nbytes + one.v.nbytes == 2 * 1 * 1 * 10 * 4 * 4 == (many.k.nbytes + many.v.nbytes) // 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_layers": 0}, "at least 1"),
        ({"num_heads": 3, "num_kv_heads": 2}, "multiple"),
        ({"head_dim": 5}, "even"),
        ({"windows": (None, 3)}, "one entry for each of 1"),
        ({"windows": (0,)}, "at least 1 token"),
    ],
)
def test_a_contradictory_config_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("token_ids", "words"),
    [([], "at least one token"), ([0, 97], r"0\.\.96"), ([-1], r"got -1\.\.-1"), ([1] * 9, "8 tokens")],
)
def test_tokens_that_cannot_be_run_are_refused(token_ids: list[int], words: str) -> None:
    weights, config = lesson(tiny_model("llama", 0))
    with pytest.raises(RequestError, match=words):
        forward(weights, config, token_ids, KeyValueCache(config, 8))


def test_more_tokens_than_learned_positions_are_refused() -> None:
    weights, config = lesson(tiny_model("gpt2", 0))
    weights["positions"] = weights["positions"][:10]
    assert len(forward(weights, config, [1] * 10)) == 10
    with pytest.raises(RequestError, match="10 learned positions"):
        forward(weights, config, [1] * 11)
