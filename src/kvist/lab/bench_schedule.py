"""What the arrival of a long prompt does to those who decode, and what they do to it.

Some users decode; then one with a prompt of thousands of tokens comes. How long does anybody wait for a next token, in
terms of what the users waited alone? And how fast is the prompt computed, in terms of its rate alone?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvist.engine.engine import Engine
from kvist.engine.request import Request
from kvist.lab.crowd import Crowd, Record, greedy, made_up_ids, new_salt
from kvist.lab.timing import quantile

USERS = 8
USER_TOKENS = 128
PROMPT_TOKENS = 6_000
ALONE_STEPS = 64
SETTLING_STEPS = 8
ROUNDS = 3
MOST_GENERATED = 1_500
"""Tokens that a user may get while the prompt is computed; the pool has to have room for them."""


@dataclass(frozen=True)
class Round:
    """One arrival.

    ``gaps`` are (when, how long) of every user's every token, in seconds since the prompt arrived; those before 0 are
    of the users alone. ``prefill_s`` is the prompt's time to its first token, ``alone_s`` the same without the users.
    """

    gaps: tuple[tuple[float, float], ...]
    prefill_s: float
    alone_s: float
    prompt_tokens: int

    @property
    def median_gap_s(self) -> float:
        """Of the users alone."""
        return quantile([gap for at, gap in self.gaps if at < 0], 0.5)

    @property
    def worst_gap_s(self) -> float:
        """Of anybody, from the prompt's arrival to its first token."""
        return max(gap for at, gap in self.gaps if at >= 0)

    @property
    def stretch(self) -> float:
        return self.worst_gap_s / self.median_gap_s

    @property
    def prefill_share(self) -> float:
        """The prompt's rate beside the users, of its rate alone."""
        return self.alone_s / self.prefill_s

    def as_json(self) -> dict[str, object]:
        beside = [gap for at, gap in self.gaps if at >= 0]
        return {
            "median_gap_s": self.median_gap_s,
            "worst_gap_s": self.worst_gap_s,
            "stretch": self.stretch,
            "gap_p99_s": quantile(beside, 0.99),
            "prefill_s": self.prefill_s,
            "prefill_tokens_per_s": self.prompt_tokens / self.prefill_s,
            "alone_s": self.alone_s,
            "alone_tokens_per_s": self.prompt_tokens / self.alone_s,
            "prefill_share": self.prefill_share,
            "gaps": len(beside),
        }


@dataclass(frozen=True)
class ScheduleBench:
    """All rounds, in order: the first one is of an engine that hasn't seen a long prompt beside users yet."""

    users: int
    prompt_tokens: int
    rounds: tuple[Round, ...]

    @property
    def worst_stretch(self) -> float:
        return max(found.stretch for found in self.rounds)

    @property
    def stretch(self) -> float:
        return quantile([found.stretch for found in self.rounds], 0.5)

    @property
    def prefill_share(self) -> float:
        return quantile([found.prefill_share for found in self.rounds], 0.5)

    def as_json(self) -> dict[str, object]:
        return {
            "users": self.users,
            "prompt_tokens": self.prompt_tokens,
            "stretch": self.stretch,
            "worst_stretch": self.worst_stretch,
            "prefill_share": self.prefill_share,
            "rounds": [found.as_json() for found in self.rounds],
        }


def bench_schedule(
    engine: Engine,
    *,
    users: int = USERS,
    prompt_tokens: int = PROMPT_TOKENS,
    rounds: int = ROUNDS,
    on_round: Callable[[Round], object] = bool,
) -> ScheduleBench:
    """Let the prompt arrive ``rounds`` times; ``on_round`` hears of each."""
    _prefill_alone(engine, 256)  # compiles
    found = []
    for _ in range(rounds):
        alone_s = _prefill_alone(engine, prompt_tokens)
        found.append(_arrival(engine, users, prompt_tokens, alone_s))
        on_round(found[-1])
    return ScheduleBench(users, prompt_tokens, tuple(found))


def _prefill_alone(engine: Engine, prompt_tokens: int) -> float:
    crowd = Crowd(engine)
    record = crowd.ask(Request(made_up_ids(engine.vocab_size, prompt_tokens), greedy(1), salt=new_salt()))
    crowd.finish()
    return record.ttft_s


def _arrival(engine: Engine, users: int, prompt_tokens: int, alone_s: float) -> Round:
    crowd, salt = Crowd(engine), new_salt()
    for user in range(users):
        prompt = made_up_ids(engine.vocab_size, USER_TOKENS, user + 1)
        crowd.ask(Request(prompt, greedy(MOST_GENERATED), salt=salt))
    try:
        _until(crowd, lambda: all(record.token_s for record in crowd.records))
        num_steps = len(crowd.steps) + SETTLING_STEPS + ALONE_STEPS
        settled_s = 0.0
        for _ in crowd.run(lambda: len(crowd.steps) >= num_steps):
            if len(crowd.steps) == num_steps - ALONE_STEPS:
                settled_s = crowd.steps[-1].end_s
        decoding = list(crowd.records)
        record = crowd.ask(Request(made_up_ids(engine.vocab_size, prompt_tokens), greedy(1), salt=salt))
        _until(crowd, lambda: bool(record.token_s))
    finally:
        crowd.cancel()
        crowd.finish()
    return Round(_gaps(decoding, record, settled_s), record.ttft_s, alone_s, prompt_tokens)


def _until(crowd: Crowd, is_over: Callable[[], bool]) -> None:
    for _ in crowd.run(is_over):
        pass
    assert is_over(), "the users had all their tokens before the prompt was computed"


def _gaps(decoding: list[Record], arrived: Record, settled_s: float) -> tuple[tuple[float, float], ...]:
    """Return (when, how long) of each gap, by when it ended, from the moment on at which the users had settled."""
    return tuple(
        (at_s - arrived.asked_s, gap_s)
        for record in decoding
        for at_s, gap_s in zip(record.token_s[1:], record.gaps_s, strict=True)
        if at_s > settled_s and at_s <= arrived.token_s[0]
    )
