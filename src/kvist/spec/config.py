"""From a ``config.json`` (or its twin made from a GGUF header) to a ModelSpec.

Follows what the reference implementation, Hugging Face transformers, does with each key, the defaults that live
only in its config classes included. Knows no files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from kvist.errors import SpecError
from kvist.spec import attention, layer_types
from kvist.spec.attention import HEADS, KV_HEADS, WIDTH, Heads
from kvist.spec.experts import Experts, check_chosen, layer_experts
from kvist.spec.fields import Fields
from kvist.spec.model import CrossAttention, LayerKind, LayerSpec, ModelSpec
from kvist.spec.model_types import ALIASES, MODEL_TYPES, TEXT_PARTS, ModelType, class_defaults
from kvist.spec.parameters import Parameters
from kvist.spec.state import RecurrentState
from kvist.spec.weight_rules import WEIGHT_RULES
from kvist.spec.weights import count

MAX_LAYERS = 10_000
LAYERS = ("decoder_layers", "num_decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers")
CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_target_positions",
    "max_seq_len",
    "max_sequence_length",
    "model_max_length",
    "seq_length",
    "n_ctx",
)
MLP_WIDTH = ("intermediate_size", "d_ff", "decoder_ffn_dim", "ffn_dim", "n_inner", "ffn_hidden_size")
_ESSENTIAL = frozenset((*WIDTH, *HEADS, *LAYERS, "vocab_size", *MLP_WIDTH))
_TEXT_KEYS = ("text_config", "llm_config", "language_config", "decoder")
_WEIGHT_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float": "f32", "half": "f16"}
_QUANTISATIONS = {
    "fp8": "fp8",
    "float-quantized": "fp8",
    "mxfp4": "mxfp4",
    "mxfp4-pack-quantized": "mxfp4",
    "pack-quantized": "int4",
    "int-quantized": "int8",
    "awq": "int4",
}
_ANOTHER_KIND_OF_CACHE = (
    "compress_ratios",
    "compress_rates",
    "hybrid_override_pattern",
    "linear_attn_config",
    "mamba_d_state",
    "ssm_state_size",
    "ssm_cfg",
    "rwkv_hidden_size",
    "block_configs",
)


def model_spec_from_config(config: Mapping[str, object]) -> ModelSpec:
    """Return the measures of the model that ``config`` describes, of its text part where it has several.

    Raises:
        SpecError: a key is missing, of the wrong type, or contradicts another; or the model type is unknown and
            the keys don't suffice for uniform attention.
    """
    name, text = text_part(config)
    model_type = MODEL_TYPES.get(ALIASES.get(name, name))
    if model_type is None:
        return _assumed_uniform(name, text)
    defaults = class_defaults().get(ALIASES.get(name, name), {})
    if text is config:
        defaults = {key: value for key, value in defaults.items() if key not in _ESSENTIAL}
    return _build(name, model_type, Fields(text, defaults), Fields(config, {}))


def check_vocabulary(model: ModelSpec) -> None:
    """Raise SpecError where a config that suffices for a plan doesn't for a run: it says of no vocabulary."""
    if not model.vocab_size:
        raise SpecError("the config doesn't say vocab_size; without it the number of logits is unknown")


