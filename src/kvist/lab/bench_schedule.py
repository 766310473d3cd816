"""What the arrival of a long prompt does to those who decode, and what they do to it.

Some users decode; then one with a prompt of thousands of tokens comes. How long does anybody wait for a next token, in
terms of what the users wait for the same tokens alone? And how fast is the prompt computed, in terms of its rate alone?

While it is computed the users' own texts grow, and each token of theirs reads more. So what the prompt did is told by
the same users once more, with as many tokens and without it; what they waited before it came is told, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
    of the users before it came. ``gaps_alone`` are how long they waited for the tokens after 0 when no prompt came.
    ``prefill_s`` is the prompt's time to its first token, ``alone_s`` the same without the users.
    """

    gaps: tuple[tuple[float, float], ...]
    gaps_alone: tuple[float, ...]
    prefill_s: float
    alone_s: float
    prompt_tokens: int

    @property
    def median_gap_s(self) -> float:
        """Of the users alone, for the tokens that they got while the prompt was computed."""
        return quantile(self.gaps_alone, 0.5)

    @property
    def before_gap_s(self) -> float:
        """The median just before the prompt came."""
        return quantile([gap for at, gap in self.gaps if at < 0], 0.5)

    @property
    def worst_gap_s(self) -> float:
        """Of anybody, from the prompt's arrival to its first token."""
        return max(gap for at, gap in self.gaps if at >= 0)

    @property
    def stretch(self) -> float:
        return self.worst_gap_s / self.median_gap_s

    @property
    def stretch_alone(self) -> float:
        """The worst that the users waited alone: what the machine does by itself."""
        return max(self.gaps_alone) / self.median_gap_s

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
            "stretch_alone": self.stretch_alone,
            "before_gap_s": self.before_gap_s,
            "stretch_of_before": self.worst_gap_s / self.before_gap_s,
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
    with _decoding(engine, users) as crowd:
        settled_s = _steps(crowd, SETTLING_STEPS)
        _steps(crowd, ALONE_STEPS)
        decoding, num_alone = list(crowd.records), len(crowd.steps)
        prompt = made_up_ids(engine.vocab_size, prompt_tokens)
        record = crowd.ask(Request(prompt, greedy(1), salt=decoding[0].ticket.request.salt))
        _until(crowd, lambda: bool(record.token_s))
        num_beside = len(crowd.steps) - num_alone
    with _decoding(engine, users) as crowd:
        begun_s = _steps(crowd, SETTLING_STEPS + ALONE_STEPS)
        _steps(crowd, num_beside)
        gaps_alone = [gap_s for at_s, gap_s in _gaps(crowd.records) if at_s > begun_s]
    gaps = tuple(
        (at_s - record.asked_s, gap_s) for at_s, gap_s in _gaps(decoding) if settled_s < at_s <= record.token_s[0]
    )
    return Round(gaps, tuple(gaps_alone), record.ttft_s, alone_s, prompt_tokens)


@contextmanager
def _decoding(engine: Engine, users: int) -> Iterator[Crowd]:
    """Users of whom each has a token; they are gone afterwards."""
    crowd, salt = Crowd(engine), new_salt()
    for user in range(users):
        prompt = made_up_ids(engine.vocab_size, USER_TOKENS, user + 1)
        crowd.ask(Request(prompt, greedy(MOST_GENERATED), salt=salt))
    try:
        _until(crowd, lambda: all(record.token_s for record in crowd.records))
        yield crowd
    finally:
        crowd.cancel()
        crowd.finish()


def _steps(crowd: Crowd, count: int) -> float:
    """Do so many steps and return when the last one ended."""
    end = len(crowd.steps) + count
    _until(crowd, lambda: len(crowd.steps) >= end)
    return crowd.steps[-1].end_s


def _gaps(records: Iterable[Record]) -> Iterator[tuple[float, float]]:
    """When each gap between two tokens ended, and how long it was."""
    for record in records:
        yield from zip(record.token_s[1:], record.gaps_s, strict=True)


def _until(crowd: Crowd, is_over: Callable[[], bool]) -> None:
    for _ in crowd.run(is_over):
        pass
    assert is_over(), "the users had all their tokens before the prompt was computed"
