"""Single values of a GGUF header, checked: every error names the key, the rule and what was found.

Pure; knows kinds of values and how a list with one entry per layer is read, not what any key means. Numbers that
the file holds in 32 bits come out as the shortest decimal that means the same 32 bits: 1e-05, not
9.999999747378752e-06.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvist.checkpoint.files import quote
from kvist.errors import CheckpointError, UnsupportedError

MAX_WHOLE_NUMBER = (1 << 31) - 1
MAX_LAYERS = 1 << 16


@dataclass(frozen=True)
class Whole:
    """A key that holds a whole number of at least 1; a missing one has the value of the key ``same_as``."""

    key: str
    same_as: str | None = None


@dataclass(frozen=True)
class Real:
    """A key that holds a positive number; a missing one has the value ``default``."""

    key: str
    default: float | None = None


class Keys:
    """The keys of ``metadata`` that begin with ``prefix`` (``llama.``); methods take the rest of the key."""

    def __init__(self, metadata: Mapping[str, object], prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix

    def whole(self, key: str, *, minimum: int = 1) -> int | None:
        """Return a whole number, None if the key is missing. A list is taken if all its numbers agree."""
        value = self._metadata.get(self._prefix + key)
        if isinstance(value, np.ndarray) and value.size <= MAX_LAYERS:
            value = self._same_in_all_layers(key, value.tolist())
        if value is not None and (type(value) is not int or not minimum <= value <= MAX_WHOLE_NUMBER):
            raise self._wrong(key, f"a whole number from {minimum} to {MAX_WHOLE_NUMBER}", value)
        return value

    def below(self, key: str, end: int) -> int | None:
        """Return a whole number from 0 up to ``end``, None if the key is missing or out of range."""
        value = self._metadata.get(self._prefix + key)
        if value is not None and type(value) is not int:
            raise self._wrong(key, "a whole number", value)
        return value if value is not None and 0 <= value < end else None

    def real(self, key: str, *, may_be_zero: bool = False) -> float | None:
        """Return a positive finite number, None if the key is missing."""
        value = self._metadata.get(self._prefix + key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, "a number", value)
        if not (0 < value < math.inf or (may_be_zero and value == 0)):
            raise self._wrong(key, "a positive number" + (" or 0" if may_be_zero else ""), value)
        return shortest_float(float(value))

    def text(self, key: str) -> str | None:
        """Return a text, None if the key is missing."""
        value = self._metadata.get(self._prefix + key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, "a text", value)
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return a true-or-false setting, the default if the key is missing."""
        value = self._metadata.get(self._prefix + key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def required(self, rule: Whole | Real) -> int | float:
        """Return the value that ``rule`` describes; raises CheckpointError if it is missing and nothing stands in."""
        value: int | float | None
        if isinstance(rule, Whole):
            value = self.whole(rule.key)
            if value is None and rule.same_as is not None:
                value = self.whole(rule.same_as)
        else:
            value = self.real(rule.key)
            value = rule.default if value is None else value
        if value is None:
            raise CheckpointError(f"its header lacks the key {quote(self._prefix + rule.key)}; fetch the file again")
        return value

    def _same_in_all_layers(self, key: str, values: list[object]) -> object:
        if values and values.count(values[0]) == len(values):
            return values[0]
        shown = ", ".join(map(str, values[:8])) + (" ..." if len(values) > 8 else "")
        raise UnsupportedError(
            f"{self._prefix}{key} differs from layer to layer ({shown}), which isn't supported for this architecture"
        )

    def _wrong(self, key: str, rule: str, value: object) -> CheckpointError:
        return CheckpointError(f"{self._prefix}{key} must be {rule}, got {quote(value)}; fetch the file again")


def shortest_float(value: float) -> float:
    """Return the shortest decimal with the same 32 bits; ``value`` itself if it needs more than 32 bits."""
    if abs(value) > float(np.finfo(np.float32).max) or float(np.float32(value)) != value:
        return value
    return float(str(np.float32(value)))
