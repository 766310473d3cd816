"""What a recurrent layer keeps, from the config's keys. A rule takes the fields and returns one layer's state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kvist.errors import SpecError
from kvist.spec.attention import HEADS, WIDTH
from kvist.spec.fields import Fields
from kvist.spec.state import RecurrentState

Rule = Callable[[Fields], RecurrentState]


def _mamba1(expand: str, state: str, kernel: str, fields: Fields) -> RecurrentState:
    """Every channel is a head of its own with ``state`` numbers, and goes through the convolution."""
    channels = fields.count(expand) * fields.count(*WIDTH)
    return RecurrentState(channels, fields.count(state), fields.count(kernel) - 1, head_channels=1)


mamba = partial(_mamba1, "expand", "state_size", "conv_kernel")
jamba = partial(_mamba1, "mamba_expand", "mamba_d_state", "mamba_d_conv")


def _mamba2(keys: tuple[str, str, str, str, str], expand: str, fields: Fields) -> RecurrentState:
    """Heads of head_dim x state numbers; the convolution also takes B and C of every group.

    ``keys`` name heads, head width, groups, state size and kernel. A head width that is absent or "auto" follows
    from the inner width.
    """
    heads, head_dim, groups, state, kernel = keys
    num_heads = fields.count(heads)
    stated = None if fields.value(head_dim) in (None, "auto") else fields.count(head_dim)
    inner = fields.maybe_count("mamba_d_ssm") or fields.count(expand) * fields.count(*WIDTH)
    if stated is None and inner % num_heads:
        raise SpecError(f"{heads} {num_heads} in the config doesn't divide the recurrence's inner width {inner}")
    dim, state_size = stated or inner // num_heads, fields.count(state)
    return RecurrentState(
        num_heads,
        dim * state_size,
        fields.count(kernel) - 1,
        head_channels=dim,
        num_groups=fields.count(groups),
        group_channels=2 * state_size,
    )


_MAMBA2 = ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")
_NEMOTRON_H = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
_BAMBA = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
_ZAMBA2 = ("n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_d_state", "mamba_d_conv")

mamba2 = partial(_mamba2, _MAMBA2, "expand")
nemotron_h = partial(_mamba2, _NEMOTRON_H, "expand")
bamba = partial(_mamba2, _BAMBA, "mamba_expand")
zamba2 = partial(_mamba2, _ZAMBA2, "mamba_expand")


def gated_delta_net(fields: Fields) -> RecurrentState:
    """Value heads of key x value numbers; queries and keys of every key head go through the convolution too."""
    num_heads = fields.maybe_count(*HEADS) or 1
    num_keys = fields.maybe_count("linear_num_key_heads") or num_heads
    key_dim = fields.maybe_count("linear_key_head_dim") or 3 * fields.count(*WIDTH) // 4 // num_keys
    value_dim = fields.maybe_count("linear_value_head_dim") or 2 * key_dim
    return RecurrentState(
        fields.maybe_count("linear_num_value_heads") or num_heads,
        key_dim * value_dim,
        fields.count("linear_conv_kernel_dim") - 1,
        head_channels=value_dim,
        num_groups=num_keys,
        group_channels=2 * key_dim,
    )


def kimi_delta(fields: Fields) -> RecurrentState:
    """Heads of dim x dim numbers, kept in f32 always; queries, keys and values each have a convolution."""
    nested = fields.nested("linear_attn_config")
    num_heads = nested.maybe_count("num_heads") or fields.count("linear_num_heads")
    dim = nested.maybe_count("head_dim") or fields.count("linear_head_dim")
    kernel = nested.maybe_count("short_conv_kernel_size") or fields.count("linear_conv_kernel_dim")
    return RecurrentState(num_heads, dim * dim, kernel - 1, head_channels=3 * dim, is_always_f32=True)


def lightning(fields: Fields) -> RecurrentState:
    """Linear attention: heads of head_dim x head_dim numbers, no convolution (MiniMax)."""
    num_heads = fields.count(*HEADS)
    dim = fields.maybe_count("head_dim") or fields.count(*WIDTH) // num_heads
    return RecurrentState(num_heads, dim * dim)


def short_convolution(fields: Fields) -> RecurrentState:
    """Only the convolution's columns, one channel per unit of width (LFM2)."""
    return RecurrentState(fields.count(*WIDTH), 0, fields.count("conv_L_cache") - 1, head_channels=1)


def linear_recurrent_unit(fields: Fields) -> RecurrentState:
    """A number a channel and a convolution over the channels (RecurrentGemma)."""
    channels = fields.maybe_count("lru_width") or fields.count(*WIDTH)
    return RecurrentState(channels, 1, fields.count("conv1d_width") - 1, head_channels=1, is_always_f32=True)
