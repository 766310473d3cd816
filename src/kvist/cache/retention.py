"""Which tokens a retention that goes by attention keeps, and where they move. Pure: numbers in, numbers out.

A *tally* holds for each slot the attention weights that it got, summed over queries, heads and the group's layers, as
whole numbers (``kernels.tally``): no order of adding changes them. Ties go to the earlier token.

``h2o``     the newest half, and of the rest those with the largest tallies (Zhang et al., 2023: "H2O", section 4)
``snapkv``  the prompt's last 32 tokens, and of the rest those with the largest tallies among their neighbours', where
            only these 32 tokens' queries were tallied (Li et al., 2024: "SnapKV", section 4; max pooling of 7)

Both papers keep another set for each head; here the layers of a group and their heads keep one, because they share a
block table.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvist.spec.retention import OBSERVED_TOKENS, RetentionSpec

Ints = npt.NDArray[np.int64]

POOL_WIDTH = 7
"""Tokens over which ``snapkv`` takes the largest tally, so that what belongs together is kept together."""


def first_tallied(retention: RetentionSpec, prompt_tokens: int) -> int | None:
    """The first position whose query is tallied; None: nobody's is."""
    if retention.kind == "h2o":
        return 0
    if retention.kind == "snapkv" and prompt_tokens > retention.num_kept:
        return prompt_tokens - OBSERVED_TOKENS
    return None


def end_tallied(retention: RetentionSpec, prompt_tokens: int) -> int | None:
    """The position from which on no query is tallied; None: all are."""
    return prompt_tokens if retention.kind == "snapkv" else None


def kept_slots(retention: RetentionSpec, tally: Ints, positions: Ints) -> npt.NDArray[np.bool_]:
    """Return for each slot whether it is kept; ``positions`` are those of the tokens in them."""
    assert tally.shape == positions.shape and tally.size > retention.num_kept, (tally.shape, retention)
    num_newest = retention.num_kept // 2 if retention.kind == "h2o" else OBSERVED_TOKENS
    is_kept = np.zeros(tally.size, bool)
    by_position = np.argsort(positions)
    is_kept[by_position[tally.size - num_newest :]] = True
    others = by_position[: tally.size - num_newest]
    scores = tally[others] if retention.kind == "h2o" else pooled(tally[others])
    best = np.argsort(-scores, kind="stable")[: retention.num_kept - num_newest]
    is_kept[others[best]] = True
    return is_kept


def pooled(tally: Ints) -> Ints:
    """The largest of each tally and its neighbours, ``POOL_WIDTH`` in all, fewer at the ends."""
    side = POOL_WIDTH // 2
    padded = np.pad(tally, side)  # tallies are never negative
    largest: Ints = np.lib.stride_tricks.sliding_window_view(padded, POOL_WIDTH).max(axis=1)
    return largest


def moves(is_kept: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return (from, to) slots that bring all kept tokens to the front, moving as few as can be.

    A kept token behind the front goes to the place of one that isn't kept, the first to the first.
    """
    num_kept = int(np.count_nonzero(is_kept))
    return num_kept + np.flatnonzero(is_kept[num_kept:]), np.flatnonzero(~is_kept[:num_kept])
