"""What weights take by the type that they are kept in.

Bits a parameter, scales and zero points included. Quantised types leave norms and, in published checkpoints,
embeddings in 16 bits: ``weight_bytes`` knows which parts a type reaches.
"""

from __future__ import annotations

from fractions import Fraction

from kvist.errors import SpecError
from kvist.spec.parameters import Parameters

BITS: dict[str, Fraction] = {
    "f32": Fraction(32),
    "bf16": Fraction(16),
    "f16": Fraction(16),
    "fp8": Fraction(8) + Fraction(32, 128 * 128),  # a 4-byte scale for each 128 x 128
    "int8": Fraction(8),
    "q8": Fraction(34 * 8, 32),  # a 16-bit scale for each 32
    "q4": Fraction(20 * 8, 32),  # kvist's 4-bit form: a 16-bit scale and minimum for each 32
    "int4": Fraction(4) + Fraction(20, 128),  # groups of 128 with a 16-bit scale and a 4-bit zero point
    "mxfp4": Fraction(17 * 8, 32),  # an 8-bit scale for each 32
}
_KEEPS_EMBEDDINGS = {"fp8", "int4"}
_ONLY_EXPERTS = {"mxfp4"}


def check_weight_type(name: str, option: str) -> None:
    """Raise SpecError unless ``name`` is known."""
    if name not in BITS:
        raise SpecError(f'unknown weight type "{name}" for {option}; known: {", ".join(BITS)}')


def weight_bytes(parameters: Parameters, weight_type: str, rest_type: str = "bf16") -> int:
    """Return the bytes of all weights.

    mxfp4 reaches the experts alone, as published checkpoints have it, fp8 and int4 leave embedding and output in
    ``rest_type``; the other types hold everything.
    """
    bits, rest_bits = BITS[weight_type], BITS[rest_type]
    tables = parameters.embedding + parameters.output
    if weight_type in _ONLY_EXPERTS and parameters.experts:
        return _bytes(parameters.experts * bits + (parameters.total - parameters.experts) * rest_bits)
    if weight_type in _KEEPS_EMBEDDINGS:
        return _bytes((parameters.total - tables) * bits + tables * rest_bits)
    return _bytes(parameters.total * bits)


def step_bytes(parameters: Parameters, weight_type: str, num_sequences: int) -> float:
    """Return the bytes of weights that a decode step of ``num_sequences`` tokens reads.

    An embedding with an output matrix beside it is only looked up. Of n experts of which a token uses k, a step of B
    tokens touches n (1 - (1 - k/n)^B), if tokens choose independently.
    """
    bits = BITS[weight_type]
    rest_bits = BITS["bf16"] if weight_type in _ONLY_EXPERTS and parameters.experts else bits
    tables = parameters.output or parameters.embedding
    missed = (1 - parameters.experts_per_token / parameters.num_experts) ** num_sequences
    return float(parameters.body + tables) * float(rest_bits) / 8 + parameters.experts * (1 - missed) * float(bits) / 8


def _bytes(bits: Fraction) -> int:
    return -(-bits.numerator // (bits.denominator * 8))
