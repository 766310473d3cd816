"""Many requests in one engine: each gets, to the byte, what it gets alone with the cache off, whatever else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fakes.decoder import FakeDecoder
from fakes.model import byte_tokenizer, fake_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.cache.kv_cache import KvCache
from kvist.cache.swap import SwapSpace
from kvist.engine.engine import Engine
from kvist.engine.planning import Settings
from kvist.engine.policy import POLICIES
from kvist.engine.request import Request, SamplingParams
from kvist.engine.result import Result
from kvist.engine.ticket import Ticket
from kvist.spec.cache import CacheSpec

LONGEST = 70
SPEC = CacheSpec()


@contextmanager
def new_engine(
    *,
    window: int | None = None,
    num_tokens: int = LONGEST,
    num_sequences: int = 1,
    step_tokens: int = 256,
    num_groups: int = 1,
    swap_share: float = 0.0,
    **more: Any,
) -> Iterator[Engine]:
    """An engine with a pool for ``num_sequences`` of ``num_tokens``; afterwards every block is free after a reset."""
    model = fake_spec(LONGEST, window)
    if num_groups == 2:
        full = fake_spec(LONGEST)
        model = replace(model, layers=(model.layers[0], full.layers[0]))
    cache = KvCache(model, SPEC, num_tokens=num_tokens, num_sequences=num_sequences, step_tokens=step_tokens)
    decoder = FakeDecoder(model, step_tokens=step_tokens)
    swap = SwapSpace(cache, int(swap_share * cache.pool_bytes)) if swap_share else None
    engine = Engine(decoder, cache, SPEC, context_length=LONGEST, tokenizer=byte_tokenizer(), swap=swap, **more)
    yield engine
    if swap is not None:
        swap.check()
        assert swap.used_bytes == 0
    assert not engine.has_work
    assert not any(pool.num_used for pool in cache.pools)
    cache.check()
    engine.reset()
    assert all(pool.num_free == pool.num_blocks for pool in cache.pools)


def run(engine: Engine, tickets: list[Ticket], most_steps: int = 5000) -> None:
    """Step until all have ended."""
    for _ in range(most_steps):
        if all(ticket.is_finished for ticket in tickets):
            return
        engine.step()
        engine._cache.check()
    raise AssertionError(f"no end after {most_steps} steps")


_KNOWN: dict[object, tuple[Result, ...]] = {}


def alone(request: Request, window: int | None, num_groups: int) -> tuple[Result, ...]:
    """What a request gives when nobody else is there, with the cache off."""
    key = repr(request), window, num_groups
    if key not in _KNOWN:
        _KNOWN[key] = _alone(request, window, num_groups)
    return _KNOWN[key]


def _alone(request: Request, window: int | None, num_groups: int) -> tuple[Result, ...]:
    with new_engine(window=window, num_groups=num_groups) as engine:
        ticket = engine.add(replace(request, is_cached=False))
        run(engine, [ticket])
        return ticket.result.choices or (ticket.result,)


def check_same(result: Result, request: Request, window: int | None, num_groups: int) -> None:
    expected = alone(request, window, num_groups)
    for found, right in zip(result.choices or (result,), expected, strict=True):
        if found.finish_reason == "cancelled":
            assert found.token_ids == right.token_ids[: found.generated_tokens]
            continue
        assert found.token_ids == right.token_ids
        assert found.logits_sha256 == right.logits_sha256
        assert (found.text, found.finish_reason) == (right.text, right.finish_reason)


@dataclass(frozen=True)
class Arrival:
    """``step``: when it comes; ``cancel_after`` steps it is cancelled (None: not)."""

    request: Request
    step: int
    cancel_after: int | None


PROMPTS = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=40),  # many alike
    st.integers(1, 50).map(lambda count: [5] * count),
    st.tuples(st.integers(20, 45), st.lists(st.integers(0, 250), min_size=1, max_size=5)).map(
        lambda p: [7] * p[0] + p[1]
    ),
)


@st.composite
def arrivals(draw: st.DrawFn) -> Arrival:
    temperature = draw(st.sampled_from([0.0, 1.0]))
    params = SamplingParams(
        max_tokens=draw(st.integers(1, 20)),
        temperature=temperature,
        seed=draw(st.integers(0, 3)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        ignore_eos=True,
        n=draw(st.sampled_from([1, 1, 1, 2, 3])),
        speculation=draw(st.sampled_from([0, 0, 4])),
    )
    request = Request(
        tuple(draw(PROMPTS)),
        params,
        has_digest=True,
        is_cached=draw(st.sampled_from([True, True, True, False])),
        priority=draw(st.integers(0, 2)),
        salt=draw(st.sampled_from(["", "", "other"])),
        is_shared=draw(st.sampled_from([True, True, False])),
    )
    return Arrival(request, draw(st.integers(0, 20)), draw(st.sampled_from([None, None, None, 0, 1, 5])))


@settings(max_examples=150)
@given(
    st.lists(arrivals(), min_size=1, max_size=7),
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from([3, 4, 17, 64, 256]),
    st.sampled_from([(None, 1), (12, 1), (33, 1), (20, 2)]),
    st.sampled_from([1, 1, 2, 4]),
    st.sampled_from([0.5, 3.0, 1e9]),
    st.sampled_from([0.0, 0.0, 0.4, 2.0]),
)
def test_each_gets_what_it_gets_alone(
    coming: list[Arrival],
    policy: str,
    step_tokens: int,
    layers: tuple[int | None, int],
    num_sequences: int,
    stretch: float,
    swap_share: float,
) -> None:
    window, num_groups = layers
    with new_engine(
        window=window,
        num_groups=num_groups,
        num_sequences=num_sequences,
        step_tokens=step_tokens,
        swap_share=swap_share,
        policy=policy,
        settings=Settings(stretch=stretch, least_rows=2),
    ) as engine:
        tickets: list[tuple[Arrival, Ticket]] = []
        for step in range(5000):
            tickets += [(arrival, engine.add(arrival.request)) for arrival in coming if arrival.step == step]
            for arrival, ticket in tickets:
                if arrival.cancel_after is not None and step >= arrival.step + arrival.cancel_after:
                    engine.cancel(ticket.id)
            if len(tickets) == len(coming) and all(ticket.is_finished for _, ticket in tickets):
                break
            engine.step()
            engine._cache.check()
            for answer in engine._scheduler.running:
                answer.held.check()
        else:
            raise AssertionError("no end")
        for arrival, ticket in tickets:
            check_same(ticket.result, arrival.request, window, num_groups)


@pytest.mark.parametrize("swap_share", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_pool_for_3_of_16_serves_all(policy: str, swap_share: float) -> None:
    with new_engine(num_sequences=3, policy=policy, step_tokens=64, swap_share=swap_share) as engine:
        requests = [
            Request((number,) * 20, SamplingParams(max_tokens=LONGEST - 20, ignore_eos=True), has_digest=True)
            for number in range(16)
        ]
        tickets = [engine.add(request) for request in requests]
        run(engine, tickets)
        for request, ticket in zip(requests, tickets, strict=True):
            assert ticket.result.finish_reason == "length"
            check_same(ticket.result, request, None, 1)
        assert engine.stats().num_preemptions > 0
        if swap_share == 5.0:  # nothing is computed twice
            assert engine.stats().forward_tokens == sum(
                ticket.result.prompt_tokens + LONGEST - 21 for ticket in tickets
            )
