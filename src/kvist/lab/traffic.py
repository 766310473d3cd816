"""What one decode step has to read and what a prefill has to multiply: the numerators of the benchmark's shares.

Only what can't be avoided counts: no padding of panels or blocks, a matrix once, one row of the embedding. Knows the
packed forms of weights; nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvist.kernels.layout import GROUP, GROUP_BYTES, PANEL_ROWS
from kvist.kernels.matmul import QUANTISED
from kvist.model.decoder import Decoder
from kvist.model.layers import LayerWeights, Norm
from kvist.model.weights import Matrix
from kvist.spec.cache import CacheSpec, layer_groups
from kvist.spec.model import ModelSpec

_F32_BYTES = 4


def bytes_per_step(decoder: Decoder, cache: CacheSpec, num_tokens: int) -> int:
    """Bytes of a decode step whose query sees ``num_tokens`` tokens, itself included: weights, keys and values."""
    return weight_bytes(decoder) + kv_bytes(decoder.spec, cache, num_tokens)


def kv_bytes(model: ModelSpec, cache: CacheSpec, num_tokens: int) -> int:
    """Bytes of the keys and values, scales included, that the last of ``num_tokens`` tokens attends to."""
    return sum(group.token_bytes * group.num_seen_tokens(num_tokens) for group in layer_groups(model, cache))


def weight_bytes(decoder: Decoder) -> int:
    """Bytes of the weights that one token needs: every matrix once, vectors in f32, one row of each table."""
    weights, width = decoder.weights, decoder.spec.width
    matrices = sum(matrix_bytes(matrix) for matrix in [*_layer_matrices(weights.layers), weights.output])
    norms = sum(_norm_bytes(norm, width) for norm in _norms(weights.layers, weights.final_norm))
    head_norms = sum(
        _F32_BYTES * layer.k_dim * ((w.q_norm >= 0) + (w.k_norm >= 0))
        for layer, w in zip(decoder.spec.layers, weights.layers, strict=True)
    )
    position = _F32_BYTES * width if weights.positions >= 0 else 0
    return matrices + norms + head_norms + position + _row_bytes(weights.embedding)


def matrix_bytes(matrix: Matrix) -> int:
    """Bytes of a matrix's weights, scales and bias without the zeros that fill its last panel and group."""
    bias = _F32_BYTES * matrix.num_rows if matrix.bias >= 0 else 0
    return matrix.num_rows * _row_bytes(matrix) + bias


def prefill_operations(decoder: Decoder, num_tokens: int) -> int:
    """Multiplications and additions by weights of a prompt of ``num_tokens``; only its last token needs the output."""
    body = sum(matrix.num_rows * matrix.width for matrix in _layer_matrices(decoder.weights.layers))
    output = decoder.weights.output
    return 2 * (body * num_tokens + output.num_rows * output.width)


def prefill_bytes(decoder: Decoder, cache: CacheSpec, num_tokens: int) -> int:
    """Bytes that the passes of a prompt read: in each the weights once, and the keys and values up to its last row."""
    ends = [*range(decoder.step_tokens, num_tokens, decoder.step_tokens), num_tokens]
    return sum(bytes_per_step(decoder, cache, end) for end in ends)


def has_integer_dots(decoder: Decoder) -> bool:
    """Whether every layer's matrices are multiplied as integers, so that a share of that peak means something."""
    return all(matrix.form in QUANTISED for matrix in _layer_matrices(decoder.weights.layers))


def _row_bytes(matrix: Matrix) -> int:
    return matrix.width * GROUP_BYTES[matrix.form] // (GROUP * PANEL_ROWS)


def _layer_matrices(layers: list[LayerWeights]) -> Iterator[Matrix]:
    for layer in layers:
        for placed in (layer.qkv, layer.attention_output, layer.up, layer.down):
            yield from (matrix for matrix, _ in placed)


def _norms(layers: list[LayerWeights], final: Norm) -> Iterator[Norm]:
    for layer in layers:
        yield layer.attention_norm
        yield layer.mlp_norm
    yield final


def _norm_bytes(norm: Norm, width: int) -> int:
    return _F32_BYTES * width * (2 if norm.bias >= 0 else 1)
