"""The model families as a table: switches of the one forward pass, and where a file keeps each matrix.

Adding a family is an entry in ``FAMILIES``: how to read its switches from a config, and the tensor names of its Hugging
Face and GGUF files. Knows no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from kvist.checkpoint.files import quote
from kvist.errors import SpecError, UnsupportedError
from kvist.model.rope import RopeSpec, rope_from_config
from kvist.spec.model import ModelSpec

ACTIVATIONS = {"silu": "silu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"}


@dataclass(frozen=True)
class DecoderSpec:
    """The switches of the forward pass. ``rope`` is None where positions are learned.

    ``norm``: "rms" or "layer". ``activation``: "silu" or "gelu_tanh". ``is_gated``: the MLP is
    act(gate) * up, not act(up). ``has_qk_norm``: each head's q and k pass an RMSNorm of their own before rotation.
    """

    norm: str
    norm_eps: float
    activation: str
    is_gated: bool
    rope: RopeSpec | None
    has_qk_norm: bool = False


@dataclass(frozen=True)
class Names:
    """Tensor names in one file format; ``{n}`` is the layer. Several names for a matrix are its parts, stacked by rows.

    A bias is the same name ending in ``.bias``. ``is_transposed``: matrices are stored (inputs, outputs).
    ``has_paired_rows``: rows of q and k stand in the order of rotated pairs (d, d + half), as llama.cpp converts them.
    """

    embedding: str
    attention_norm: str
    qkv: tuple[str, ...]
    attention_output: str
    mlp_norm: str
    up: tuple[str, ...]
    down: str
    final_norm: str
    output: str
    positions: str = ""
    q_norm: str = ""
    k_norm: str = ""
    prefixes: tuple[str, ...] = ("",)
    is_transposed: bool = False
    has_paired_rows: bool = False


@dataclass(frozen=True)
class Family:
    """One row of the table.

    ``switches``: from a config and its head width. ``required_biases``: the matrices (of ``Names``) whose bias must be
    there, given the config.
    """

    switches: Callable[[Mapping[str, object], int], DecoderSpec]
    huggingface: Names
    gguf: Names
    required_biases: Callable[[Mapping[str, object]], frozenset[str]] = field(default=lambda _config: frozenset())


def _number(config: Mapping[str, object], key: str, default: float) -> float:
    number = config.get(key, default)
    if not isinstance(number, int | float) or isinstance(number, bool) or not 0 < number < inf:
        raise SpecError(f"{key} must be a number above 0, got {number!r}")
    return float(number)


def _activation(config: Mapping[str, object], key: str, default: str) -> str:
    name = str(config.get(key) or default)
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"activation {quote(name)} isn't supported; supported: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _llama(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    return DecoderSpec(
        norm="rms",
        norm_eps=_number(config, "rms_norm_eps", 1e-6),
        activation=_activation(config, "hidden_act", "silu"),
        is_gated=True,
        rope=rope_from_config(config, head_dim),
    )


def _qwen3(config: Mapping[str, object], head_dim: int) -> DecoderSpec:
    return replace(_llama(config, head_dim), has_qk_norm=True)


def _gpt2(config: Mapping[str, object], _head_dim: int) -> DecoderSpec:
    if not config.get("scale_attn_weights", True) or config.get("scale_attn_by_inverse_layer_idx", False):
        raise UnsupportedError(
            "a gpt2 with another scale of its attention scores than 1/sqrt(head width) isn't supported"
        )
    return DecoderSpec(
        norm="layer",
        norm_eps=_number(config, "layer_norm_epsilon", 1e-5),
        activation=_activation(config, "activation_function", "gelu_new"),
        is_gated=False,
        rope=None,
    )


_LLAMA_HF = Names(
    embedding="model.embed_tokens.weight",
    attention_norm="model.layers.{n}.input_layernorm.weight",
    qkv=(
        "model.layers.{n}.self_attn.q_proj.weight",
        "model.layers.{n}.self_attn.k_proj.weight",
        "model.layers.{n}.self_attn.v_proj.weight",
    ),
    attention_output="model.layers.{n}.self_attn.o_proj.weight",
    mlp_norm="model.layers.{n}.post_attention_layernorm.weight",
    up=("model.layers.{n}.mlp.gate_proj.weight", "model.layers.{n}.mlp.up_proj.weight"),
    down="model.layers.{n}.mlp.down_proj.weight",
    final_norm="model.norm.weight",
    output="lm_head.weight",
    q_norm="model.layers.{n}.self_attn.q_norm.weight",
    k_norm="model.layers.{n}.self_attn.k_norm.weight",
)
_LLAMA_GGUF = Names(
    embedding="token_embd.weight",
    attention_norm="blk.{n}.attn_norm.weight",
    qkv=("blk.{n}.attn_q.weight", "blk.{n}.attn_k.weight", "blk.{n}.attn_v.weight"),
    attention_output="blk.{n}.attn_output.weight",
    mlp_norm="blk.{n}.ffn_norm.weight",
    up=("blk.{n}.ffn_gate.weight", "blk.{n}.ffn_up.weight"),
    down="blk.{n}.ffn_down.weight",
    final_norm="output_norm.weight",
    output="output.weight",
    q_norm="blk.{n}.attn_q_norm.weight",
    k_norm="blk.{n}.attn_k_norm.weight",
    has_paired_rows=True,
)
_QWEN_GGUF = replace(_LLAMA_GGUF, has_paired_rows=False)
_GPT2_HF = Names(
    embedding="wte.weight",
    positions="wpe.weight",
    attention_norm="h.{n}.ln_1.weight",
    qkv=("h.{n}.attn.c_attn.weight",),
    attention_output="h.{n}.attn.c_proj.weight",
    mlp_norm="h.{n}.ln_2.weight",
    up=("h.{n}.mlp.c_fc.weight",),
    down="h.{n}.mlp.c_proj.weight",
    final_norm="ln_f.weight",
    output="lm_head.weight",
    prefixes=("", "transformer."),
    is_transposed=True,
)
_GPT2_GGUF = Names(
    embedding="token_embd.weight",
    positions="position_embd.weight",
    attention_norm="blk.{n}.attn_norm.weight",
    qkv=("blk.{n}.attn_qkv.weight",),
    attention_output="blk.{n}.attn_output.weight",
    mlp_norm="blk.{n}.ffn_norm.weight",
    up=("blk.{n}.ffn_up.weight",),
    down="blk.{n}.ffn_down.weight",
    final_norm="output_norm.weight",
    output="output.weight",
)


def _llama_biases(config: Mapping[str, object]) -> frozenset[str]:
    attention = ("qkv", "attention_output") if config.get("attention_bias") else ()
    return frozenset((*attention, *(("up", "down") if config.get("mlp_bias") else ())))


FAMILIES: dict[str, Family] = {
    "llama": Family(_llama, _LLAMA_HF, _LLAMA_GGUF, _llama_biases),
    "mistral": Family(_llama, _LLAMA_HF, _LLAMA_GGUF),
    "qwen2": Family(_llama, _LLAMA_HF, _QWEN_GGUF, lambda _config: frozenset(("qkv",))),
    "qwen3": Family(_qwen3, _LLAMA_HF, _QWEN_GGUF, _llama_biases),
    "gpt2": Family(_gpt2, _GPT2_HF, _GPT2_GGUF, lambda _config: frozenset(("qkv", "attention_output", "up", "down"))),
}


def family_of(config: Mapping[str, object]) -> Family:
    """Return the family of a config's ``model_type``; raises UnsupportedError for one that isn't in the table."""
    name = str(config.get("model_type"))
    if name not in FAMILIES:
        raise UnsupportedError(f"model type {quote(name)} isn't one that kvist runs; it runs {', '.join(FAMILIES)}")
    return FAMILIES[name]


def has_learned_positions(config: Mapping[str, object]) -> bool:
    """Whether positions are an embedding, so that there are as many as were trained."""
    return bool(family_of(config).huggingface.positions)


def check_runs(model: ModelSpec) -> None:
    """Raise UnsupportedError where a layer is of a kind that the forward pass doesn't compute."""
    for number, layer in enumerate(model.layers):
        if layer.kind not in ("full", "window") or layer.shares_cache or layer.state or layer.cross:
            raise UnsupportedError(f"layer {number} is of kind {layer.kind}, which kvist plans but doesn't run")
        if layer.k_dim != layer.v_dim or layer.k_dim % 16:
            raise UnsupportedError(f"layer {number} has heads of width {layer.k_dim}; supported: multiples of 16")
