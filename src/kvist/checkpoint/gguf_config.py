"""From GGUF's keys to the config that the same model has at Hugging Face.

Everything above reads one vocabulary, that of config.json (``hidden_size``, ``rms_norm_eps`` ...); this module
is the dictionary, a table entry per architecture. Pure: keys and tensor descriptions in, a dict out. Both formats
of a model give equal configs as far as GGUF tells: it doesn't say what a Mistral file is, so that becomes ``mistral``
only where it names a window and stays ``llama`` otherwise (with the same arithmetic).

Not Hugging Face's is ``rope_scaling = {"rope_type": "factors", "factors": [...]}``: GGUF has Llama 3's scaling as
the finished divisors of the inverse frequencies, one per rotary pair, in a tensor.

Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized

from kvist.checkpoint.files import TensorInfo, quote
from kvist.checkpoint.gguf_architecture import LLAMA_KEYS, Architecture
from kvist.checkpoint.gguf_dense import DENSE
from kvist.checkpoint.gguf_keys import MAX_WHOLE_NUMBER, Keys, Real, Whole
from kvist.checkpoint.gguf_latent import LATENT_KEYS, latent_config, latent_scaling
from kvist.errors import CheckpointError, UnsupportedError

_EXPERT_KEYS: dict[str, Whole | Real] = {
    **LLAMA_KEYS,
    "num_experts": Whole("expert_count"),
    "num_experts_per_tok": Whole("expert_used_count"),
    "moe_intermediate_size": Whole("expert_feed_forward_length", same_as="feed_forward_length"),
}
_SHARED_EXPERT_KEYS: dict[str, Whole | Real] = {
    **_EXPERT_KEYS,
    "shared_expert_intermediate_size": Whole("expert_shared_feed_forward_length", same_as="feed_forward_length"),
}
_OLMOE_KEYS: dict[str, Whole | Real] = {
    **LLAMA_KEYS,
    "num_experts": Whole("expert_count"),
    "num_experts_per_tok": Whole("expert_used_count"),
}
_GPT_OSS_KEYS: dict[str, Whole | Real] = {
    **LLAMA_KEYS,
    "intermediate_size": Whole("expert_feed_forward_length", same_as="feed_forward_length"),
    "num_local_experts": Whole("expert_count"),
    "num_experts_per_tok": Whole("expert_used_count"),
}
_GPT2_KEYS: dict[str, Whole | Real] = {
    "n_embd": Whole("embedding_length"),
    "n_inner": Whole("feed_forward_length"),
    "n_layer": Whole("block_count"),
    "n_head": Whole("attention.head_count"),
    "n_positions": Whole("context_length"),
    "n_ctx": Whole("context_length"),
    "layer_norm_epsilon": Real("attention.layer_norm_epsilon"),
}
_SILU = {"hidden_act": "silu"}
_ATTENTION_BIAS = {"attention_bias": "blk.0.attn_q.bias"}
_MLP_BIAS = {"mlp_bias": "blk.0.ffn_up.bias"}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", LLAMA_KEYS, _SILU, {**_ATTENTION_BIAS, **_MLP_BIAS}),
    "qwen2": Architecture("qwen2", LLAMA_KEYS, _SILU),
    "qwen3": Architecture("qwen3", LLAMA_KEYS, _SILU, _ATTENTION_BIAS),
    "deepseek2": Architecture(
        "deepseek_v2",
        LATENT_KEYS,
        _SILU,
        {"attention_bias": "blk.0.attn_kv_a_mqa.bias"},
        is_rotary=False,
        is_latent=True,
    ),
    "qwen3moe": Architecture("qwen3_moe", _EXPERT_KEYS, {**_SILU, "norm_topk_prob": True}, _ATTENTION_BIAS),
    "qwen2moe": Architecture(
        "qwen2_moe", _SHARED_EXPERT_KEYS, {**_SILU, "norm_topk_prob": False}, {"qkv_bias": "blk.0.attn_q.bias"}
    ),
    "olmoe": Architecture("olmoe", _OLMOE_KEYS, {**_SILU, "norm_topk_prob": False}),
    "gpt-oss": Architecture("gpt_oss", _GPT_OSS_KEYS, _SILU, _ATTENTION_BIAS),
    "gpt2": Architecture("gpt2", _GPT2_KEYS, {"activation_function": "gelu_new"}, is_rotary=False),
    **DENSE,
}


def config_from_gguf(
    metadata: Mapping[str, object],
    tensors: Mapping[str, TensorInfo],
    *,
    rope_factors: Sequence[float] | None = None,
    long_factors: tuple[Sequence[float], Sequence[float]] | None = None,
) -> dict[str, object]:
    """Return the config; ``rope_factors`` are the values of the tensor ``rope_freqs.weight`` where there is one.

    ``long_factors``: of ``rope_factors_long.weight`` and ``rope_factors_short.weight`` (Phi-3).

    Raises UnsupportedError for an architecture that isn't in the table, or a setting of it that kvist doesn't run;
    CheckpointError for a key that is missing or has an impossible value.
    """
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedError(f"it holds no model, its general.type is {quote(kind)}; take the model's own file")
    name = Keys(metadata, "general.").text("architecture")
    if name is None:
        raise CheckpointError('its header lacks the key "general.architecture"; fetch the file again')
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise UnsupportedError(f"its architecture {quote(name)} isn't supported; supported: {', '.join(ARCHITECTURES)}")
    keys = Keys(metadata, f"{name}.")
    config: dict[str, object] = {"model_type": architecture.model_type}
    config.update({config_key: keys.required(rule) for config_key, rule in architecture.keys.items()})
    config.update(architecture.fixed)
    config.update({config_key: tensor in tensors for config_key, tensor in architecture.biases.items()})
    if architecture.is_latent:
        config.update(latent_config(keys))
        rotary_dim = int(keys.required(Whole("rope.dimension_count")))
        config["rope_scaling"] = latent_scaling(keys, _rope_scaling(keys, rope_factors, rotary_dim))
    if architecture.is_rotary:
        config.update(_rotary(keys, rope_factors))
        if long_factors:
            config.update(_long_rope(keys, *long_factors))
        if architecture.has_window:
            config.update(_window(keys, architecture))
        config.update(_experts(keys, architecture))
        scaling = config.get("rope_scaling")
        if architecture.model_type == "gpt_oss" and isinstance(scaling, dict):
            scaling["truncate"] = False  # of which its files don't speak
    config.update(architecture.more(keys, tensors))
    config["vocab_size"] = _vocab_size(metadata, keys, tensors)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config.update({key: ids[0] for key, ids in _token_ids(metadata).items()})
    return config


def generation_config_from_gguf(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return the sampling settings and token ids that the file recommends, as in generation_config.json."""
    config: dict[str, object] = {
        key: ids[0] if len(ids) == 1 else list(ids) for key, ids in _token_ids(metadata).items()
    }
    sampling = Keys(metadata, "general.sampling.")
    temperature = sampling.real("temp", may_be_zero=True)
    found = {
        "do_sample": None if temperature is None else temperature > 0,
        "temperature": temperature,
        "top_k": sampling.whole("top_k", minimum=-1),
        "top_p": sampling.real("top_p", may_be_zero=True),
        "min_p": sampling.real("min_p", may_be_zero=True),
        "repetition_penalty": sampling.real("penalty_repeat"),
    }
    config.update({key: value for key, value in found.items() if value is not None})
    return config


