"""Steps on a clock of the test's own: what they may take, who comes first, that all are served, that plans are pure."""

from __future__ import annotations

from collections.abc import Sequence as Values
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import pytest
from fakes.decoder import FakeDecoder
from fakes.model import fake_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.cache.kv_cache import KvCache
from kvist.engine.engine import Engine
from kvist.engine.planning import Settings
from kvist.engine.policy import POLICIES
from kvist.engine.request import Request, SamplingParams
from kvist.engine.ticket import Ticket
from kvist.errors import CapacityError, RequestError
from kvist.model.decoder import Part
from kvist.spec.cache import CacheSpec

CONTEXT = 8192
ROW_S, STEP_S, READ_S = 3e-4, 2e-3, 2e-7


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class TimedDecoder(FakeDecoder):
    """Takes as long as a machine would on which prompts are bound by arithmetic and decodes by memory."""

    def __init__(self, clock: Clock, **more: Any) -> None:
        super().__init__(fake_spec(CONTEXT), **more)
        self.clock = clock
        self.decode_read_s = 4 * READ_S
        self.passes: list[list[int]] = []  # rows of each part

    def forward(self, parts: Values[Part], *, is_copied: bool = True) -> np.ndarray:
        rows = super().forward(parts, is_copied=is_copied)
        self.passes.append([len(part.token_ids) for part in parts])
        for part in parts:
            count, end = len(part.token_ids), part.sequence.num_tokens
            reads = count * (end - count) + count * (count + 1) / 2
            self.clock.now_s += ROW_S * count + (self.decode_read_s if count == 1 else READ_S) * reads
        self.clock.now_s += STEP_S
        return rows


def timed_engine(num_tokens: int = CONTEXT, num_sequences: int = 2, **more: Any) -> tuple[Engine, TimedDecoder, Clock]:
    clock = Clock()
    decoder = TimedDecoder(clock)
    cache = KvCache(decoder.spec, CacheSpec(), num_tokens=num_tokens, num_sequences=num_sequences)
    engine = Engine(decoder, cache, CacheSpec(), context_length=num_tokens, clock=clock, **more)  # type: ignore[arg-type]
    return engine, decoder, clock


def request(token: int, length: int, max_tokens: int, **more: Any) -> Request:
    return Request((token,) * length, SamplingParams(max_tokens=max_tokens, ignore_eos=True), **more)


def finish(engine: Engine, tickets: list[Ticket]) -> None:
    while not all(ticket.is_finished for ticket in tickets):
        engine.step()


def test_a_long_prompt_stretches_nobodys_gap_too_far() -> None:
    """Eight users decode; the gaps between their tokens stay within four times what they were before it came."""
    engine, _, clock = timed_engine()
    alone = engine.add(request(99, 6000, 1))
    finish(engine, [alone])
    alone_s = clock.now_s
    engine.reset()
    users = [engine.add(request(number, 100, 400)) for number in range(8)]
    moments: dict[int, list[float]] = {ticket.id: [] for ticket in users}

    def step() -> None:
        for event in engine.step():
            if event.request_id in moments:
                moments[event.request_id].append(clock.now_s)

    for _ in range(60):
        step()
    before = median(b - a for times in moments.values() for a, b in list(pairwise(times))[-20:])
    came_s = clock.now_s
    long = engine.add(request(99, 6000, 1))
    while not long.is_finished:
        step()
    took_s = clock.now_s - came_s
    gaps = [b - a for times in moments.values() for a, b in pairwise(times) if b > came_s]
    assert max(gaps) <= 4 * before, (max(gaps), before)
    assert took_s <= alone_s / 0.6, (took_s, alone_s)


def test_that_users_have_read_more_since_a_prompt_came_is_no_reason_to_wait_longer() -> None:
    """What they wait for by themselves doubles meanwhile."""
    engine, decoder, clock = timed_engine()
    decoder.decode_read_s = 20 * READ_S
    for number in range(8):
        engine.add(request(number, 100, 900))
    for _ in range(60):
        engine.step()
    before_s, gaps = clock.now_s, []
    engine.step()
    calm_s = clock.now_s - before_s
    long = engine.add(request(99, 6000, 1))
    while not long.is_finished:
        before_s = clock.now_s
        engine.step()
        gaps.append(clock.now_s - before_s)
    assert max(gaps) <= 4 * calm_s, (max(gaps), calm_s)
    before_s = clock.now_s
    engine.step()
    assert clock.now_s - before_s > 1.7 * calm_s


