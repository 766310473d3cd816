"""Retention's names and numbers, and the tokens and blocks that each kind holds, against sets of tokens."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvist.errors import SpecError
from kvist.spec.cache import BLOCK_TOKENS, CacheSpec, LayerGroup, allocated_bytes, logical_bytes
from kvist.spec.footprint import Footprint
from kvist.spec.model import LayerSpec, ModelSpec
from kvist.spec.retention import ALL, H2O_PERIOD, KINDS, MAX_KEPT, MAX_SINKS, RetentionSpec, parse_retention

counts = st.integers(1, 400)
retentions = st.one_of(
    st.just(ALL),
    st.builds(lambda n: RetentionSpec("window", n), counts),
    st.builds(lambda s, n: RetentionSpec("sinks", n, s), st.integers(1, MAX_SINKS), counts),
    st.builds(lambda s, n: RetentionSpec("sinks", n, s, starts_at=s + n), st.integers(1, 40), counts),
    st.builds(lambda n: RetentionSpec("h2o", n), st.integers(64, 400)),
    st.builds(lambda n: RetentionSpec("snapkv", n), st.integers(64, 400)),
)
windows = st.none() | st.integers(1, 300)
tokens = st.integers(0, 1500)


def group_of(retention: RetentionSpec, window: int | None) -> LayerGroup:
    layer = LayerSpec("full" if window is None else "window", 2, 1, 16, 16, window)
    return LayerGroup(layer, (0,), CacheSpec(retention=retention))


def model_of(window: int | None) -> ModelSpec:
    return ModelSpec("llama", 100, 64, 128, 4096, (group_of(ALL, window).layer,))


@given(retentions)
def test_its_text_is_what_is_parsed(retention: RetentionSpec) -> None:
    again = parse_retention(str(retention))
    assert str(again) == str(retention)
    assert (again == retention) == (not retention.starts_at)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'unknown policy "" for --retention; known: all, window:N, '),
        ("all:4", 'unknown policy "all:4"'),
        ("window", f'--retention: window must keep between 1 and {MAX_KEPT} tokens, got ""'),
        ("window:-4", f'--retention: window must keep between 1 and {MAX_KEPT} tokens, got "-4"'),
        ("window:0", f"--retention: window must keep between 1 and {MAX_KEPT} tokens, got 0"),
        ("window:9999999999999", f"window must keep between 1 and {MAX_KEPT} tokens, got 9999999999999"),
        (f"window:{MAX_KEPT + 1}", f"window must keep between 1 and {MAX_KEPT} tokens, got {MAX_KEPT + 1}"),
        ("window:" + "9" * 5000, f"window must keep between 1 and {MAX_KEPT} tokens, got "),
        ("window:\u00b2", f"window must keep between 1 and {MAX_KEPT} tokens, got "),
        ("sinks:4", rf'\+N, with N between 1 and {MAX_KEPT}, is missing in "sinks:4"'),
        ("sinks", 'is missing in "sinks"'),
        ("sinks:4+", f'sinks must keep between 1 and {MAX_KEPT} tokens, got ""'),
        ("sinks:x+4", 'needs S between 1 and 256 tokens, got "x"'),
        ("sinks:0+4", "sinks:S\\+N needs S between 1 and 256 tokens, got 0; without sinks it's window:N"),
        ("sinks:257+4", "needs S between 1 and 256 tokens, got 257"),
        ("h2o:63", "h2o must keep between 64 and"),
        ("snapkv:9999999999999", f"snapkv must keep between 64 and {MAX_KEPT} tokens, got 9999999999999"),
    ],
)
def test_what_is_wrong_is_one_line(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse_retention(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [f"window:{MAX_KEPT}", f"sinks:{MAX_SINKS}+{MAX_KEPT}", f"h2o:{MAX_KEPT}"])
def test_what_is_stated_as_the_most_is_accepted(text: str) -> None:
    assert str(parse_retention(text)) == text


def test_unknown_kinds_and_illegal_pairs() -> None:
    with pytest.raises(SpecError, match='unknown kind of retention "lru"'):
        RetentionSpec("lru", 4)  # type: ignore[arg-type]  # what a caller without types may write
    assert {kind for kind in KINDS if RetentionSpec(kind, 0 if kind == "all" else 64, kind == "sinks").is_scored} == {
        "h2o",
        "snapkv",
    }


@given(retentions, windows, tokens)
def test_tokens_and_blocks_are_those_that_later_queries_see(
    retention: RetentionSpec, window: int | None, num_tokens: int
) -> None:
    group = group_of(retention, window)
    if group.is_scored:
        return
    seen = set()
    for query in range(num_tokens, num_tokens + 3):  # windows only move forward: later ones see no more
        low = max([query - size + 1 for size in (window, retention.window_at(query)) if size is not None], default=0)
        sinks = retention.sinks_at(query) if window is None else 0
        seen |= {token for token in range(num_tokens) if token >= low or token < sinks}
    assert group.num_logical_tokens(num_tokens) == len(seen)
    low, whole = group.first_kept(num_tokens), -(-num_tokens // BLOCK_TOKENS)
    blocks = {b for b in range(whole) if (b + 1) * BLOCK_TOKENS > low or b * BLOCK_TOKENS < group.num_sinks}
    assert {token // BLOCK_TOKENS for token in seen} <= blocks
    assert group.num_blocks(num_tokens) == len(blocks)
    first, end = group.dropped_blocks(num_tokens)
    assert not blocks & set(range(first, end))


@given(retentions, windows, tokens, st.integers(1, 300), tokens)
@example(RetentionSpec("sinks", 16, 4, starts_at=200), 160, 199, 1, 199)
@example(RetentionSpec("window", 16, starts_at=200), None, 200, 7, 200)
def test_a_sequence_never_holds_more_than_its_peak(
    retention: RetentionSpec, window: int | None, num_tokens: int, step_tokens: int, prompt_tokens: int
) -> None:
    group = group_of(retention, window)
    peak, at, held = group.peak_blocks(num_tokens, step_tokens), 0, 0
    while at < num_tokens:
        stop = retention.next_stop(at, prompt_tokens)
        assert stop is None or stop > at
        step = min(step_tokens, num_tokens - at, step_tokens if stop is None else stop - at)
        slots = group.num_slots(at, prompt_tokens) + step
        dropped = group.dropped_blocks(at)
        held = -(-slots // BLOCK_TOKENS) - (dropped[1] - dropped[0])
        assert held <= peak, (at, step, held, peak)
        at += step
        assert group.num_blocks(at, prompt_tokens) <= held
    assert group.num_blocks(num_tokens, prompt_tokens) <= peak


@given(retentions, windows, tokens)
@example(RetentionSpec("sinks", 1, 2, starts_at=3), 3, 2)
@example(RetentionSpec("sinks", 16, 4, starts_at=200), None, 199)
@example(RetentionSpec("window", 16, starts_at=200), 160, 201)
def test_a_plan_covers_what_is_held(retention: RetentionSpec, window: int | None, num_tokens: int) -> None:
    model, spec = model_of(window), CacheSpec(retention=retention)
    footprint = Footprint(model, spec)
    assert logical_bytes(model, spec, num_tokens) <= footprint.sequence_bytes(num_tokens)
    assert allocated_bytes(model, spec, num_tokens) <= footprint.allocated_bytes(num_tokens)
    assert footprint.sequence_bytes(num_tokens) <= footprint.allocated_bytes(num_tokens)
    assert footprint.allocated_bytes(num_tokens) <= footprint.reserved_bytes(num_tokens)


def test_scored_kinds_decide_at_fixed_counts() -> None:
    h2o, snapkv = RetentionSpec("h2o", 100), RetentionSpec("snapkv", 100)
    stops: list[int] = []
    at = 0
    while len(stops) < 4:
        at = h2o.next_stop(at, 7) or 0
        stops.append(at)
    assert stops == [100 + H2O_PERIOD * n for n in (1, 2, 3, 4)]
    assert [h2o.num_slots(n, 7) for n in (163, 164, 165, 227, 228)] == [163, 100, 101, 163, 100]
    assert [snapkv.next_stop(n, 300) for n in (0, 299, 300, 301)] == [300, 300, None, None]
    assert [snapkv.num_slots(n, 300) for n in (299, 300, 301, 500)] == [299, 100, 101, 300]
    assert snapkv.next_stop(0, 100) is None, "nothing to choose"
    assert snapkv.num_slots(500, 100) == 500
    assert RetentionSpec("window", 9).next_stop(4, 4) is None
    assert RetentionSpec("sinks", 9, 4, starts_at=13).next_stop(4, 4) == 13


def test_a_prompt_of_its_own_length_is_what_snapkv_is_priced_by() -> None:
    footprint = Footprint(model_of(None), CacheSpec(retention=RetentionSpec("snapkv", 256)))
    whole = Footprint(model_of(None), CacheSpec()).sequence_bytes(1000)
    assert footprint.sequence_bytes(1000) == whole, "the prompt is there before anything is chosen"
    known = Footprint(model_of(None), CacheSpec(retention=RetentionSpec("snapkv", 256)), prompt_tokens=500)
    assert known.sequence_bytes(1000) * 1000 == whole * (256 + 500)
    assert known.read_bytes(510) * 1000 == whole * (256 + 10)
