"""Reading a JSON object field by field: each of the kind it has to be, or an error that says which it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvist.errors import RequestError


class Fields:
    """An object's fields. What is ``null`` counts as left out."""

    def __init__(self, found: Mapping[str, Any], where: str) -> None:
        self._found = {name: value for name, value in found.items() if value is not None}
        self._where = where

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def check_known(self, known: Iterable[str]) -> None:
        """Raise RequestError for a field that nobody would look at."""
        allowed = set(known)
        unknown = [name for name in self._found if name not in allowed]
        if unknown:
            raise RequestError(f'unknown field "{unknown[0]}" in {self._where}; known: {", ".join(sorted(allowed))}')

    def refuse(self, names: Mapping[str, object], why: str) -> None:
        """Raise RequestError for a field that asks for what there isn't; its harmless value may be given."""
        for name, harmless in names.items():
            if name in self._found and self._found[name] != harmless:
                raise RequestError(f'"{name}" {why}; leave it out of {self._where}')

    def get(self, name: str) -> Any:
        return self._found.get(name)

    def needed(self, name: str) -> Any:
        if name not in self._found:
            raise RequestError(f'{self._where} has no "{name}"')
        return self._found[name]

    def number(self, name: str) -> float | None:
        value = self._found.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise self._wrong(name, "a number", value)
        return value

    def whole(self, name: str) -> int | None:
        value = self._found.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self._wrong(name, "a whole number", value)
        return value

    def boolean(self, name: str) -> bool | None:
        value = self._found.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def text(self, name: str) -> str | None:
        value = self._found.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a text", value)
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A text or a list of them."""
        value = self._found.get(name)
        if value is None or isinstance(value, str):
            return None if value is None else (value,)
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise self._wrong(name, "a text or a list of texts", value)
        return tuple(value)

    def wholes(self, name: str) -> tuple[int, ...] | None:
        value = self._found.get(name)
        if value is None:
            return None
        if not is_token_ids(value):
            raise self._wrong(name, "a list of whole numbers", value)
        return tuple(value)

    def biases(self, name: str) -> dict[int, float] | None:
        """An object of numbers by token id."""
        value = self._found.get(name)
        if value is None:
            return None
        try:
            return {int(token_id): float(bias) for token_id, bias in value.items()}
        except (AttributeError, TypeError, ValueError, OverflowError):
            raise self._wrong(name, 'an object such as {"42": -1.5}', value) from None

    def _wrong(self, name: str, allowed: str, value: object) -> RequestError:
        return wrong(f'"{name}" in {self._where}', allowed, value)


def wrong(what: str, allowed: str, value: object) -> RequestError:
    """Return the error for a value of the wrong kind, shown in short."""
    shown = repr(value)
    return RequestError(f"{what} must be {allowed}, got {shown if len(shown) <= 60 else shown[:57] + '...'}")


def is_token_ids(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(part, int) and not isinstance(part, bool) for part in value)
