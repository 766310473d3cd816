"""What one step will do, decided before anything is done. Frozen: reading it twice gives the same twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvist.engine.answer import Answer
from kvist.engine.cost import Load
from kvist.engine.speculation import NO_DRAFT, Draft


class Feed(NamedTuple):
    """Rows of one answer: its next ``num_tokens`` tokens, and behind them a ``draft`` of what may follow."""

    answer: Answer
    num_tokens: int
    draft: Draft = NO_DRAFT

    @property
    def num_rows(self) -> int:
        return self.num_tokens + len(self.draft.token_ids)


@dataclass(frozen=True)
class Plan:
    """First those ``preempted`` lose their blocks, then those ``admitted`` join, then all
    ``feeds`` are computed in one pass, decodes first. ``load`` is what is in it, ``predicted_s`` how long it takes."""

    preempted: tuple[Answer, ...]
    admitted: tuple[Answer, ...]
    feeds: tuple[Feed, ...]
    load: Load
    predicted_s: float

    @property
    def num_rows(self) -> int:
        return sum(feed.num_rows for feed in self.feeds)
