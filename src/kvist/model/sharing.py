"""Which rows of a pass read the same blocks of the cache, so that attention reads these once for all of them.

Only neighbours are compared, and only rows that are their sequence's whole part: the engine orders a batch so that
sequences with the same beginning stand side by side. A span counts as shared where it is the same blocks in each
sequence and each row sees all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvist.cache.sequence import Sequence
from kvist.kernels.layout import SPAN_BLOCKS, SPAN_TOKENS

Ints = npt.NDArray[np.int64]


class Spans(NamedTuple):
    """Spans ``first`` to ``end`` - 1 of a sequence; none of them is (0, 0)."""

    first: int
    end: int

    @property
    def num_spans(self) -> int:
        return self.end - self.first

    def within(self, other: Spans) -> Spans:
        return spans_between(max(self.first, other.first), min(self.end, other.end))


NONE = Spans(0, 0)


def spans_between(first: int, end: int) -> Spans:
    return Spans(first, end) if first < end else NONE


class Run(NamedTuple):
    """``num_rows`` neighbouring rows from ``row`` on, and what they share in each layer group."""

    row: int
    num_rows: int
    shared: tuple[Spans, ...]


class _Seen(NamedTuple):
    """Of one layer group what one row sees: its blocks, and which spans it sees whole."""

    blocks: Ints
    whole: Spans


def may_share(sequence: Sequence) -> bool:
    """Whether another sequence holds the first block, sinks aside, that this one still sees; mostly none does."""
    for table, pool in zip(sequence.tables, sequence.cache.pools, strict=True):
        first = table.gap[1]
        if first < len(table.blocks) and pool.num_owners(int(table.blocks[first])) > 1:
            return True
    return False


def first_seen(sequence: Sequence, group: int, position: int) -> int:
    """The first slot, sinks aside, that the query at ``position`` sees in a layer group."""
    kind = sequence.scope.groups[group]
    if kind.layer.window is None and not sequence.retention.is_bounded:
        return 0
    sinks = kind.num_sinks if sequence.retention.sinks_at(position) else 0
    return max(sinks, kind.first_kept(position))


def _seen(sequence: Sequence) -> tuple[_Seen, ...]:
    """What the query of a sequence's last token sees, by layer group."""
    end, position = sequence.num_slots // SPAN_TOKENS, sequence.num_tokens - 1
    return tuple(
        _Seen(table.blocks, spans_between(-(-first_seen(sequence, group, position) // SPAN_TOKENS), end))
        for group, table in enumerate(sequence.tables)
    )


def _shared(one: tuple[_Seen, ...], other: tuple[_Seen, ...]) -> tuple[Spans, ...]:
    """What two rows share."""
    return tuple([_same(a.blocks, b.blocks, a.whole.within(b.whole)) for a, b in zip(one, other, strict=True)])


def _same(one: Ints, other: Ints, spans: Spans) -> Spans:
    """As many of the spans, from the first on, as are the same blocks in both tables."""
    start = spans.first * SPAN_BLOCKS
    if not spans.num_spans or one[start + SPAN_BLOCKS - 1] != other[start + SPAN_BLOCKS - 1]:
        return NONE
    is_other = one[start : spans.end * SPAN_BLOCKS] != other[start : spans.end * SPAN_BLOCKS]
    end = spans.first + int(is_other.argmax()) // SPAN_BLOCKS if is_other.any() else spans.end
    return spans_between(spans.first, end)


def _num_spans(shared: tuple[Spans, ...]) -> int:
    return sum([spans.num_spans for spans in shared])


def runs(rows: Many[tuple[int, Sequence]]) -> Iterator[Run]:
    """Divide rows, each its sequence's only one, into runs of neighbours that share spans, or of one row.

    A run goes on as long as it saves more reading with the next row than without it: a row that shares a system prompt
    with some that share a whole document doesn't join these.
    """
    at = 0
    seen = [_seen(sequence) for _, sequence in rows]
    while at < len(rows):
        end, shared = at + 1, tuple(item.whole for item in seen[at])
        while end < len(rows) and rows[end][0] == rows[end - 1][0] + 1:
            common = _shared(seen[end - 1], seen[end])
            wider = tuple([mine.within(theirs) for mine, theirs in zip(shared, common, strict=True)])
            num_others, num_spans = end - at, _num_spans(wider)
            if not num_spans or num_others * num_spans < (num_others - 1) * _num_spans(shared):
                break
            end, shared = end + 1, wider
        yield Run(rows[at][0], end - at, shared)
        at = end


def divided(run: Run, most: int, least_parts: int) -> Iterator[Run]:
    """Divide a run evenly into runs of at most ``most`` rows, and into ``least_parts`` of two or more if it can."""
    parts = max(-(-run.num_rows // most), min(least_parts, run.num_rows // 2), 1)
    for part in range(parts):
        first, end = run.num_rows * part // parts, run.num_rows * (part + 1) // parts
        yield Run(run.row + first, end - first, run.shared)
