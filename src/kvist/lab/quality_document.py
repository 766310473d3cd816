"""What a file with an evaluation's state holds, checked to its last number: anything may lie under its name.

Knows the form and the ranges of the figures; where they are kept and what they mean is ``lab.quality_state``'s.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvist.errors import KvistError

FORMAT = 2

Figures = dict[str, dict[str, dict[str, Any]]]
"""By way of keeping the cache: ``windows``, ``needles`` and ``tpot_s``, each by number."""

_PARTS = {"windows", "needles", "tpot_s"}
_LOSSES = {"kl", "nll_sum", "num_same_top", "allocated_bytes"}
_NUMBER = re.compile("0|[1-9][0-9]{0,8}")
_MOST_NATS = 700.0
"""Of a token: no likelihood in float64 is below e**-745, and e**700 is the largest perplexity that can be told."""
_MOST_SECONDS = 1e6
_MOST_BYTES = 1 << 60


def read_document(path: Path) -> dict[str, Any]:
    """Return ``format``, ``key`` and ``figures`` of the file, the figures unchecked. Raises KvistError, OSError."""
    if path.exists() and not path.is_file():
        raise KvistError(f'can\'t keep the state of kvist eval in "{path}", which is no file; give another to --state')
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise no_state(path) from None
    if not isinstance(found, dict) or found.keys() != {"format", "key", "figures"}:
        raise no_state(path)
    if not isinstance(found["format"], int) or not isinstance(found["key"], str):
        raise no_state(path)
    return found


def no_state(path: Path) -> KvistError:
    return KvistError(f'"{path}" holds no state of kvist eval; give another to --state, or remove it')


def decoded_kl(text: str) -> npt.NDArray[np.float64]:
    """Return the divergences [positions] of a window. Raises ValueError or TypeError where ``text`` isn't such."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<f8")


def are_figures(found: object, positions: Sequence[int] | None = None) -> bool:
    """Whether ``found`` is such as ``EvalState`` keeps; ``positions`` are those of each window, where known."""

    def is_window(number: int, window: object) -> bool:
        if positions is None:
            return _is_window(window, None)
        return number < len(positions) and _is_window(window, positions[number])

    return isinstance(found, dict) and all(
        isinstance(parts, dict)
        and parts.keys() == _PARTS
        and _is_numbered(parts["windows"], is_window)
        and _is_numbered(parts["needles"], lambda _, score: _is_number(score, 1))
        and _is_numbered(parts["tpot_s"], lambda _, tpot_s: _is_number(tpot_s, _MOST_SECONDS))
        for parts in found.values()
    )


def merged(older: Figures, newer: Figures) -> Figures:
    """Return the figures of both; where each has one, the newer's."""
    both = {
        name: {part: older.get(name, {}).get(part, {}) | figures for part, figures in parts.items()}
        for name, parts in newer.items()
    }
    return older | both


def _is_window(window: object, num_positions: int | None) -> bool:
    if not isinstance(window, dict) or window.keys() != _LOSSES:
        return False
    try:
        kl = decoded_kl(window["kl"])
    except (ValueError, TypeError):
        return False
    if not len(kl) or num_positions not in (None, len(kl)):
        return False
    most_nats = _MOST_NATS * len(kl)
    return (
        bool(np.all((kl >= 0) & (kl < np.inf)))
        and _is_number(window["nll_sum"], most_nats, least=-most_nats)  # rounding may leave a sum of 0 below it
        and _is_count(window["num_same_top"], len(kl))
        and _is_count(window["allocated_bytes"], _MOST_BYTES)
    )


def _is_numbered(found: object, is_figure: Callable[[int, object], bool]) -> bool:
    return isinstance(found, dict) and all(
        _NUMBER.fullmatch(number) is not None and is_figure(int(number), figure) for number, figure in found.items()
    )


def _is_number(value: object, most: float, least: float = 0) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and _is_number(value, most)
