"""Weights that only one family has, as functions of its config: encoders, per-layer inputs, widths of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvist.spec.fields import Fields
from kvist.spec.model import LayerSpec

Count = Callable[[Fields], int]


def stated(key: str) -> Count:
    """Return the rule that reads a width from ``key``."""
    return lambda fields: fields.count(key)


def half(key: str) -> Count:
    """Return the rule that halves ``key``."""
    return lambda fields: fields.count(key) // 2


def four_times(key: str) -> Count:
    """Return the rule that reads ``key``, else takes four times the model's width."""
    return lambda fields: fields.maybe_count(key) or 4 * fields.count("hidden_size", "n_embd", "n_embed")


def first_of_list(key: str) -> Count:
    """Return the rule for a width that may be listed by layer, all the same."""

    def rule(fields: Fields) -> int:
        value = fields.value(key)
        return (fields.counts(key) or (0,))[0] if isinstance(value, (list, tuple)) else fields.count(key)

    return rule


def mpt_width(fields: Fields) -> int:
    """The expansion of the model's width."""
    return fields.count("expansion_ratio") * fields.count("d_model")


def lfm2_width(fields: Fields) -> int:
    """The width after the adjustment to two thirds and to a multiple, where the config asks for it (LFM2)."""
    width = fields.count("block_ff_dim", "intermediate_size")
    if fields.has("block_auto_adjust_ff_dim") and not fields.flag("block_auto_adjust_ff_dim"):
        return width
    multiplier, multiple = fields.value("block_ffn_dim_multiplier"), fields.maybe_count("block_multiple_of") or 256
    width = int((multiplier if isinstance(multiplier, (int, float)) else 1.0) * (2 * width // 3))
    return -(-width // multiple) * multiple


def all_but_first(_fields: Fields, num_layers: int) -> list[bool]:
    """Experts from the second layer on."""
    return [number > 0 for number in range(num_layers)]


def nemotron_h_has_experts(fields: Fields, num_layers: int) -> list[bool]:
    """The letters E of the pattern, or the blocks called moe."""
    blocks = fields.texts("layers_block_type") or fields.texts("layer_types")
    if blocks is not None:
        return [block == "moe" for block in blocks]
    return [letter == "E" for letter in fields.text("hybrid_override_pattern")[:num_layers]]


def gemma4_has_experts(fields: Fields, num_layers: int) -> list[bool]:
    """All layers or none."""
    return [fields.flag("enable_moe_block")] * num_layers


def _per_layer_input(fields: Fields) -> int:
    return fields.maybe_count("hidden_size_per_layer_input", least=0) or 0


def _per_layer_table(fields: Fields, num_layers: int) -> int:
    """The table of per-layer inputs, their projection and its norm."""
    each = _per_layer_input(fields)
    if not each:
        return 0
    return num_layers * each * (fields.count("vocab_size_per_layer_input") + fields.count("hidden_size")) + each


def _per_layer_gates(fields: Fields) -> int:
    width, each = fields.count("hidden_size"), _per_layer_input(fields)
    return 2 * width * each + width if each else 0


def gemma4_layer(fields: Fields, layer: LayerSpec) -> int:
    """Gates of the per-layer input; three more norms and the router's scale beside experts; wider shared layers."""
    width = fields.count("hidden_size")
    total = _per_layer_gates(fields)
    if fields.flag("enable_moe_block"):
        total += 4 * width
    if layer.shares_cache and fields.flag("use_double_wide_mlp"):
        total += 3 * width * fields.count("intermediate_size")
    return total


def gemma4_model(fields: Fields, layers: Sequence[LayerSpec]) -> int:
    """The table of per-layer inputs."""
    return _per_layer_table(fields, len(layers))


def gemma3n_layer(fields: Fields, _layer: LayerSpec) -> int:
    """AltUp, Laurel and the per-layer input's gates."""
    width, streams, rank = fields.count("hidden_size"), fields.count("altup_num_inputs"), fields.count("laurel_rank")
    altup = width + streams**2 + streams**3 + streams * width + width
    return altup + 2 * width * rank + width + _per_layer_gates(fields)


def gemma3n_model(fields: Fields, layers: Sequence[LayerSpec]) -> int:
    """The table of per-layer inputs, and AltUp's projections in and out."""
    width, streams = fields.count("hidden_size"), fields.count("altup_num_inputs")
    return _per_layer_table(fields, len(layers)) + 2 * (streams - 1) * width * width


def opt_projections(fields: Fields, _layers: Sequence[LayerSpec]) -> int:
    """An embedding narrower than the model, with projections in and out; no final norm in models that norm after."""
    width = fields.count("hidden_size")
    narrow = fields.maybe_count("word_embed_proj_dim") or width
    is_normed_after = not fields.flag("do_layer_norm_before") or fields.flag("_remove_final_layer_norm")
    final = -2 * width if is_normed_after else 0
    return final + (0 if narrow == width else fields.count("vocab_size") * (narrow - width) + 2 * width * narrow)


def _bart_attention(width: int) -> int:
    return 4 * (width * width + width)


def _bart_encoder_layer(width: int, inner: int) -> int:
    return _bart_attention(width) + 2 * width * inner + inner + width + 4 * width


def bart_cross(fields: Fields, _layer: LayerSpec) -> int:
    """Cross attention with biases."""
    return _bart_attention(fields.count("d_model"))


def bart_encoder(final_norms: int, position_offset: int | None) -> Callable[[Fields, Sequence[LayerSpec]], int]:
    """Return the rule for an encoder with a table of positions (None: without one)."""

    def rule(fields: Fields, _layers: Sequence[LayerSpec]) -> int:
        width, inner = fields.count("d_model"), fields.count("encoder_ffn_dim")
        length = 0 if position_offset is None else fields.count("max_position_embeddings") + position_offset
        layers = fields.count("encoder_layers") * _bart_encoder_layer(width, inner)
        return layers + length * width + final_norms * 2 * width

    return rule


def whisper_cross(fields: Fields, _layer: LayerSpec) -> int:
    """Cross attention; neither it nor the self attention has a bias on its keys."""
    width = fields.count("d_model")
    return _bart_attention(width) - 2 * width


def whisper_encoder(fields: Fields, _layers: Sequence[LayerSpec]) -> int:
    """Two convolutions, positions, and layers whose keys have no bias."""
    width, inner = fields.count("d_model"), fields.count("encoder_ffn_dim")
    convolutions = 3 * width * (fields.count("num_mel_bins") + width) + 2 * width
    layers = fields.count("encoder_layers") * (_bart_encoder_layer(width, inner) - width)
    return convolutions + fields.count("max_source_positions") * width + layers + 2 * width


def t5_is_gated(fields: Fields) -> bool:
    """Whether the feed-forward part has a gate: feed_forward_proj says so."""
    value = fields.value("feed_forward_proj")
    return value.startswith("gated") if isinstance(value, str) else fields.text("model_type") != "t5"


def _t5_attention(fields: Fields) -> int:
    return 4 * fields.count("d_model") * fields.count("num_heads") * fields.count("d_kv")


def t5_cross(fields: Fields, _layer: LayerSpec) -> int:
    """Cross attention without biases."""
    return _t5_attention(fields)


def _t5_buckets(fields: Fields) -> int:
    return (fields.maybe_count("relative_attention_num_buckets") or 32) * fields.count("num_heads")


def _t5_encoder_layers(fields: Fields) -> int:
    width, inner = fields.count("d_model"), fields.count("d_ff")
    layer = _t5_attention(fields) + (3 if t5_is_gated(fields) else 2) * width * inner + 2 * width
    return fields.count("num_layers") * layer + width


def t5_encoder(fields: Fields, _layers: Sequence[LayerSpec]) -> int:
    """The encoder, and one table of relative positions each for it and for the decoder."""
    return _t5_encoder_layers(fields) + 2 * _t5_buckets(fields)


def umt5_encoder(fields: Fields, layers: Sequence[LayerSpec]) -> int:
    """The encoder, and a table of relative positions in every layer."""
    return _t5_encoder_layers(fields) + (fields.count("num_layers") + len(layers)) * _t5_buckets(fields)
