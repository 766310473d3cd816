"""Rotary frequencies from a config's rope settings (Su et al., 2021), fixed when the model is loaded.

Powers are taken in decimal arithmetic of 40 digits and rounded once to f32, so that no library's ``pow`` decides a bit.
Scaling follows transformers' ``modeling_rope_utils``: none, linear, llama3; ``factors`` are a GGUF file's finished
divisors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from math import inf, isfinite

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.files import quote
from kvist.errors import SpecError, UnsupportedError

SCALINGS = ("default", "linear", "llama3", "factors")
_DIGITS = Context(prec=40)
_TWO_PI = 6.283185307179586


@dataclass(frozen=True)
class RopeSpec:
    """``dim`` of a head's dims are rotated; ``settings`` are the scaling's own, under Hugging Face's names."""

    dim: int
    base: float
    scaling: str = "default"
    settings: tuple[tuple[str, object], ...] = ()

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise UnsupportedError(
                f"rope scaling {quote(self.scaling)} isn't supported; supported: {', '.join(SCALINGS)}"
            )
        if self.dim < 2 or self.dim % 2 or self.base <= 0:
            raise SpecError(
                f"rotary positions need an even width of at least 2 and a base above 0, got {self.dim} and {self.base}"
            )

    def setting(self, name: str) -> float:
        number = dict(self.settings).get(name)
        if not isinstance(number, int | float) or isinstance(number, bool) or not 0 < number < inf:
            raise SpecError(f"rope scaling {self.scaling} needs a number above 0 for {name}, got {number!r}")
        return float(number)

    def factors(self) -> npt.NDArray[np.float64]:
        """The divisors of a GGUF file's tensor, one for each pair of dims."""
        found = dict(self.settings).get("factors")
        numbers = found if isinstance(found, list) and all(type(number) in (int, float) for number in found) else []
        if len(numbers) != self.dim // 2 or not all(0 < number < inf for number in numbers):
            raise SpecError(f"rope scaling factors needs {self.dim // 2} numbers above 0, got {len(numbers)}")
        return np.array(numbers, np.float64)


def rope_from_config(config: Mapping[str, object], head_dim: int) -> RopeSpec:
    """Return the rope settings of a config.json, written as transformers 4 or 5 writes them."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise SpecError(f"rope_scaling must be an object, got {scaling!r}")
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    base = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    part = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    for name, number in (("rope_theta", base), ("partial_rotary_factor", part)):
        if not isinstance(number, int | float) or isinstance(number, bool) or not isfinite(number):
            raise SpecError(f"{name} must be a finite number, got {number!r}")
    return RopeSpec(int(head_dim * float(part)), float(base), kind, tuple(sorted(scaling.items())))


def frequencies(rope: RopeSpec) -> npt.NDArray[np.float32]:
    """Return the radians a token for each pair of dims, [dim / 2]."""
    base = Decimal(repr(rope.base))
    exponents = [_DIGITS.divide(Decimal(-2 * i), Decimal(rope.dim)) for i in range(rope.dim // 2)]
    plain = np.array([float(_DIGITS.power(base, exponent)) for exponent in exponents])
    if rope.scaling == "linear":
        plain = plain / rope.setting("factor")
    elif rope.scaling == "llama3":
        plain = _llama3(plain, rope)
    elif rope.scaling == "factors":
        plain = plain / rope.factors()
    return plain.astype(np.float32)


def _llama3(plain: npt.NDArray[np.float64], rope: RopeSpec) -> npt.NDArray[np.float64]:
    """Long wavelengths are divided by the factor, short ones kept, those between interpolated (Llama 3.1)."""
    factor, low, high = rope.setting("factor"), rope.setting("low_freq_factor"), rope.setting("high_freq_factor")
    context = rope.setting("original_max_position_embeddings")
    turns = context * plain / _TWO_PI
    blend = (turns - low) / (high - low)
    between = (1 - blend) * plain / factor + blend * plain
    scaled: npt.NDArray[np.float64] = np.where(turns < low, plain / factor, np.where(turns > high, plain, between))
    return scaled