def text_part(config: Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    """Return the model type of the text part and its keys."""
    outer = Fields(config, {})
    name = outer.text("model_type")
    thinker = outer.value("thinker_config")
    if isinstance(thinker, Mapping):
        return text_part(thinker)
    for key in _TEXT_KEYS:
        part = outer.value(key)
        if isinstance(part, Mapping):
            inner = Fields(part, {}).text("model_type") or TEXT_PARTS.get(name, name)
            return TEXT_PARTS.get(inner, inner), part
    return TEXT_PARTS.get(name, name), config


def _build(name: str, rules: ModelType, fields: Fields, outer: Fields, notes: tuple[str, ...] = ()) -> ModelSpec:
    layers, width = _layers(rules, fields, _num_layers(fields)), fields.count(*WIDTH)
    is_tied = (rules.has_cross and "d_kv" in fields.defaults) or _is_tied(fields, outer)
    parameters, missing = _parameters(name, fields, layers, width, is_tied)
    return ModelSpec(
        architecture=name,
        vocab_size=fields.maybe_count("vocab_size", "padded_vocab_size") or 0,
        width=width,
        mlp_width=_mlp_width(name, fields),
        context_length=fields.count(*CONTEXT),
        layers=layers,
        experts=_experts(name, fields, len(layers)),
        is_tied=is_tied,
        encoder_tokens=fields.maybe_count("max_source_positions") or 0 if rules.has_cross else 0,
        parameters=parameters,
        missing=missing,
        weight_type=_weight_type(fields, outer),
        notes=(*notes, *_notes(fields)),
    )


def _num_layers(fields: Fields) -> int:
    """Return the number of layers, as stated or as long as the list of their kinds."""
    pattern = fields.text("hybrid_override_pattern")
    listed = len(pattern) or len(fields.texts("layers_block_type") or fields.texts("layer_types") or ())
    number = fields.maybe_count(*LAYERS) or listed
    if not number:
        raise SpecError("the config doesn't say num_hidden_layers; without it the model's size is unknown")
    if number > MAX_LAYERS:
        raise SpecError(f"num_hidden_layers in the config must be at most {MAX_LAYERS}, got {number}")
    return number


def _parameters(
    name: str, fields: Fields, layers: tuple[LayerSpec, ...], width: int, is_tied: bool
) -> tuple[Parameters | None, str]:
    """Return the number of parameters, or None and what it would take to know it."""
    rules = WEIGHT_RULES.get(ALIASES.get(name, name))
    if rules is None:
        return None, f'how the weights of model_type "{name}" are laid out isn\'t known here; its files would say'
    try:
        return count(rules, fields, layers, width, is_tied), ""
    except SpecError as error:
        return None, str(error)


def _experts(name: str, fields: Fields, num_layers: int) -> tuple[Experts | None, ...]:
    """Return each layer's experts as far as the config settles them: a cache can be planned without.

    Raises SpecError where what it says of them can't be.
    """
    rules = WEIGHT_RULES.get(ALIASES.get(name, name))
    if rules is None or rules.experts is None:
        return ()
    try:
        return layer_experts(rules.experts, fields, num_layers)
    except SpecError:
        check_chosen(fields)
        return ()


def _layers(rules: ModelType, fields: Fields, num_layers: int) -> tuple[LayerSpec, ...]:
    kinds = rules.layers(fields, num_layers)
    window = rules.window(fields) if layer_types.SLIDING in kinds else None
    chunk = fields.maybe_count("attention_chunk_size") if layer_types.CHUNKED in kinds else None
    needs_state = {layer_types.LINEAR, layer_types.CONV, layer_types.HYBRID} & set(kinds)
    if needs_state and rules.state is None:
        raise SpecError(
            f"the config has {min(needs_state)} layers; how large their state is isn't known for its model_type"
        )
    state = rules.state(fields) if needs_state and rules.state else None
    num_own = num_layers - (fields.maybe_count("num_kv_shared_layers", least=0) or 0)
    share = fields.maybe_count("cla_share_factor") or 1 if fields.flag("use_cla") else 1
    sizes = {layer_types.SLIDING: window, layer_types.CHUNKED: chunk}
    layers = []
    for number, kind in enumerate(kinds):
        heads = None if kind in (layer_types.LINEAR, layer_types.CONV, layer_types.MLP) else rules.heads(fields, kind)
        layer = _layer(kind, heads, sizes.get(kind), state, rules.has_cross, number >= num_own or number % share != 0)
        layers.append(_with_index(layer, fields, number))
    return tuple(layers)


def _layer(
    kind: str, heads: Heads | None, window: int | None, state: RecurrentState | None, has_cross: bool, shares: bool
) -> LayerSpec:
    if heads is None:
        is_recurrent = kind in (layer_types.LINEAR, layer_types.CONV)
        return LayerSpec("recurrent" if is_recurrent else "none", 0, 0, 0, 0, state=state if is_recurrent else None)
    cross = CrossAttention(heads.num_kv_heads, heads.k_dim, heads.v_dim)
    if kind == layer_types.CROSS:
        return LayerSpec("none", heads.num_heads, heads.num_kv_heads, heads.k_dim, heads.v_dim, cross=cross)
    name: LayerKind = "full"
    if heads.is_latent:
        name = "mla"
    elif window is not None:
        name = "chunked" if kind == layer_types.CHUNKED else "window"
    return LayerSpec(
        name,
        heads.num_heads,
        heads.num_kv_heads,
        heads.k_dim,
        heads.v_dim,
        window=window,
        shares_cache=shares,
        state=state if kind == layer_types.HYBRID else None,
        cross=cross if has_cross else None,
    )


def _with_index(layer: LayerSpec, fields: Fields, number: int) -> LayerSpec:
    """Return ``layer`` with the sparse-attention key it keeps, where the config has an indexer."""
    width = fields.maybe_count("index_head_dim") if layer.kind == "mla" else None
    if width is None or _reuses_index(fields, number):
        return layer
    return LayerSpec(layer.kind, layer.num_heads, layer.num_kv_heads, layer.k_dim, layer.v_dim, index_dim=width)


def _reuses_index(fields: Fields, number: int) -> bool:
    """Whether the layer takes the choice of an earlier one (GLM: a list, a pattern or a period)."""
    kinds = fields.texts("indexer_types")
    if kinds is not None:
        return number < len(kinds) and kinds[number] == "shared"
    pattern = fields.value("index_topk_pattern")
    if isinstance(pattern, str):
        return number < len(pattern) and pattern[number] == "S"
    period = fields.maybe_count("index_topk_freq") or 1
    offset = fields.maybe_count("index_skip_topk_offset", least=0)
    return max(number - (2 if offset is None else offset) + 1, 0) % period != 0


def _mlp_width(name: str, fields: Fields) -> int:
    """Return the MLP's inner width, 0 where unsaid; by that GPT-2, Falcon and their kin mean four times the width."""
    value = fields.value(*MLP_WIDTH)
    if isinstance(value, (list, tuple)):
        return max(fields.counts("intermediate_size") or (0,))
    stated, rules = fields.maybe_count(*MLP_WIDTH), WEIGHT_RULES.get(ALIASES.get(name, name))
    if stated is None and rules and rules.mlp_width and not rules.experts:
        with contextlib.suppress(SpecError):
            return rules.mlp_width(fields)
    return stated or 4 * (fields.maybe_count("n_embd") or 0)


def _is_tied(fields: Fields, outer: Fields) -> bool:
    for source in (outer, fields):
        for key in ("tie_word_embeddings", "tie_embedding"):
            if source.has(key):
                return source.flag(key)
    return fields.flag("tie_word_embeddings")


def _weight_type(fields: Fields, outer: Fields) -> str:
    """Return the type that the published weights are in, by the quantisation's name or else by the dtype's."""
    for source in (outer, fields):
        settings = source.nested("quantization_config")
        method = settings.text("format") or settings.text("quant_method")
        bits = settings.maybe_count("bits", "w_bit")
        name = _QUANTISATIONS.get(method) or (f"int{bits}" if bits in (4, 8) else "")
        if name:
            return name
    names = [source.text(key) for source in (fields, outer) for key in ("dtype", "torch_dtype")]
    return _WEIGHT_TYPES.get(next(filter(None, names), "").removeprefix("torch."), "bf16")


def _notes(fields: Fields) -> tuple[str, ...]:
    """Say which sizes aren't in the config but in the reference implementation's defaults."""
    names = (*WIDTH, *LAYERS, *HEADS, *KV_HEADS, "head_dim", "sliding_window", "vocab_size", "q_lora_rank", *CONTEXT)
    used = [f"{key} {fields.defaults[key]}" for key in names if key in fields.defaults and not _is_stated(fields, key)]
    return (f"not in the config, so the reference implementation's default: {', '.join(used)}",) if used else ()


def _is_stated(fields: Fields, key: str) -> bool:
    for family in (WIDTH, LAYERS, HEADS, KV_HEADS, CONTEXT):
        if key in family:
            return any(fields.has(name) for name in family)
    return fields.has(key)


def _assumed_uniform(name: str, text: Mapping[str, object]) -> ModelSpec:
    """Return a spec of full attention in every layer for a model type without rules of its own, and say so."""
    fields = Fields(text, {})
    if not name and not any(fields.has(key) for key in (*WIDTH, *LAYERS)):
        raise SpecError(
            "not a model's config: no model_type and no hidden_size in it; give a language model's config.json"
        )
    for key in _ANOTHER_KIND_OF_CACHE:
        if fields.has(key):
            raise SpecError(
                f"model_type \"{name}\" isn't known, and its {key} means a kind of cache that can't be assumed"
            )
    is_latent = fields.has("kv_lora_rank") and fields.has("qk_rope_head_dim")
    rules = ModelType(
        layer_types.stated_or(layer_types.every_layer(layer_types.FULL)),
        attention.latent if is_latent else attention.assumed,
    )
    what = "a latent" if is_latent else "attention"
    note = f'model_type "{name}" isn\'t known: assumed {what} of one width in every layer'
    if fields.value("sliding_window") is not None and not fields.has("layer_types"):
        note += f", and its sliding_window {fields.value('sliding_window')} not used"
    return _build(name, rules, fields, fields, (note,))
