"""How many tokens a sliding layer sees, itself included, by the rules of the reference implementation.

A rule takes the config's fields and returns a window, or None where sliding layers see everything.
"""

from __future__ import annotations

from collections.abc import Callable

from kvist.spec.fields import Fields

Rule = Callable[[Fields], "int | None"]


def stated(fields: Fields) -> int | None:
    """The window as the config has it; a null switches it off."""
    return fields.maybe_count("sliding_window", "attention_window_size", "window_size")


def if_used(fields: Fields) -> int | None:
    """The window only where use_sliding_window is true (Qwen)."""
    return stated(fields) if fields.flag("use_sliding_window") else None


def gemma(fields: Fields) -> int | None:
    """The window, of which a bidirectional model keeps the half that lies behind."""
    window = stated(fields)
    is_bidirectional = fields.value("use_bidirectional_attention") in (True, "all")
    return window // 2 + 1 if window is not None and is_bidirectional else window


def mimo(fields: Fields) -> int | None:
    """The window, or one more than the earlier tokens that sliding_window_size counts."""
    before = fields.maybe_count("sliding_window_size")
    return stated(fields) if before is None else before + 1
