"""Settings of a config that families read as switches, checked as they are taken out."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from kvist.checkpoint.files import quote
from kvist.errors import SpecError, UnsupportedError

ACTIVATIONS = {
    "silu": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
}


def number_setting(config: Mapping[str, object], key: str, default: float) -> float:
    """A number above 0."""
    number = config.get(key, default)
    if not isinstance(number, int | float) or isinstance(number, bool) or not 0 < number < inf:
        raise SpecError(f"{key} must be a number above 0, got {number!r}")
    return float(number)


def activation_setting(config: Mapping[str, object], key: str, default: str) -> str:
    """The kernels' name of an activation; raises UnsupportedError for one that isn't in ``ACTIVATIONS``."""
    name = str(config.get(key) or default)
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"activation {quote(name)} isn't supported; supported: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
