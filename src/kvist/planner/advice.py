"""What would make it fit: each single change that helps, the gentlest first.

Gentle means what it does to answers: more devices nothing, int8 next to nothing, a shorter context and a window forget,
four bits cost quality. Within a kind, the smallest change that suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvist.errors import KvistError
from kvist.planner.plan import Plan

_TP_DEGREES = (2, 4, 8, 16)
_WINDOWS = (8192, 4096, 2048, 1024)


@dataclass(frozen=True)
class Advice:
    """A change, the options that make it, and the users (None: any number) and longest context that it gives."""

    change: str
    options: str
    users: int | None
    max_context: int | None
    fits: bool


def advice(plan: Plan) -> tuple[Advice, ...]:
    """Return the changes that give more users than ``plan`` has, those that suffice before those that only help."""
    if plan.budget is None or plan.users is None:
        return ()
    found = [made for suggest in _KINDS for made in _first_enough(plan, suggest(plan))]
    return tuple(sorted(found, key=lambda made: not made.fits))


def _first_enough(plan: Plan, trials: Iterator[tuple[str, str, dict[str, Any]]]) -> list[Advice]:
    """Return the first of ``trials`` with which the wish is met, else the best that helps at all."""
    best: Advice | None = None
    for change, options, fields in trials:
        made = _try(plan, change, options, fields)
        if made is None or _more(plan.users, made.users) is False:
            continue
        if made.fits:
            return [made]
        if best is None or _more(best.users, made.users):
            best = made
    return [best] if best else []


def _more(before: int | None, after: int | None) -> bool:
    return before is not None and (after is None or after > before)


def _try(plan: Plan, change: str, options: str, fields: dict[str, Any]) -> Advice | None:
    try:
        changed = Plan(plan.source, replace(plan.settings, **fields))
        enough = changed.fits if plan.settings.users is not None else changed.users is None or changed.users > 0
        return Advice(change, options, changed.users, changed.max_context, bool(enough))
    except KvistError:
        return None


def _more_devices(plan: Plan) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for degree in _TP_DEGREES:
        if degree > plan.settings.tensor_parallel:
            fields = {"tensor_parallel": degree, "num_devices": degree * plan.settings.num_replicas}
            yield f"{degree} devices, tensor parallel", f"--tp {degree}", fields


def _codec(name: str, words: str) -> Callable[[Plan], Iterator[tuple[str, str, dict[str, Any]]]]:
    def trials(plan: Plan) -> Iterator[tuple[str, str, dict[str, Any]]]:
        if plan.settings.cache.k_codec != name:
            yield words, f"--kv {name}", {"cache": replace(plan.settings.cache, codec=name, k=None, v=None)}

    return trials


def _weights(plan: Plan) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, words in (("fp8", "weights in 8 bits"), ("int4", "weights in 4 bits")):
        if plan.weight_type != name and plan.settings.weight_bytes is None:
            yield words, f"--weights {name}", {"weight_type": name}


def _shorter(plan: Plan) -> Iterator[tuple[str, str, dict[str, Any]]]:
    length = plan.max_context
    if plan.settings.users is not None and length is not None and 0 < length < plan.context:
        yield f"contexts of {length} tokens", f"--context {length}", {"context": length}


def _windows(plan: Plan) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for window in _WINDOWS if plan.settings.engine.name == "kvist" else ():
        if window < plan.context and (plan.settings.window is None or window < plan.settings.window):
            yield f"a window of {window} tokens", f"--window {window}", {"window": window}


_KINDS: tuple[Callable[[Plan], Iterator[tuple[str, str, dict[str, Any]]]], ...] = (
    _codec("int8", "keys and values in 8 bits"),
    _more_devices,
    _shorter,
    _windows,
    _weights,
    _codec("int4", "keys and values in 4 bits"),
)
