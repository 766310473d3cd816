"""Values of a model's config, checked as they are taken out: a config is a stranger's file.

Knows no architecture. A key may have several spellings (``hidden_size``, ``n_embd``); the first that is there
counts, and a value of null counts as absent, as it does in the libraries that wrote these files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvist.errors import SpecError

MAX_COUNT = 1 << 31
"""No size in a config is larger; what is, is damage."""


@dataclass(frozen=True)
class Fields:
    """``config`` with ``defaults`` behind it: what the reference implementation assumes when a key is absent."""

    config: Mapping[str, object]
    defaults: Mapping[str, object]

    def has(self, key: str) -> bool:
        """Return whether the config itself states ``key`` (null included)."""
        return key in self.config

    def value(self, *keys: str) -> object:
        """Return the first stated value of ``keys``, else their default, else None.

        A stated null hides the default: that is how ``"sliding_window": null`` switches a window off.
        """
        return self._found(*keys)[1]

    def _found(self, *keys: str) -> tuple[str, object]:
        """Return the key that counts and its value."""
        for source in (self.config, self.defaults):
            for key in keys:
                if key in source:
                    return key, source[key]
        return keys[0], None

    def maybe_count(self, *keys: str, least: int = 1) -> int | None:
        """Return a whole number of at least ``least``, or None where it is absent or null."""
        key, value = self._found(*keys)
        return None if value is None else _count(value, key, least)

    def count(self, *keys: str, least: int = 1) -> int:
        """Return a whole number of at least ``least``.

        Raises:
            SpecError: absent, not a whole number, or out of range.
        """
        number = self.maybe_count(*keys, least=least)
        if number is None:
            raise SpecError(f"the config doesn't say {keys[0]}; without it the model's size is unknown")
        return number

    def flag(self, key: str) -> bool:
        """Return a true-or-false setting; absent and null count as false."""
        value = self.value(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise SpecError(f"{key} in the config must be true or false, got {_shown(value)}")
        return value

    def text(self, key: str) -> str:
        """Return a string setting; absent and null count as empty."""
        value = self.value(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise SpecError(f"{key} in the config must be a string, got {_shown(value)}")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of strings, or None where it is absent or null."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise SpecError(f"{key} in the config must be a list of strings, got {_shown(value)}")
        return tuple(value)

    def nested(self, key: str) -> Fields:
        """Return the fields of an object inside the config; an absent one has none."""
        value = self.value(key)
        if value is None:
            return Fields({}, {})
        if not isinstance(value, Mapping):
            raise SpecError(f"{key} in the config must be an object, got {_shown(value)}")
        return Fields(value, {})

    def counts(self, key: str, least: int = 0) -> tuple[int, ...] | None:
        """Return a list of whole numbers, or None where it is absent or null."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            raise SpecError(f"{key} in the config must be a list of whole numbers, got {_shown(value)}")
        return tuple(_count(item, key, least) for item in value)


def _count(value: object, key: str, least: int) -> int:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_whole:
        raise SpecError(f"{key} in the config must be a whole number, got {_shown(value)}")
    if not least <= value <= MAX_COUNT:
        raise SpecError(f"{key} in the config must be between {least} and {MAX_COUNT}, got {_shown(value)}")
    return int(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