def _rotary(keys: Keys, factors: Sequence[float] | None) -> dict[str, object]:
    """Head width and rope settings."""
    width, heads = keys.required(Whole("embedding_length")), keys.required(Whole("attention.head_count"))
    head_dim = keys.whole("attention.key_length")
    if head_dim is None:
        if width % heads:
            raise CheckpointError(
                f"its width {width} isn't a multiple of its {heads} heads, and it names no head width"
            )
        head_dim = int(width // heads)
    value_dim = keys.whole("attention.value_length")
    if value_dim not in (None, head_dim):
        raise UnsupportedError(f"its keys are {head_dim} wide and its values {value_dim}; supported: equal widths")
    rotary_dim = keys.whole("rope.dimension_count") or head_dim
    if rotary_dim > head_dim or rotary_dim % 2:
        raise CheckpointError(f"it rotates {rotary_dim} of {head_dim} dimensions; an even number of them is possible")
    config: dict[str, object] = {"head_dim": head_dim, "rope_scaling": _rope_scaling(keys, factors, rotary_dim)}
    if rotary_dim != head_dim:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    return config


def _long_rope(keys: Keys, long: Sequence[float], short: Sequence[float]) -> dict[str, object]:
    """Longrope's divisors; the context that they stretch, and what cosines are multiplied with."""
    scaling: dict[str, object] = {"rope_type": "longrope", "long_factor": list(long), "short_factor": list(short)}
    factor = keys.real("rope.scaling.attn_factor")
    if factor is not None:
        scaling["attention_factor"] = factor
    original = keys.whole("rope.scaling.original_context_length")
    return {"rope_scaling": scaling} | ({"original_max_position_embeddings": original} if original else {})


def _rope_scaling(keys: Keys, factors: Sequence[float] | None, rotary_dim: int) -> dict[str, object] | None:
    kind = keys.text("rope.scaling.type") or "none"
    factor = keys.real("rope.scaling.factor") or keys.real("rope.scale_linear")
    if kind == "none" and keys.real("rope.scale_linear") not in (None, 1.0):
        kind = "linear"  # how files of 2023 said it
    if factors is not None:
        if kind != "none":
            raise UnsupportedError(f"it has both rope factors and rope scaling {quote(kind)}; supported: one of them")
        rule = f"rope_freqs.weight must hold {rotary_dim // 2} positive numbers"
        if len(factors) != rotary_dim // 2:
            raise CheckpointError(f"{rule}, got {len(factors)}")
        wrong = next((place for place, value in enumerate(factors) if not 0 < value < math.inf), None)
        if wrong is not None:
            raise CheckpointError(f"{rule}, got {factors[wrong]} as number {wrong}; fetch the file again")
        return {"rope_type": "factors", "factors": list(factors)}
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise UnsupportedError(
            f"its rope scaling {quote(kind)} isn't supported; supported: none, linear, yarn, factors"
        )
    for key in ("attn_factor", "yarn_ext_factor", "yarn_attn_factor"):
        if keys.real(f"rope.scaling.{key}", may_be_zero=True) not in (None, 1.0):
            raise UnsupportedError(f"its rope.scaling.{key} isn't 1, which isn't supported; supported: 1")
    scaling: dict[str, object] = {"rope_type": kind, "factor": keys.required(Real("rope.scaling.factor", factor))}
    if kind == "yarn":
        found = {
            "original_max_position_embeddings": keys.whole("rope.scaling.original_context_length"),
            "beta_fast": keys.real("rope.scaling.yarn_beta_fast"),
            "beta_slow": keys.real("rope.scaling.yarn_beta_slow"),
        }
        scaling.update({key: value for key, value in found.items() if value is not None})
    return scaling


def _window(keys: Keys, architecture: Architecture) -> dict[str, object]:
    """The sliding window where one is named: of every layer, since these architectures have no pattern."""
    window = keys.whole("attention.sliding_window", minimum=0)
    if not window:
        return {}
    if architecture.model_type == "llama":
        return {"model_type": "mistral", "sliding_window": window}
    if architecture.model_type == "gpt_oss":
        return {"sliding_window": window}  # of every other layer
    return {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}


def _experts(keys: Keys, architecture: Architecture) -> dict[str, object]:
    num_experts = keys.whole("expert_count", minimum=0)
    if not num_experts:
        return {}
    if architecture.model_type == "llama":
        num_used = keys.required(Whole("expert_used_count"))
        return {"model_type": "mixtral", "num_local_experts": num_experts, "num_experts_per_tok": num_used}
    if "num_experts_per_tok" in architecture.keys:
        return {}
    raise UnsupportedError(f"a {architecture.model_type} with {num_experts} experts isn't supported; supported: none")


def _vocab_size(metadata: Mapping[str, object], keys: Keys, tensors: Mapping[str, TensorInfo]) -> int:
    """Rows of the embedding, which decide how many logits there are; without one what the header says."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, Sized) else 0
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        num_tokens = keys.whole("vocab_size") or num_tokens
        if not num_tokens:
            raise CheckpointError("it has neither a vocabulary nor an embedding; fetch the file again")
        return num_tokens
    if len(embedding.shape) != 2 or embedding.shape[0] < num_tokens:
        raise CheckpointError(
            f"tensor token_embd.weight has shape {embedding.shape} and the vocabulary {num_tokens} tokens; "
            "a row per token is needed"
        )
    return embedding.shape[0]


def _token_ids(metadata: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """Special tokens by their name in config.json, as far as the file has them; several may end a text.

    Converters write -1, as a large number, for a token that isn't there: what is out of range is none.
    """
    keys = Keys(metadata, "tokenizer.ggml.")
    tokens = metadata.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, Sized) else MAX_WHOLE_NUMBER
    names = {
        "bos_token_id": ("bos_token_id",),
        "eos_token_id": ("eos_token_id", "eot_token_id", "eom_token_id"),
        "pad_token_id": ("padding_token_id",),
    }
    found = {name: dict.fromkeys(keys.below(key, num_tokens) for key in sources) for name, sources in names.items()}
    ids = {name: tuple(value for value in values if value is not None) for name, values in found.items()}
    return {name: values for name, values in ids.items() if values}
