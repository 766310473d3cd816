"""What a request meets at its context's limit: around it and far past it, for each strategy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.engine.limit import ON_LIMIT, Limit, check_on_limit
from kvist.errors import RequestError
from kvist.spec.cache import CacheSpec, LayerGroup
from kvist.spec.model import LayerSpec
from kvist.spec.retention import ALL, RetentionSpec

CONTEXT = 40
LENGTHS = [CONTEXT - 1, CONTEXT, CONTEXT + 1, 3 * CONTEXT]


def ids(length: int) -> tuple[int, ...]:
    return tuple(range(100, 100 + length))


@pytest.mark.parametrize("length", LENGTHS)
def test_stop_refuses_a_prompt_that_is_too_long_by_itself(length: int) -> None:
    limit = Limit(CONTEXT)
    if length <= CONTEXT:
        assert limit.prompt(ids(length), 1000) == (ids(length), 0)
        return
    with pytest.raises(RequestError, match=rf"has {length} tokens and the context holds 40; shorten it") as error:
        limit.prompt(ids(length), 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("length", LENGTHS)
def test_refuse_counts_the_answer_too(length: int) -> None:
    limit = Limit(CONTEXT, "refuse")
    assert limit.prompt(ids(20), length - 20) == (ids(20), 0) if length <= CONTEXT else True
    if length > CONTEXT:
        with pytest.raises(RequestError, match=rf"20 tokens of prompt and {length - 20} of answer exceed .* of 40"):
            limit.prompt(ids(20), length - 20)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("num_first", [0, 10])
def test_truncate_drops_the_oldest_behind_the_first(length: int, num_first: int) -> None:
    kept, dropped = Limit(CONTEXT, "truncate", num_first=num_first).prompt(ids(length), 8)
    assert (len(kept), dropped) == (min(length, 32), max(0, length - 32))
    first = num_first or 4
    assert kept[:first] == ids(length)[:first]
    assert kept[first:] == ids(length)[first + dropped :]


def test_truncate_leaves_half_the_context_to_the_prompt() -> None:
    kept, dropped = Limit(CONTEXT, "truncate").prompt(ids(100), 10_000)
    assert (len(kept), dropped) == (20, 80)
    with pytest.raises(RequestError, match="system message has 25 tokens and a prompt may have 20 here"):
        Limit(CONTEXT, "truncate", num_first=25).prompt(ids(100), 10_000)


@given(st.integers(1, 50), st.integers(0, 200), st.integers(1, 100), st.integers(0, 60))
def test_truncate_always_fits(context: int, length: int, max_tokens: int, num_first: int) -> None:
    try:
        kept, dropped = Limit(context, "truncate", num_first=num_first).prompt(ids(length), max_tokens)
    except RequestError:
        return
    assert len(kept) + dropped == length
    assert len(kept) <= context
    assert not dropped or len(kept) > 0


def test_a_rotary_model_slides_over_sinks_and_a_window() -> None:
    slide = Limit(256, "slide")
    assert slide.retention(ALL) == RetentionSpec("sinks", 224, 4, starts_at=256)
    assert slide.prompt(ids(1000), 1) == (ids(1000), 0)
    assert Limit(256, "slide", num_first=17).retention(ALL) == RetentionSpec("sinks", 208, 17, starts_at=256)
    assert Limit(4096, "slide", num_first=1000).retention(ALL).num_sinks == 256
    asked = RetentionSpec("window", 9)
    assert slide.retention(asked) == asked
    for is_learned in (False, True):
        with pytest.raises(RequestError, match=r"slide goes with retention all, window:N or sinks:S\+N, got h2o:64"):
            Limit(256, "slide", is_learned=is_learned).retention(RetentionSpec("h2o", 64))
    with pytest.raises(RequestError, match="slide needs a context of more than 32 tokens, got 32"):
        Limit(32, "slide").retention(ALL)
    for on_limit in ("stop", "refuse", "truncate"):
        assert Limit(CONTEXT, on_limit).retention(ALL) == ALL  # type: ignore[arg-type]


@given(st.integers(33, 3000), st.integers(0, 600))
def test_what_slides_fits_the_blocks_of_one_context(context: int, num_first: int) -> None:
    layer = LayerSpec("full", 1, 1, 16, 16)
    try:
        kept = Limit(context, "slide", num_first=num_first).retention(ALL)
    except RequestError:
        assert context < 3 * 16 + num_first
        return
    group = LayerGroup(layer, (0,), CacheSpec(retention=kept))
    assert group.peak_blocks(1 << 40, 1) <= -(-context // 16)
    assert kept.num_kept + kept.num_sinks < context, "no query sees further back than any before it"


def test_a_window_that_does_not_fit_slides_as_the_largest_that_does() -> None:
    slide = Limit(64, "slide")
    assert slide.retention(RetentionSpec("window", 48)) == RetentionSpec("window", 48)
    assert slide.retention(RetentionSpec("window", 1000)) == RetentionSpec("window", 48, starts_at=64)
    assert slide.retention(RetentionSpec("window", 60)) == RetentionSpec("window", 48, starts_at=60)
    assert slide.retention(RetentionSpec("sinks", 32, 4)) == RetentionSpec("sinks", 32, 4)
    assert slide.retention(RetentionSpec("sinks", 60, 4)) == RetentionSpec("sinks", 32, 4, starts_at=64)
    assert slide.retention(RetentionSpec("window", 9, starts_at=99)) == RetentionSpec("window", 9, starts_at=64)
    with pytest.raises(
        RequestError, match=r"with retention sinks:40\+1000 needs a context of more than 64 tokens, got 64"
    ):
        slide.retention(RetentionSpec("sinks", 1000, 40))
    with pytest.raises(RequestError, match="slide needs a context of more than 48 tokens, got 40"):
        Limit(40, "slide", num_first=20).retention(ALL)
    asked = RetentionSpec("window", 1000)
    assert Limit(64, "slide", is_learned=True).retention(asked) == asked, "its text is never longer than the context"
    assert Limit(64).retention(asked) == asked, "the answer ends there"


bounded = st.one_of(
    st.builds(lambda n: RetentionSpec("window", n), st.integers(1, 4000)),
    st.builds(lambda s, n: RetentionSpec("sinks", n, s), st.integers(1, 256), st.integers(1, 4000)),
    st.builds(lambda n, start: RetentionSpec("window", n, starts_at=start), st.integers(1, 4000), st.integers(0, 4000)),
)


@given(st.integers(1, 3000), bounded, st.integers(0, 5000))
def test_what_is_asked_for_fits_the_blocks_of_one_context_too(
    context: int, asked: RetentionSpec, position: int
) -> None:
    layer = LayerSpec("full", 1, 1, 16, 16)
    try:
        kept = Limit(context, "slide").retention(asked)
    except RequestError:
        assert context <= 16 * (2 + asked.num_sinks // 16)
        return
    group = LayerGroup(layer, (0,), CacheSpec(retention=kept))
    assert group.peak_blocks(1 << 40, 1) <= -(-context // 16)
    assert kept.starts_at <= context
    wanted, got = asked.window_at(position), kept.window_at(position)
    if wanted is not None and position >= asked.num_kept + asked.num_sinks:
        assert got is not None and got <= wanted, "a query sees no more than was asked for"


@given(st.integers(1, 60), st.integers(0, 400), st.integers(0, 30))
def test_a_learned_tail_is_computed_anew_a_quarter_at_a_time(context: int, length: int, num_first: int) -> None:
    limit = Limit(context, "slide", is_learned=True, num_first=num_first)
    dropped = limit.num_dropped(length)
    held = limit.held(ids(length), dropped)
    assert len(held) == length - dropped <= context
    assert held[: limit.num_protected] == list(ids(length)[: limit.num_protected])
    assert dropped == 0 if length <= context else context - len(held) < max(1, context // 4)
    assert dropped <= limit.num_dropped(length + 1)
    assert Limit(context, "slide").num_dropped(length) == 0


def test_unknown_names_are_answered_with_the_known() -> None:
    with pytest.raises(RequestError, match='unknown on_limit "wrap"; known: stop, truncate, slide, refuse'):
        check_on_limit("wrap")
    for name in ON_LIMIT:
        check_on_limit(name)
