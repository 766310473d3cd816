"""Who comes first, and who gives way: pure functions of frozen facts, one row of a table for each policy.

No request waits for ever. Under every policy a request's urgency grows with each step that it waits, at a rate that is
the same for all. So of two that wait, the difference stays as it was when the later one came: a request can only be
overtaken by those that come within a bounded number of steps after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvist.errors import SpecError

PRIORITY_STEPS = 128
"""Steps of waiting that are worth one more of ``priority``."""

STEP_TOKENS_WORTH = 16
"""Tokens of prompt (or of a hit) that one step of waiting is worth."""


@dataclass(frozen=True)
class Waiting:
    """A request that waits. ``arrival`` counts requests; ``num_left`` are the tokens that it has still to compute, of
    which the cache has ``num_hit``; ``num_steps`` are the steps that it has waited."""

    arrival: int
    priority: int
    num_left: int
    num_hit: int
    num_steps: int


@dataclass(frozen=True)
class Running:
    """A request that holds blocks. ``admission`` counts admissions; ``num_tokens`` are what it would have to compute
    anew."""

    admission: int
    priority: int
    num_tokens: int


@dataclass(frozen=True)
class Policy:
    """The highest ``urgency`` is served first, ties to the earlier arrival; the lowest ``worth`` gives way first, ties
    to the later admission. ``needs_hits`` says that urgency looks at the cache."""

    name: str
    urgency: Callable[[Waiting], float]
    worth: Callable[[Running], float]
    needs_hits: bool = False

    def order(self, waiting: Iterable[Waiting]) -> list[Waiting]:
        """Return who is served first, second, ..."""
        return sorted(waiting, key=lambda facts: (-self.urgency(facts), facts.arrival))

    def victims(self, running: Iterable[Running]) -> list[Running]:
        """Return who gives way first, second, ...; never the one that was admitted first."""
        oldest_last = sorted(running, key=lambda facts: facts.admission)[1:]
        return sorted(oldest_last, key=lambda facts: (self.worth(facts), -facts.admission))


def _nothing(_facts: object) -> float:
    return 0.0


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("fcfs", urgency=_nothing, worth=_nothing),
        Policy(
            "priority",
            urgency=lambda facts: facts.priority + facts.num_steps / PRIORITY_STEPS,
            worth=lambda facts: facts.priority,
        ),
        Policy(
            "shortest",
            urgency=lambda facts: facts.num_steps * STEP_TOKENS_WORTH - facts.num_left,
            worth=lambda facts: -facts.num_tokens,
        ),
        Policy(
            "cache",
            urgency=lambda facts: facts.num_steps * STEP_TOKENS_WORTH + facts.num_hit,
            worth=_nothing,
            needs_hits=True,
        ),
    )
}


def policy_of(name: object) -> Policy:
    """Return the policy of a name; SpecError names those there are."""
    if not isinstance(name, str) or name not in POLICIES:
        raise SpecError(f'unknown policy "{name}"; known: {", ".join(POLICIES)}')
    return POLICIES[name]
