"""A plan lowered to parts of a forward pass, and rows of logits brought back to the answers that they belong to.

Decoding answers whose first blocks are the same stand side by side: the pass reads those blocks once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvist.engine.answer import Answer
from kvist.engine.plan import Feed, Plan
from kvist.model.decoder import Part


@dataclass(frozen=True)
class Batch:
    """``parts[i]`` is what ``feeds[i]`` asks for."""

    feeds: tuple[Feed, ...]
    parts: tuple[Part, ...]

    def rows(self) -> Iterator[tuple[Feed, int | None]]:
        """Yield each feed and the number of its first row of logits; None where it has none."""
        first = 0
        for feed, part in zip(self.feeds, self.parts, strict=True):
            if part.logits == "none":
                yield feed, None
            else:
                yield feed, first
                first += 1 if part.logits == "last" else feed.num_rows

    def alone(self) -> Iterator[Batch]:
        """Yield a batch for each part."""
        for feed, part in zip(self.feeds, self.parts, strict=True):
            yield Batch((feed,), (part,))


def lower(plan: Plan) -> Batch:
    """Return the parts of a plan whose admissions are done: decodes by their blocks, then prompts in their order."""
    decodes = [feed for feed in plan.feeds if feed.num_tokens == 1 and not feed.draft.token_ids]
    others = [feed for feed in plan.feeds if feed.num_tokens > 1 or feed.draft.token_ids]
    if len(decodes) > 1:
        decodes.sort(key=lambda feed: _first_blocks(feed.answer))
    feeds = (*decodes, *others)
    return Batch(feeds, tuple(_part(feed) for feed in feeds))


def _part(feed: Feed) -> Part:
    answer, num_tokens, draft = feed
    sequence, context = answer.held, answer.context
    start = sequence.num_tokens
    if draft.token_ids:
        return Part(sequence, [*context[start:], *draft.token_ids], "all")
    end = start + num_tokens
    return Part(sequence, context[start:end], "last" if end == len(context) else "none")


def _first_blocks(answer: Answer) -> bytes:
    """What sorts sequences with the same first blocks together, those that share most the closest."""
    sequence = answer.held
    return sequence.tables[0].blocks.tobytes() if sequence.tables else b""
