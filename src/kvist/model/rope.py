"""Rotary frequencies from a config's rope settings (Su et al., 2021), fixed when the model is loaded.

Powers and logarithms are taken in decimal arithmetic of 40 digits and rounded once, so that no library's ``pow``
decides a bit. Scaling follows transformers' ``modeling_rope_utils``: none, linear, dynamic, llama3, yarn, longrope;
where that looks at a sequence's length (dynamic, longrope), this takes the context that the model is opened with, so
that a key's bits never depend on what comes later. ``factors`` are a GGUF file's finished divisors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from math import ceil, floor, inf
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.files import quote
from kvist.errors import SpecError, UnsupportedError

SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "factors")
BY_CONTEXT = ("dynamic", "longrope")
"""Those that look at the context a model is opened with."""
LEAST, MOST = 1e-6, 1e12
"""No setting of a scaling is smaller or larger; what is, is damage, and its powers and quotients leave a float."""
_OTHER_NAMES = {"su": "longrope", "ntk": "dynamic"}
_LARGEST_BASE = 1e30
_DIGITS = Context(prec=40)
_TWO_PI = 6.283185307179586


@dataclass(frozen=True)
class RopeSpec:
    """``dim`` of a head's dims are rotated; ``settings`` are the scaling's own, under Hugging Face's names.

    ``opened_with``: the context that the model was opened with, where that isn't its own and the scaling looks at it.
    """

    dim: int
    base: float
    scaling: str = "default"
    settings: tuple[tuple[str, object], ...] = ()
    opened_with: int | None = None

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise UnsupportedError(
                f"rope scaling {quote(self.scaling)} isn't supported; supported: {', '.join(SCALINGS)}"
            )
        if self.dim < 2 or self.dim % 2 or not 1 <= self.base < inf:
            raise SpecError(
                "rotary positions need an even width of at least 2 and a finite base of at least 1, "
                f"got {self.dim} and {self.base}"
            )

    @property
    def original_context(self) -> float:
        """The context that the model was first trained with."""
        return self.setting("original_max_position_embeddings")

    @property
    def context(self) -> float:
        """The context that the rotation is made for."""
        return self.opened_with or self.longest_context

    @property
    def longest_context(self) -> float:
        """The context that the model says it was stretched to."""
        return self.setting("max_position_embeddings")

    def for_context(self, context: int) -> RopeSpec:
        """Return the rotation of a model that is opened with so many tokens: this one, unless it looks at them."""
        if self.scaling not in BY_CONTEXT or context == self.context:
            return self
        return replace(self, opened_with=context)

    def has(self, name: str) -> bool:
        return dict(self.settings).get(name) is not None

    def is_set(self, name: str) -> bool:
        """Whether a setting is there, and not 0."""
        return bool(dict(self.settings).get(name))

    def setting(self, name: str, default: float | None = None) -> float:
        """A number between ``LEAST`` and ``MOST``; the ``default`` where there is none."""
        number = dict(self.settings).get(name)
        number = default if number is None else number
        if not _is_between(number):
            raise self.wrong(f"a number from {LEAST:g} to {MOST:g}", name, number)
        return float(number)

    def factors(self, name: str = "factors") -> npt.NDArray[np.float64]:
        """Divisors, one for each pair of dims."""
        found = dict(self.settings).get(name)
        numbers, rule = found if isinstance(found, list) else [], f"{self.dim // 2} numbers from {LEAST:g} to {MOST:g}"
        if len(numbers) != self.dim // 2:
            raise SpecError(f"rope scaling {self.scaling} needs {rule} as {name}, got {len(numbers)}")
        for place, number in enumerate(numbers):
            if not _is_between(number):
                raise self.wrong(rule, f"{name}, number {place}", number)
        return np.array(numbers, np.float64)

    def wrong(self, rule: str, name: str, number: object) -> SpecError:
        """The error to raise for a setting that isn't as the scaling needs it."""
        return SpecError(f"rope scaling {self.scaling} needs {rule} for {name}, got {quote(repr(number))[1:-1]}")


def _is_between(number: object) -> TypeGuard[int | float]:
    return type(number) in (int, float) and LEAST <= number <= MOST  # type: ignore[operator]


