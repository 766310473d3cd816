"""What each token of a text costs a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def surprises(logits: Array, token_ids: Sequence[int]) -> Array:
    """Nats for each token but the first.  # [T, V] -> [T - 1]"""
    found = np.empty(len(token_ids) - 1)
    for at, token_id in enumerate(token_ids[1:]):
        row = logits[at].astype(np.float64)
        top = row.max()
        found[at] = top + np.log(np.exp(row - top).sum()) - row[token_id]
    return found
