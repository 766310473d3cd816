"""How many weights a recurrent layer's mixer has. A rule takes the fields, the state and the model's width."""

from __future__ import annotations

import math
from collections.abc import Callable

from kvist.spec.fields import Fields
from kvist.spec.state import RecurrentState

Rule = Callable[[Fields, RecurrentState, int], int]


def _mamba1(fields: Fields, state: RecurrentState, width: int, kernel: int, rank: str, norms: bool) -> int:
    channels, size = state.num_heads, state.head_elements
    stated = fields.value(rank)
    dt_rank = -(-width // 16) if stated in (None, "auto") else fields.count(rank)
    conv = channels * kernel + (channels if _has_conv_bias(fields) else 0)
    projections = (
        width * 2 * channels + channels * (dt_rank + 2 * size) + dt_rank * channels + channels + channels * width
    )
    biases = 2 * channels + width if fields.flag("mamba_proj_bias") or fields.flag("use_bias") else 0
    return conv + projections + biases + channels * size + channels + (dt_rank + 2 * size if norms else 0)


def mamba(fields: Fields, state: RecurrentState, width: int) -> int:
    """Mamba 1."""
    return _mamba1(fields, state, width, fields.count("conv_kernel"), "time_step_rank", norms=False)


def jamba(fields: Fields, state: RecurrentState, width: int) -> int:
    """Mamba 1 with norms on dt, B and C."""
    return _mamba1(fields, state, width, fields.count("mamba_d_conv"), "mamba_dt_rank", norms=True)


def _has_conv_bias(fields: Fields) -> bool:
    return fields.flag("mamba_conv_bias") or fields.flag("use_conv_bias")


def _mamba2(fields: Fields, state: RecurrentState, width: int, has_norm: bool) -> int:
    inner = state.num_heads * state.head_channels
    channels = inner + state.num_groups * state.group_channels
    projected = inner + channels + state.num_heads
    conv = channels * (state.conv_columns + 1) + (channels if _has_conv_bias(fields) else 0)
    has_bias = fields.flag("mamba_proj_bias") or fields.flag("use_bias") or fields.flag("add_bias_linear")
    biases = projected + width if has_bias else 0
    return width * projected + conv + 3 * state.num_heads + inner * width + biases + (inner if has_norm else 0)


def mamba2(fields: Fields, state: RecurrentState, width: int) -> int:
    """Mamba 2 with its gated norm."""
    return _mamba2(fields, state, width, has_norm=True)


def falcon_h1(fields: Fields, state: RecurrentState, width: int) -> int:
    """Mamba 2, the norm only where the config asks for it."""
    return _mamba2(fields, state, width, has_norm=fields.flag("mamba_rms_norm"))


def gated_delta_net(_fields: Fields, state: RecurrentState, width: int) -> int:
    """Queries, keys, values and an output gate; two numbers a head from the input; a norm over a head's value."""
    inner = state.num_heads * state.head_channels
    channels = inner + state.num_groups * state.group_channels
    projections = width * (channels + inner + 2 * state.num_heads) + inner * width
    return projections + channels * (state.conv_columns + 1) + 2 * state.num_heads + state.head_channels


def kimi_delta(_fields: Fields, state: RecurrentState, width: int) -> int:
    """Queries, keys, values; two low-rank gates; a decay a head."""
    dim = state.head_channels // 3
    inner = state.num_heads * dim
    projections = width * 3 * inner + inner * width + 2 * (width * dim + dim * inner) + width * state.num_heads
    return projections + 3 * inner * (state.conv_columns + 1) + inner + state.num_heads + dim


def lightning(_fields: Fields, state: RecurrentState, width: int) -> int:
    """Queries, keys, values, an output gate and a norm (MiniMax)."""
    dim = math.isqrt(state.head_elements)
    inner = state.num_heads * dim
    return width * 3 * inner + 2 * inner * width + inner


def short_convolution(fields: Fields, state: RecurrentState, width: int) -> int:
    """Two gates and the convolution between them (LFM2)."""
    biases = 5 * width if fields.flag("conv_bias") else 0
    return width * 3 * width + width * width + width * (state.conv_columns + 1) + biases


def linear_recurrent_unit(fields: Fields, state: RecurrentState, width: int) -> int:
    """Two branches, a convolution, and two gates that are block-diagonal by head (RecurrentGemma)."""
    channels = state.num_heads
    block = width // fields.count("num_attention_heads")
    gates = 2 * (channels * block + channels) + channels
    return 2 * (width * channels + channels) + channels * width + width + channels * (state.conv_columns + 2) + gates