def rope_from_config(
    config: Mapping[str, object],
    head_dim: int,
    *,
    kind: str = "",
    default_base: float = 10000.0,
    default_part: float = 1.0,
    keys: tuple[str, str] = ("rope_theta", "partial_rotary_factor"),
) -> RopeSpec:
    """Return the rope settings of a config.json, written as transformers 4 or 5 writes them.

    ``kind``: of layers of this kind, where these have settings of their own ("sliding_attention"). ``keys`` are the
    older keys of base and rotated part, with their defaults.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise SpecError(f"rope_scaling must be an object, got {scaling!r}")
    own = scaling.get(kind or "full_attention")
    scaling = own if isinstance(own, Mapping) else scaling
    name = str(scaling.get("rope_type") or scaling.get("type") or "default")
    base = scaling.get("rope_theta", config.get(keys[0], default_base))
    part = scaling.get("partial_rotary_factor", config.get(keys[1], default_part))
    if type(base) not in (int, float) or not 1 <= base <= _LARGEST_BASE:
        raise SpecError(f"{keys[0]} must be a number from 1 to {_LARGEST_BASE:g}, got {quote(repr(base))[1:-1]}")
    if type(part) not in (int, float) or not 0 < part <= 1:
        raise SpecError(f"{keys[1]} must be a number above 0 and at most 1, got {quote(repr(part))[1:-1]}")
    dim = int(head_dim * part + 1e-6)  # 176 * (30 / 176) is a hair less than 30
    if dim < 2 or dim % 2:
        raise SpecError(f"{keys[1]} {part} rotates {dim} of a head's {head_dim} dims; an even number of them is needed")
    settings = {"max_position_embeddings": config.get("max_position_embeddings"), **scaling}
    original = config.get("original_max_position_embeddings", scaling.get("original_max_position_embeddings"))
    settings["original_max_position_embeddings"] = original or settings["max_position_embeddings"]
    return RopeSpec(dim, float(base), _OTHER_NAMES.get(name, name), tuple(sorted(settings.items())))


def frequencies(rope: RopeSpec) -> npt.NDArray[np.float32]:
    """Return the radians a token for each pair of dims, [dim / 2]."""
    base = Decimal(repr(rope.base))
    if rope.scaling == "dynamic":
        base = _dynamic_base(base, rope)
    exponents = [_DIGITS.divide(Decimal(-2 * i), Decimal(rope.dim)) for i in range(rope.dim // 2)]
    plain = np.array([float(_DIGITS.power(base, exponent)) for exponent in exponents])
    if rope.scaling == "linear":
        plain = plain / rope.setting("factor")
    elif rope.scaling == "llama3":
        plain = _llama3(plain, rope)
    elif rope.scaling == "yarn":
        plain = _yarn(plain, rope)
    elif rope.scaling == "longrope":
        is_long = rope.context > rope.original_context
        plain = plain / rope.factors("long_factor" if is_long else "short_factor")
    elif rope.scaling == "factors":
        plain = plain / rope.factors()
    return plain.astype(np.float32)


def attention_factor(rope: RopeSpec) -> float:
    """What cosines and sines are multiplied with (yarn and longrope: about how far the context was stretched).

    The model's own, however short the context that it's opened with: it was trained so.
    """
    if rope.scaling not in ("yarn", "longrope"):
        return 1.0
    if rope.has("attention_factor"):
        return rope.setting("attention_factor")
    factor = _stretch(rope)
    if rope.scaling == "longrope":
        if rope.original_context < 2:
            raise rope.wrong("2 or more", "original_max_position_embeddings", rope.original_context)
        ratio = _DIGITS.divide(_log(max(factor, 1.0)), _log(rope.original_context))
        return float(_DIGITS.sqrt(1 + ratio))
    if rope.is_set("mscale") and rope.is_set("mscale_all_dim"):
        return yarn_scale(factor, rope.setting("mscale")) / yarn_scale(factor, rope.setting("mscale_all_dim"))
    return yarn_scale(factor, 1.0)


def _stretch(rope: RopeSpec) -> float:
    """How many times longer the model's context is than the original one, as stated or as the two say."""
    return rope.setting("factor", rope.longest_context / rope.original_context)


def _log(number: float) -> Decimal:
    return _DIGITS.ln(Decimal(repr(number)))


def yarn_scale(factor: float, slope: float) -> float:
    return 1.0 if factor <= 1 else float(_DIGITS.multiply(Decimal(repr(0.1 * slope)), _log(factor)) + 1)


def _dynamic_base(base: Decimal, rope: RopeSpec) -> Decimal:
    """The base for the whole context (bloc97's NTK scaling): within the original one it is the config's own."""
    factor = rope.setting("factor")
    stretch = factor * rope.context / rope.original_context - (factor - 1)
    if stretch <= 1 or rope.dim < 4:
        return base
    power = _DIGITS.divide(Decimal(rope.dim), Decimal(rope.dim - 2))
    return _DIGITS.multiply(base, _DIGITS.power(Decimal(repr(stretch)), power))


def _yarn(plain: npt.NDArray[np.float64], rope: RopeSpec) -> npt.NDArray[np.float64]:
    """Pairs that turn often in the original context are kept, others divided, a ramp between (Peng et al., 2023)."""

    if rope.base <= 1:
        raise rope.wrong("a number above 1", "rope_theta", rope.base)

    def pair_that_turns(turns: float) -> float:
        ratio = _log(rope.original_context / (turns * _TWO_PI))
        return float(_DIGITS.divide(rope.dim * ratio, 2 * _log(rope.base)))

    low, high = pair_that_turns(rope.setting("beta_fast", 32.0)), pair_that_turns(rope.setting("beta_slow", 1.0))
    if dict(rope.settings).get("truncate", True):
        low, high = floor(low), ceil(high)
    low, high = float(max(low, 0)), float(min(high, rope.dim - 1))
    ramp = np.clip((np.arange(rope.dim // 2) - low) / (high - low if high != low else 0.001), 0, 1)
    divided: npt.NDArray[np.float64] = plain / _stretch(rope) * ramp + plain * (1 - ramp)
    return divided


def _llama3(plain: npt.NDArray[np.float64], rope: RopeSpec) -> npt.NDArray[np.float64]:
    """Long wavelengths are divided by the factor, short ones kept, those between interpolated (Llama 3.1)."""
    factor, low, high = rope.setting("factor"), rope.setting("low_freq_factor"), rope.setting("high_freq_factor")
    if low >= high:
        raise rope.wrong(f"a number below high_freq_factor {high:g}", "low_freq_factor", low)
    context = rope.setting("original_max_position_embeddings")
    turns = context * plain / _TWO_PI
    blend = (turns - low) / (high - low)
    between = (1 - blend) * plain / factor + blend * plain
    scaled: npt.NDArray[np.float64] = np.where(turns < low, plain / factor, np.where(turns > high, plain, between))
    return scaled
