"""What a Python caller gave, as Python's own kind of it, or one line that refuses it.

NumPy's numbers become ints and floats. True and False are no numbers here, and a text is none either.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from math import inf, isfinite
from numbers import Real
from typing import Any

from kvist.errors import KvistError, RequestError

MAX_INT64 = 2**63 - 1
"""The largest count that is taken: what is computed with it fits a float, and what is said of it a line."""
MAX_SHOWN = 60
"""Characters of a refused value that a message shows."""


def wrong(name: str, allowed: str, value: object, error: type[KvistError] = RequestError) -> KvistError:
    """Return the error for a ``value`` that ``name`` doesn't take."""
    return error(f"{name} must be {allowed}, got {shown(value)}")


def shown(value: object) -> str:
    """Return ``value`` as Python writes it, in one short line."""
    try:
        line = " ".join(repr(value).split())
    except ValueError:  # a whole number of more digits than Python writes
        return f"a very long {type(value).__name__}"
    return line if len(line) <= MAX_SHOWN else f"{line[: MAX_SHOWN - 3]}..."


def whole_number(
    name: str,
    value: Any,
    rule: str = "",
    *,
    least: float = -inf,
    most: float = inf,
    error: type[KvistError] = RequestError,
) -> int:
    """Return ``value`` as an int; raises ``error`` unless it is one from ``least`` to ``most``, which ``rule`` says."""
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool):
        raise wrong(name, f"a whole number, {rule}" if rule else "a whole number", value, error)
    if not least <= found <= most:
        raise wrong(name, rule, value, error)
    return found


def finite_number(
    name: str,
    value: Any,
    rule: str,
    *,
    least: float = -inf,
    most: float = inf,
    error: type[KvistError] = RequestError,
) -> float:
    """Return ``value`` as a float; raises ``error`` unless it is finite and from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong(name, f"a number, {rule}", value, error)
    try:
        found = float(value)
    except OverflowError:
        found = inf
    if not isfinite(found):
        raise wrong(name, f"a finite number, {rule}", value, error)
    if not least <= found <= most:
        raise wrong(name, rule, value, error)
    return found


def truth_value(name: str, value: Any, error: type[KvistError] = RequestError) -> bool:
    """Return ``value``, which is True or False, whichever kind (NumPy's, say) it came as; else raises ``error``."""
    if not (isinstance(value, Hashable) and value in (True, False)):
        raise wrong(name, "True or False", value, error)
    return bool(value)


def plain_text(name: str, value: object) -> str:
    """Return ``value``, a text that UTF-8 can hold; raises RequestError for anything else."""
    if not isinstance(value, str):
        raise wrong(name, "a text", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(name, "a text without half characters (lone surrogates)", value) from None
    return value


def whole_numbers(name: str, values: object, allowed: str = "whole numbers") -> tuple[int, ...]:
    """Return ``values``, whole numbers in whatever they came in, as ints; raises RequestError for anything else."""
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes, bytearray, Mapping)):
        numbers = tuple(values)
        kinds = set(map(type, numbers))
        if kinds <= {int}:
            return numbers
        try:
            found = tuple(map(operator.index, numbers))
        except TypeError:
            kinds.add(bool)
        if bool not in kinds:
            return found
    raise wrong(name, allowed, values)


def prompt_ids(name: str, values: object, allowed: str = "token ids (whole numbers, not text)") -> tuple[int, ...]:
    """Return a prompt's token ids; raises RequestError for what aren't any, a set's included: it has no order."""
    if isinstance(values, AbstractSet):
        raise wrong(name, allowed, values)
    return whole_numbers(name, values, allowed)
