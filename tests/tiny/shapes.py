"""The tensors that checkpoints of the dense families hold, under the reference implementation's names."""

from __future__ import annotations

from collections.abc import Callable

from tiny.models import Config

Shapes = dict[str, tuple[int, ...]]


def linear(name: str, rows: int, columns: int, bias: bool) -> Shapes:
    return {name + ".weight": (rows, columns)} | ({name + ".bias": (rows,)} if bias else {})


def norm(name: str, width: int, bias: bool) -> Shapes:
    return {name + ".weight": (width,)} | ({name + ".bias": (width,)} if bias else {})


def sizes(config: Config) -> tuple[int, int, int, int]:
    """Width of the model, of all queries, of all keys, and of the MLP."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or width // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return width, heads * head_dim, kv_heads * head_dim, config.get("intermediate_size", 4 * width)


def apart(at: str, config: Config, bias: bool, out_bias: bool, out: str = "o_proj") -> Shapes:
    """Four matrices of attention."""
    width, q, kv, _ = sizes(config)
    named = {"q_proj": q, "k_proj": kv, "v_proj": kv}
    found: Shapes = {}
    for name, rows in named.items():
        found |= linear(f"{at}self_attn.{name}", rows, width, bias)
    return found | linear(f"{at}self_attn.{out}", width, q, out_bias)


def gated(at: str, config: Config, bias: bool = False) -> Shapes:
    width, _, _, mlp = sizes(config)
    found = linear(at + "mlp.gate_proj", mlp, width, bias) | linear(at + "mlp.up_proj", mlp, width, bias)
    return found | linear(at + "mlp.down_proj", width, mlp, bias)


def plain(up: str, down: str, config: Config, bias: bool) -> Shapes:
    width, _, _, mlp = sizes(config)
    return linear(up, mlp, width, bias) | linear(down, width, mlp, bias)


def like_llama(config: Config, at: str) -> Shapes:
    """A layer of gemma, granite, smollm3 or olmo."""
    width, q, kv, _ = sizes(config)
    family, bias = config["model_type"], bool(config.get("attention_bias"))
    found = apart(at, config, bias, bias) | gated(at, config, bool(config.get("mlp_bias")))
    names = {
        "olmo": (),
        "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm"),
        "gemma2": (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
    }
    names["gemma3_text"] = names["gemma2"]
    for name in names.get(family, ("input_layernorm", "post_attention_layernorm")):
        found |= norm(at + name, width, False)
    if family in ("gemma3_text", "olmo2"):
        dims = (q, kv) if family == "olmo2" else (config["head_dim"],) * 2
        for name, dim in zip("qk", dims, strict=True):
            found |= norm(f"{at}self_attn.{name}_norm", dim, False)
    return found


def phi3(config: Config, at: str) -> Shapes:
    width, q, kv, mlp = sizes(config)
    found = linear(at + "self_attn.qkv_proj", q + 2 * kv, width, False) | linear(
        at + "self_attn.o_proj", width, q, False
    )
    found |= linear(at + "mlp.gate_up_proj", 2 * mlp, width, False) | linear(at + "mlp.down_proj", width, mlp, False)
    return found | norm(at + "input_layernorm", width, False) | norm(at + "post_attention_layernorm", width, False)


def phi(config: Config, at: str) -> Shapes:
    found = apart(at, config, True, True, "dense") | plain(at + "mlp.fc1", at + "mlp.fc2", config, True)
    return found | norm(at + "input_layernorm", config["hidden_size"], True)


def gpt_neox(config: Config, at: str) -> Shapes:
    width, bias = config["hidden_size"], config.get("attention_bias", True)
    found = linear(at + "attention.query_key_value", 3 * width, width, bias)
    found |= linear(at + "attention.dense", width, width, bias)
    found |= plain(at + "mlp.dense_h_to_4h", at + "mlp.dense_4h_to_h", config, True)
    return found | norm(at + "input_layernorm", width, True) | norm(at + "post_attention_layernorm", width, True)


def falcon(config: Config, at: str) -> Shapes:
    width, heads, bias = config["hidden_size"], config["num_attention_heads"], config.get("bias", False)
    is_new = config.get("new_decoder_architecture", False)
    kv_heads = config["num_kv_heads"] if is_new else (1 if config.get("multi_query", True) else heads)
    found = linear(at + "self_attention.query_key_value", (heads + 2 * kv_heads) * (width // heads), width, bias)
    found |= linear(at + "self_attention.dense", width, width, bias)
    found |= plain(at + "mlp.dense_h_to_4h", at + "mlp.dense_4h_to_h", config, bias)
    if is_new and config.get("num_ln_in_parallel_attn") != 1:
        return found | norm(at + "ln_attn", width, True) | norm(at + "ln_mlp", width, True)
    found |= norm(at + "input_layernorm", width, True)
    is_parallel = is_new or config.get("parallel_attn", True)
    return found if is_parallel else found | norm(at + "post_attention_layernorm", width, True)


def starcoder2(config: Config, at: str) -> Shapes:
    width, bias = config["hidden_size"], config.get("use_bias", True)
    found = apart(at, config, bias, bias) | plain(at + "mlp.c_fc", at + "mlp.c_proj", config, bias)
    return found | norm(at + "input_layernorm", width, True) | norm(at + "post_attention_layernorm", width, True)


def stablelm(config: Config, at: str) -> Shapes:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    found = apart(at, config, config.get("use_qkv_bias", False), False) | gated(at, config)
    found |= norm(at + "input_layernorm", width, True)
    if not config.get("use_parallel_residual"):
        found |= norm(at + "post_attention_layernorm", width, True)
    if config.get("qk_layernorm"):
        for name, number in (("q", heads), ("k", config["num_key_value_heads"])):
            for head in range(number):
                found |= norm(f"{at}self_attn.{name}_layernorm.norms.{head}", width // heads, False)
    return found


LAYERS: dict[str, tuple[str, str, str, str, bool | None, Callable[[Config, str], Shapes]]] = {
    **dict.fromkeys(
        ("gemma", "gemma2", "gemma3_text", "granite", "smollm3", "olmo2"),
        ("model.layers.{}.", "model.embed_tokens", "model.norm", "lm_head", False, like_llama),
    ),
    "olmo": ("model.layers.{}.", "model.embed_tokens", "model.norm", "lm_head", None, like_llama),
    "phi3": ("model.layers.{}.", "model.embed_tokens", "model.norm", "lm_head", False, phi3),
    "phi": ("model.layers.{}.", "model.embed_tokens", "model.final_layernorm", "lm_head", True, phi),
    "gpt_neox": ("gpt_neox.layers.{}.", "gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out", True, gpt_neox),
    "falcon": ("transformer.h.{}.", "transformer.word_embeddings", "transformer.ln_f", "lm_head", True, falcon),
    "starcoder2": ("model.layers.{}.", "model.embed_tokens", "model.norm", "lm_head", True, starcoder2),
    "stablelm": ("model.layers.{}.", "model.embed_tokens", "model.norm", "lm_head", True, stablelm),
}
"""By family: where layers, embedding, last norm and output stand, whether that norm has a bias (None: no weights
either), and the tensors of a layer."""


def dense_shapes(config: Config) -> Shapes:
    layers, embedding, final_norm, output, has_bias, of_layer = LAYERS[config["model_type"]]
    vocab_size, width = config["vocab_size"], config["hidden_size"]
    found: Shapes = {embedding + ".weight": (vocab_size, width)}
    if has_bias is not None:
        found |= norm(final_norm, width, has_bias)
    for number in range(config["num_hidden_layers"]):
        found |= of_layer(config, layers.format(number))
    if config["model_type"] == "phi":
        return found | linear(output, vocab_size, width, True)
    return found if config["tie_word_embeddings"] else found | linear(output, vocab_size, width, False)