def test_a_crowd_is_let_in_by_larger_pieces_than_who_comes_later() -> None:
    """Nobody of a crowd has known steps without the others; those who decode already have, and wait for less."""

    def rows_a_step(num_before: int) -> float:
        engine, decoder, _ = timed_engine(num_sequences=32)
        first = [engine.add(request(number, 100, 400)) for number in range(num_before)]
        while not all(user.answers[0].num_generated for user in first):
            engine.step()
        num_passes = len(decoder.passes)
        crowd = [engine.add(request(50 + number, 100, 400)) for number in range(24)]
        while not all(user.answers[0].num_generated for user in crowd):
            engine.step()
        return 24 * 100 / (len(decoder.passes) - num_passes)

    assert rows_a_step(0) > 1.7 * rows_a_step(2)


def test_who_does_not_fit_is_no_company() -> None:
    """Two hundred wait; the steps of those ten for whom there is room are what all are measured by."""
    engine, decoder, clock = timed_engine(num_tokens=1024)
    for number in range(200):
        engine.add(request(number % 90, 200, 100, salt=str(number)))
    gaps = []
    for _ in range(100):
        before_s = clock.now_s
        engine.step()
        gaps.append(clock.now_s - before_s)
    num_fitting = 2 * 1024 // 200
    assert max(gaps[2:]) <= 4 * (STEP_S + num_fitting * (ROW_S + 300 * decoder.decode_read_s)), max(gaps[2:])


@pytest.mark.parametrize(("num_users", "most_steps"), [(0, 3), (8, 8)])
def test_a_short_prompt_does_not_wait_for_a_long_one(num_users: int, most_steps: int) -> None:
    engine, decoder, _ = timed_engine()
    users = [engine.add(request(number, 20, 900)) for number in range(num_users)]
    while not all(user.answers[0].num_generated for user in users):
        engine.step()
    long = engine.add(request(98, 6000, 1))
    engine.step()
    num_before = len(decoder.passes)
    short = engine.add(request(99, 64, 2))
    while not short.answers[0].num_generated:
        engine.step()
    assert len(decoder.passes) - num_before <= most_steps
    assert not long.is_finished


def test_brief_prompts_take_half_of_the_time_at_most() -> None:
    """However many there are, a long one is computed at half its rate or more; and nobody waits longer for it."""
    engine, decoder, _ = timed_engine(num_sequences=8)
    long = engine.add(request(99, 6000, 1))
    for number in range(400):
        engine.add(request(number % 90, 100 + number % 7, 1, salt=str(number)))
    while not long.is_finished:
        engine.step()
    assert len(decoder.passes) <= 2 * 6000 // 256 + 2


def test_what_is_less_important_is_not_hurried() -> None:
    engine, _, _ = timed_engine(policy="priority")
    long = engine.add(request(98, 3000, 1, priority=1))
    engine.step()
    low = engine.add(request(99, 64, 1))
    while not long.is_finished:
        engine.step()
        assert not low.is_finished or long.is_finished
    finish(engine, [low])


def test_without_users_a_prompt_takes_whole_steps() -> None:
    engine, decoder, _ = timed_engine()
    finish(engine, [engine.add(request(1, 1000, 1))])
    assert decoder.passes == [[256], [256], [256], [232]]


def test_decodes_come_first_and_prompts_share_what_is_left() -> None:
    engine, decoder, _ = timed_engine(settings=Settings(stretch=1e9))
    users = [engine.add(request(number, 20, 50)) for number in range(3)]
    engine.step()
    users += [engine.add(request(number, 300, 5)) for number in (10, 11)]
    engine.step()
    assert decoder.passes == [[20, 20, 20], [1, 1, 1, 253]]
    engine.step()
    assert decoder.passes[2] == [1, 1, 1, 47, 206]
    finish(engine, users)


def test_identical_prompts_in_flight_are_computed_once() -> None:
    engine, decoder, _ = timed_engine()
    tickets = [engine.add(request(5, 600, 2)) for _ in range(5)]
    finish(engine, tickets)
    assert tickets[0].result.cached_tokens == 0
    assert all(ticket.result.cached_tokens >= 592 for ticket in tickets[1:])  # whole blocks of one that still runs
    assert decoder.num_forward_tokens == sum(600 - ticket.result.cached_tokens + 1 for ticket in tickets)


