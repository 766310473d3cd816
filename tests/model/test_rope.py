"""Rope settings that can't be: one line that names the value and what is allowed, and no warning of NumPy's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from kvist.errors import SpecError
from kvist.model.rope import RopeSpec, attention_factor, frequencies, rope_from_config

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FACTORS = {"rope_type": "factors", "factors": [1.0] * 8}
LONGROPE = {"rope_type": "longrope", "long_factor": [1.0] * 8, "short_factor": [1.0] * 8}


def computed(config: dict[str, Any], head_dim: int = 16) -> np.ndarray[Any, Any]:
    """Frequencies and factor, as a model that is loaded computes them; every warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rope = rope_from_config({"max_position_embeddings": 640, **config}, head_dim)
        return frequencies(rope) * np.float32(attention_factor(rope))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a thousand times the head": ({"partial_rotary_factor": 1000.0}, "partial_rotary_factor .* above 0 and at most 1"),
    "twice the head": ({"rope_parameters": {"partial_rotary_factor": 2.0}}, "at most 1, got 2.0"),
    "none of the head": ({"partial_rotary_factor": 0}, "above 0 and at most 1, got 0"),
    "no part": ({"partial_rotary_factor": float("nan")}, "at most 1, got nan"),
    "an odd part": ({"partial_rotary_factor": 0.2}, "0.2 rotates 3 of a head's 16 dims; an even number"),
    "half a pair": ({"partial_rotary_factor": 0.1}, "0.1 rotates 1 of"),
    "a tiny base": ({"rope_theta": 1e-300}, r"rope_theta must be a number from 1 to 1e\+30, got 1e-300"),
    "a denormal base": ({"rope_theta": 1e-320}, "rope_theta must be a number from 1"),
    "a base of many digits": ({"rope_theta": 10**90}, "rope_theta must be a number from 1"),
    "a flag for a base": ({"rope_theta": True}, "rope_theta must be a number from 1 .* got True"),
    "linear to nothing": (
        {"rope_scaling": {"rope_type": "linear", "factor": 1e-300}},
        r"rope scaling linear needs a number from 1e-06 to 1e\+12 for factor, got 1e-300",
    ),
    "a factor of many digits": ({"rope_scaling": {"rope_type": "linear", "factor": 10**90}}, "for factor, got 1000"),
    "yarn without a base": ({"rope_theta": 1, "rope_scaling": YARN}, "above 1 for rope_theta, got 1"),
    "yarn beyond floats": ({"rope_scaling": {**YARN, "beta_fast": 1e-320}}, "for beta_fast, got 1e-320"),
    "yarn at both ends": ({"rope_scaling": {**YARN, "beta_fast": 1e-308, "beta_slow": 1e308}}, "for beta_fast"),
    "longrope of one token": ({"rope_scaling": {**LONGROPE, "original_max_position_embeddings": 1}},
                              "2 or more for original_max_position_embeddings, got 1"),
    "longrope of less": ({"rope_scaling": {**LONGROPE, "original_max_position_embeddings": 0.5}}, "2 or more"),
    "llama3 the wrong way": ({"rope_scaling": {**LLAMA3, "low_freq_factor": 8.0}}, "below high_freq_factor 4 .* got 8"),
    "llama3 without a ramp": ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "below high_freq_factor 1"),
    "a denormal divisor": ({"rope_scaling": {**FACTORS, "factors": [1.0] * 7 + [1e-45]}}, "number 7, got 1e-45"),
    "a divisor of text": ({"rope_scaling": {**FACTORS, "factors": [1.0] * 7 + ["x\n"]}}, "number 7, got 'x"),
    "too few divisors": ({"rope_scaling": {**FACTORS, "factors": [1.0] * 7}}, "needs 8 numbers .* as factors, got 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_can_not_be_is_refused_in_a_line(name: str) -> None:
    config, expected = WRONG[name]
    with pytest.raises(SpecError, match=expected) as error:
        computed(config)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("scaling", [None, YARN, LLAMA3, FACTORS, LONGROPE, {"rope_type": "dynamic", "factor": 1e12}])
@pytest.mark.parametrize("base", [1.0000000000000002, 2, 1e30])
def test_what_is_allowed_stays_within_floats(scaling: dict[str, Any] | None, base: float) -> None:
    assert np.isfinite(computed({"rope_theta": base, "rope_scaling": scaling})).all()


def test_a_part_that_a_quotient_misses_by_a_hair() -> None:
    assert 176 * (30 / 176) < 30
    assert rope_from_config({"partial_rotary_factor": 30 / 176}, 176).dim == 30


@pytest.mark.parametrize(("dim", "base"), [(0, 1e4), (3, 1e4), (16, 0.5), (16, float("inf")), (16, float("nan"))])
def test_a_rotation_that_can_not_be(dim: int, base: float) -> None:
    with pytest.raises(SpecError, match="rotary positions need"):
        RopeSpec(dim, base)
