"""How many parameters a model has, from its config: exact, or not at all.

``count`` walks the layers with the switches of a model type (``spec.weight_rules``); a key that is missing is an
error that names it, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvist.errors import SpecError
from kvist.spec import mixers
from kvist.spec.experts import NUM_EXPERTS, PER_TOKEN, ExpertRules
from kvist.spec.fields import Fields
from kvist.spec.model import LayerSpec
from kvist.spec.parameters import Parameters


@dataclass(frozen=True)
class WeightRules:
    """What a model type's layers are made of; a switch is true, false, or the config key that says which.

    ``norm`` is the numbers a unit of width in one norm (1 a scale, 2 with a bias, 0 none), ``norms`` how many a
    layer has, or a rule. ``qk_norm`` is "" (none), "head" (one scale for a head's width, shared by the heads) or
    "all" (one for every head), ``qk_norm_if`` the key it depends on. ``mlp_width`` returns the inner width.
    In a model of single blocks a layer is either a mixer or a feed-forward part, not both. ``extra_layer`` and
    ``extra_model`` add what nothing else has; ``unknown_keys`` are config keys that bring weights which aren't known.
    """

    qkv_bias: bool | str = False
    out_bias: bool | str = False
    qk_norm: str = ""
    qk_norm_if: str = ""
    has_query_gate: bool = False
    is_gated: bool | Callable[[Fields], bool] = True
    mlp_bias: bool | str = False
    mlp_width: Callable[[Fields], int] | None = None
    experts: ExpertRules | None = None
    dense_width: Callable[[Fields], int] | None = None
    dense_beside_experts: bool = False
    norm: int = 1
    norms: int | Callable[[Fields], int] = 2
    final_norms: int = 1
    positions: Callable[[Fields], int] | None = None
    head_bias: bool | str = False
    mixer: mixers.Rule | None = None
    is_single_block: bool = False
    extra_layer: Callable[[Fields, LayerSpec], int] | None = None
    extra_model: Callable[[Fields, Sequence[LayerSpec]], int] | None = None
    unknown_keys: tuple[str, ...] = ()


def is_on(fields: Fields, switch: bool | str) -> bool:
    """Return whether a switch is on in this config."""
    return fields.flag(switch) if isinstance(switch, str) else switch


def count(rules: WeightRules, fields: Fields, layers: Sequence[LayerSpec], width: int, is_tied: bool) -> Parameters:
    """Return the number of parameters.

    Raises:
        SpecError: the config lacks a key that their number depends on.
    """
    for key in rules.unknown_keys:
        if fields.value(key):
            raise SpecError(f"the weights that {key} in the config brings aren't known here; give the model's files")
    vocab_size = fields.count("vocab_size", "padded_vocab_size")
    has_experts = rules.experts.where(fields, len(layers)) if rules.experts else [False] * len(layers)
    body = rules.norm * rules.final_norms * width + (rules.positions(fields) * width if rules.positions else 0)
    body += vocab_size if is_on(fields, rules.head_bias) else 0
    body += rules.extra_model(fields, layers) if rules.extra_model else 0
    experts = 0
    for layer, is_sparse in zip(layers, has_experts, strict=True):
        beside, routed = _layer(rules, fields, layer, width, is_sparse)
        body, experts = body + beside, experts + routed
    output = 0 if is_tied else vocab_size * width
    shares = (fields.count(*NUM_EXPERTS), fields.count(*PER_TOKEN)) if experts else (1, 1)
    return Parameters(vocab_size * width, output, body, experts, *shares)


def _layer(rules: WeightRules, fields: Fields, layer: LayerSpec, width: int, is_sparse: bool) -> tuple[int, int]:
    """Return the parameters of one layer that every token uses, and those of its routed experts."""
    norms = rules.norms if isinstance(rules.norms, int) else rules.norms(fields)
    body = _mixer(rules, fields, layer, width) + norms * rules.norm * width
    body += rules.extra_layer(fields, layer) if rules.extra_layer else 0
    if rules.is_single_block and layer.kind != "none":
        return body, 0
    beside, routed = _experts(rules.experts, fields, width) if is_sparse and rules.experts else (0, 0)
    if not is_sparse or rules.dense_beside_experts:
        body += _dense(rules, fields, width)
    return body + beside, routed


def mlp(width: int, inner: int, is_gated: bool, has_bias: bool) -> int:
    """Parameters of a feed-forward part: two matrices or, gated, three."""
    return (3 if is_gated else 2) * width * inner + ((2 * inner if is_gated else inner) + width if has_bias else 0)


def _dense(rules: WeightRules, fields: Fields, width: int) -> int:
    find = rules.dense_width if rules.dense_width and rules.experts else rules.mlp_width
    inner = find(fields) if find else fields.count("intermediate_size")
    is_gated = rules.is_gated if isinstance(rules.is_gated, bool) else rules.is_gated(fields)
    return mlp(width, inner, is_gated, is_on(fields, rules.mlp_bias)) if inner else 0


def _experts(rules: ExpertRules, fields: Fields, width: int) -> tuple[int, int]:
    """Return the parameters beside the routed experts of a layer, and theirs."""
    number, inner = fields.count(*NUM_EXPERTS), fields.count(*rules.width)
    beside = width * number + (number if rules.router_bias else 0)
    shared = rules.shared(fields) if rules.shared else 0
    if shared:
        beside += mlp(width, shared, rules.is_gated, has_bias=False) + (width if rules.shared_gate else 0)
    return beside, number * mlp(width, inner, rules.is_gated, rules.bias)


def _mixer(rules: WeightRules, fields: Fields, layer: LayerSpec, width: int) -> int:
    """Parameters of a layer's attention and of its recurrence."""
    total = rules.mixer(fields, layer.state, width) if rules.mixer and layer.state else 0
    if layer.kind == "mla":
        total += _latent(fields, layer, width)
    elif layer.kind in ("full", "window", "chunked"):
        total += _attention(rules, fields, layer, width)
    return total


def _attention(rules: WeightRules, fields: Fields, layer: LayerSpec, width: int) -> int:
    queries = layer.num_heads * layer.k_dim
    keys, values = layer.num_kv_heads * layer.k_dim, layer.num_kv_heads * layer.v_dim
    if layer.shares_cache:
        keys = values = 0
    elif layer.kind == "full" and fields.flag("attention_k_eq_v"):
        values = 0
    inputs = queries * (2 if rules.has_query_gate else 1) + keys + values
    total = width * inputs + layer.num_heads * layer.v_dim * width
    total += inputs if is_on(fields, rules.qkv_bias) else 0
    total += width if is_on(fields, rules.out_bias) else 0
    if rules.qk_norm and (not rules.qk_norm_if or fields.flag(rules.qk_norm_if)):
        total += queries + keys if rules.qk_norm == "all" else layer.k_dim * (2 if keys else 1)
    return total


def _latent(fields: Fields, layer: LayerSpec, width: int) -> int:
    """Parameters of latent attention, and of the indexer of sparse attention."""
    heads, rank = layer.num_heads, fields.count("kv_lora_rank")
    nope, rope = fields.count("qk_nope_head_dim"), fields.count("qk_rope_head_dim", least=0)
    v_dim = fields.maybe_count("v_head_dim") or width // heads
    q_rank = fields.maybe_count("q_lora_rank")
    total = width * heads * (nope + rope)
    if q_rank:
        total = width * q_rank + q_rank + q_rank * heads * (nope + rope)
    total += width * (rank + rope) + rank + rank * heads * (nope + v_dim) + heads * v_dim * width
    if fields.flag("attention_bias"):
        total += (q_rank or 0) + rank + rope + width
    if layer.index_dim:
        index_heads = fields.count("index_n_heads")
        total += fields.count("q_lora_rank") * index_heads * layer.index_dim
        total += width * (layer.index_dim + index_heads) + 2 * layer.index_dim
    return total
