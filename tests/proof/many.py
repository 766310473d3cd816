"""Many requests in one engine: each gets, to the byte, what it gets alone with the cache off, whatever else goes on.

``arrivals`` are drawn by hypothesis; ``Stage`` is a model that they meet, made of a decoder and of caches for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvist.cache.kv_cache import KvCache
from kvist.cache.swap import SwapSpace
from kvist.engine.engine import Engine
from kvist.engine.planning import Settings
from kvist.engine.policy import POLICIES
from kvist.engine.request import Request, SamplingParams
from kvist.engine.result import Result
from kvist.engine.ticket import Ticket
from kvist.model.decoder import Decoder
from kvist.spec.retention import RetentionSpec

MOST_STEPS = 20_000


@dataclass
class Stage:
    """``new_cache(num_sequences, step_tokens)`` has room for so many sequences of ``longest`` tokens.

    ``decoders`` give the same logits in different ways (threads). Requests ask for one of ``retentions`` (None: the
    cache's own). ``known`` holds what requests gave alone: each choice's answer, and what is told of them.
    """

    name: str
    decoders: list[Decoder]
    new_cache: Callable[[int, int], KvCache]
    longest: int
    vocab_size: int
    more: dict[str, Any] = field(default_factory=dict)
    retentions: Sequence[RetentionSpec | None] = (None,)
    known: dict[str, tuple[list[Result], Result]] = field(default_factory=dict)

    @contextmanager
    def engine(
        self,
        *,
        num_sequences: int = 1,
        step_tokens: int = 256,
        swap_share: float = 0.0,
        decoder: int = 0,
        **more: Any,
    ) -> Iterator[Engine]:
        """An engine with a pool for ``num_sequences``; afterwards no block is held, and after a reset all are free."""
        chosen = self.decoders[decoder % len(self.decoders)]
        before, chosen.step_tokens = chosen.step_tokens, min(step_tokens, chosen.step_tokens)
        cache = self.new_cache(num_sequences, chosen.step_tokens)
        swap = SwapSpace(cache, int(swap_share * cache.pool_bytes)) if swap_share else None
        try:
            engine = Engine(chosen, cache, cache.spec, context_length=self.longest, swap=swap, **self.more, **more)
            yield engine
        finally:
            chosen.step_tokens = before
        assert not engine.has_work
        check_books(engine)
        assert not any(pool.num_used for pool in cache.pools)
        if swap is not None:
            swap.check()
            assert swap.used_bytes == 0
        engine.reset()
        assert all(pool.num_free == pool.num_blocks for pool in cache.pools)

    def alone(self, request: Request) -> tuple[list[Result], Result]:
        """What a request gives when nobody else is there, with the cache off: each choice's answer, and the result."""
        request = replace(request, is_cached=False, salt="", priority=0, is_shared=False)
        request = replace(request, params=replace(request.params, speculation=0))
        key = repr(request)
        if key not in self.known:
            with self.engine() as engine:
                ticket = engine.add(request)
                run(engine, [ticket])
                self.known[key] = answers(ticket), ticket.result
        return self.known[key]

    def check_same(self, ticket: Ticket) -> None:
        """Assert that what came of a request is what it gives alone, or the beginning of it if it was cancelled."""
        rights, told = self.alone(ticket.request)
        for found, right in zip(answers(ticket), rights, strict=True):
            if found.finish_reason == "cancelled":
                assert found.token_ids == right.token_ids[: found.generated_tokens]
                continue
            assert found.token_ids == right.token_ids
            assert found.logits_sha256 == right.logits_sha256
            assert (found.text, found.finish_reason) == (right.text, right.finish_reason)
        if all(found.finish_reason != "cancelled" for found in answers(ticket)):
            assert texts(ticket.result) == texts(told)


def answers(ticket: Ticket) -> list[Result]:
    """Every choice's answer, in the order of their numbers."""
    return [answer.result() for answer in ticket.answers]


def texts(result: Result) -> list[tuple[int, ...]]:
    """What is told of a request's choices, the best first where they were ranked."""
    return [choice.token_ids for choice in result.choices or (result,)]


def check_books(engine: Engine) -> None:
    """Assert that every block is accounted for, and every sequence whole."""
    engine._cache.check()
    for answer in engine._scheduler.running:
        answer.held.check()


def run(engine: Engine, tickets: list[Ticket]) -> None:
    """Step until all have ended."""
    for _ in range(MOST_STEPS):
        if all(ticket.is_finished for ticket in tickets):
            return
        engine.step()
        check_books(engine)
    raise AssertionError(f"no end after {MOST_STEPS} steps")


@dataclass(frozen=True)
class Arrival:
    """``step``: when it comes; ``cancel_after`` steps it is cancelled (None: not)."""

    request: Request
    step: int
    cancel_after: int | None


def prompts(longest: int, vocab_size: int) -> st.SearchStrategy[list[int]]:
    """Prompts that are often alike: of two tokens, of one, of a long beginning and a few more."""
    tokens = st.integers(0, vocab_size - 1)
    return st.one_of(
        st.lists(st.integers(0, 1), min_size=1, max_size=longest // 2),
        st.integers(1, longest).map(lambda count: [5] * count),
        st.tuples(st.integers(longest // 4, longest * 2 // 3), st.lists(tokens, min_size=1, max_size=5)).map(
            lambda pair: [7] * pair[0] + pair[1]
        ),
    )


@st.composite
def arrivals(draw: st.DrawFn, stage: Stage, most_tokens: int = 20) -> Arrival:
    num_given = draw(st.sampled_from([1, 1, 1, 2, 3]))
    params = SamplingParams(
        max_tokens=draw(st.integers(1, most_tokens)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 3)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        ignore_eos=True,
        n=num_given,
        best_of=draw(st.sampled_from([None, None, 3])),
        speculation=draw(st.sampled_from([0, 0, 4, 16])),
    )
    retention = draw(st.sampled_from(stage.retentions))
    is_scored = retention is not None and retention.is_scored  # such a context can't slide
    request = Request(
        tuple(draw(prompts(stage.longest, stage.vocab_size))),
        params,
        has_digest=True,
        is_cached=draw(st.sampled_from([True, True, True, True, False])),
        priority=draw(st.integers(0, 2)),
        salt=draw(st.sampled_from(["", "", "other"])),
        is_shared=draw(st.sampled_from([True, True, True, False])),
        retention=retention,
        on_limit=draw(st.sampled_from(["stop", "stop", "stop" if is_scored else "slide", "truncate"])),
    )
    return Arrival(request, draw(st.integers(0, 20)), draw(st.sampled_from([None, None, None, 0, 1, 5])))


@dataclass(frozen=True)
class House:
    """How an engine is set up."""

    policy: str
    step_tokens: int
    num_sequences: int
    stretch: float
    swap_share: float
    prefix_reuse: bool
    decoder: int


HOUSES = st.builds(
    House,
    policy=st.sampled_from(sorted(POLICIES)),
    step_tokens=st.sampled_from([3, 4, 17, 64, 256]),
    num_sequences=st.sampled_from([1, 1, 2, 4]),
    stretch=st.sampled_from([0.5, 3.0, 1e9]),
    swap_share=st.sampled_from([0.0, 0.0, 0.4, 2.0]),
    prefix_reuse=st.sampled_from([True, True, True, False]),
    decoder=st.integers(0, 1),
)


def check_many(stage: Stage, house: House, coming: list[Arrival]) -> None:
    """Let requests come and be cancelled as they are told to, and compare each with what it gives alone."""
    with stage.engine(
        num_sequences=house.num_sequences,
        step_tokens=house.step_tokens,
        swap_share=house.swap_share,
        decoder=house.decoder,
        prefix_reuse=house.prefix_reuse,
        policy=house.policy,
        settings=Settings(stretch=house.stretch, least_rows=2),
    ) as engine:
        tickets: list[tuple[Arrival, Ticket]] = []
        for step in range(MOST_STEPS):
            tickets += [(arrival, engine.add(arrival.request)) for arrival in coming if arrival.step == step]
            for arrival, ticket in tickets:
                if arrival.cancel_after is not None and step >= arrival.step + arrival.cancel_after:
                    engine.cancel(ticket.id)
            if len(tickets) == len(coming) and all(ticket.is_finished for _, ticket in tickets):
                break
            engine.step()
            check_books(engine)
        else:
            raise AssertionError(f"no end after {MOST_STEPS} steps")
    for _, ticket in tickets:
        stage.check_same(ticket)


def search(stage: Stage, num_examples: int, *, most_arrivals: int = 6, most_tokens: int = 8) -> None:
    """Look for requests of which one gets something else."""

    @settings(max_examples=num_examples, suppress_health_check=list(HealthCheck))
    @given(HOUSES, st.lists(arrivals(stage, most_tokens), min_size=1, max_size=most_arrivals))
    def check(house: House, coming: list[Arrival]) -> None:
        check_many(stage, house, coming)

    check()