def test_a_plan_changes_nothing() -> None:
    engine, _, _ = timed_engine(num_tokens=64, num_sequences=2)
    tickets = [engine.add(request(number, 20, 40)) for number in range(6)]
    engine.step()
    while not all(ticket.is_finished for ticket in tickets):
        scheduler, cache = engine._scheduler, engine._cache
        state = [
            [*scheduler.running],
            [*scheduler.waiting],
            [pool.num_available for pool in cache.pools],
            [(answer.num_held, len(answer.ids), answer.admission) for answer in scheduler.running],
        ]
        plan = scheduler.plan_step()
        assert plan == scheduler.plan_step()
        assert state == [
            [*scheduler.running],
            [*scheduler.waiting],
            [pool.num_available for pool in cache.pools],
            [(answer.num_held, len(answer.ids), answer.admission) for answer in scheduler.running],
        ]
        engine.step()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_that_everybody_overtakes_is_served(policy: str) -> None:
    """Better ones keep coming: of higher priority, shorter, of longer hits."""
    engine, _, _ = timed_engine(num_tokens=320, num_sequences=1, policy=policy, settings=Settings(max_running=1))
    finish(engine, [engine.add(request(1, 200, 1))])
    poor = engine.add(request(250, 120, 1, priority=0))
    others: list[Ticket] = []
    for _ in range(2000):
        others = [ticket for ticket in others if not ticket.is_finished]
        while len(others) < 3:
            others.append(engine.add(request(1, 100, 1, priority=3)))
        engine.step()
        if poor.is_finished:
            break
    assert poor.result.finish_reason == "length"
    finish(engine, others)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("fcfs", [0, 1, 2]), ("priority", [2, 0, 1]), ("shortest", [1, 2, 0]), ("cache", [1, 0, 2])],
)
def test_who_comes_first(policy: str, expected: list[int]) -> None:
    engine, _, clock = timed_engine(policy=policy, settings=Settings(max_running=1))
    finish(engine, [engine.add(request(7, 40, 1))])
    tickets = [
        engine.add(request(3, 90, 1, priority=1)),
        engine.add(request(7, 30, 1, priority=1)),
        engine.add(request(4, 50, 1, priority=2)),
    ]
    ended: dict[int, float] = {}
    while len(ended) < 3:
        engine.step()
        for number, ticket in enumerate(tickets):
            if ticket.is_finished:
                ended.setdefault(number, clock.now_s)
    assert sorted(ended, key=lambda number: ended[number]) == expected


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=12),
    st.sampled_from(sorted(POLICIES)),
)
def test_the_oldest_never_gives_way(sizes: list[tuple[int, int]], policy: str) -> None:
    engine, _, _ = timed_engine(num_tokens=90, num_sequences=1, policy=policy)
    tickets = [engine.add(request(number, *size)) for number, size in enumerate(sizes)]
    while not all(ticket.is_finished for ticket in tickets):
        running = engine._scheduler.running
        oldest, num_known = (running[0], len(running[0].ids) + running[0].num_held) if running else (None, 0)
        engine.step()
        if oldest is not None:
            is_over = oldest.finish_reason is not None
            assert is_over or oldest in engine._scheduler.running
            assert is_over or len(oldest.ids) + oldest.num_held > num_known


def test_what_can_never_fit_is_refused_at_once() -> None:
    clock = Clock()
    decoder = TimedDecoder(clock)
    cache = KvCache(decoder.spec, CacheSpec(), num_tokens=100)
    engine = Engine(decoder, cache, CacheSpec(), context_length=CONTEXT)  # type: ignore[arg-type]
    block_bytes = cache.groups[0].block_bytes
    with pytest.raises(CapacityError) as error:
        engine.add(request(1, 100, 30))
    for said in (
        f"need {9 * block_bytes} bytes",
        f"has {7 * block_bytes}",
        "raise kv_budget",
        "shorten",
        "lower max_tokens",
        "codec",
    ):
        assert said in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(RequestError, match="n must be from 1 to"):
        engine.add(Request((1,), SamplingParams(n=300)))
    finish(engine, [engine.add(request(1, 100, 13))])


def test_times_and_counts() -> None:
    engine, _, clock = timed_engine(settings=Settings(max_running=1))
    tickets = [engine.add(request(number, 50, 11)) for number in range(2)]
    finish(engine, tickets)
    first, second = (ticket.result for ticket in tickets)
    assert first.queue_s == 0
    assert second.queue_s is not None and first.ttft_s is not None and first.tpot_s is not None
    assert second.queue_s == pytest.approx(first.ttft_s + 10 * first.tpot_s)
    stats = engine.stats()
    assert (stats.ttft.count, stats.itl.count, stats.tpot.count, stats.queue.count) == (2, 20, 2, 2)
    assert stats.itl.sum_s == pytest.approx(10 * (first.tpot_s + (second.tpot_s or 0)))
    assert stats.ttft.sum_s == pytest.approx(first.ttft_s + (second.ttft_s or 0))
    assert (stats.prompt_tokens, stats.generated_tokens, stats.forward_tokens) == (100, 22, 120)
    document = stats.as_json()
    assert document["hit_rate"] == 0
    assert sum(document["itl_s"]["counts"]) == 20  # type: ignore[index]
    assert stats.ttft.mean_s == pytest.approx(stats.ttft.sum_s / 2)
    assert stats.itl.quantile_s(0.5) is not None
    assert clock.now_s > 0


def test_waste_is_what_last_blocks_have_left() -> None:
    engine, _, _ = timed_engine()
    tickets = [engine.add(request(number, length, 9)) for number, length in enumerate((16, 20, 40))]
    engine.step()
    assert engine.stats().waste == pytest.approx((0 + 12 + 8) / (16 * (1 + 2 + 3)))
    finish(engine, tickets)
