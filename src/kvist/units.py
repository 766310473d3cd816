"""Sizes in words and numbers: ``"8GiB"`` <-> ``8589934592``.

Binary units only mean powers of 1,024 (KiB, MiB, GiB, TiB); decimal ones (kB, MB, GB, TB) powers of 1,000, as
device makers use them. Knows nothing of models or memory.
"""

from __future__ import annotations

import re
from math import inf, isfinite

from kvist.errors import SpecError

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[f"{_letter}ib"] = 1024**_power
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str) -> int:
    """Return the number of bytes that ``text`` names: ``"1GiB"``, ``"1.5 GB"``, ``"4096"``.

    Raises:
        SpecError: no number, or a unit that isn't known.
    """
    match = _SIZE.fullmatch(text)
    factor = _UNITS.get(match.group(2).lower()) if match else None
    size = float(match.group(1)) * (factor or 0) if match else inf
    if match is None or factor is None or not isfinite(size):
        raise SpecError(
            f'not a size: "{text:.60}"; write a number with B, KiB, MiB, GiB, TiB, kB, MB, GB or TB, such as 1.5GiB'
        )
    return int(size)


def format_bytes(num_bytes: int) -> str:
    """Return ``num_bytes`` in the largest binary unit that leaves at least 1: ``"1.50 GiB"``."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{num_bytes} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
