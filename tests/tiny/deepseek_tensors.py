"""The tensors of a tiny model with latent attention."""

from __future__ import annotations

from tiny.models import Config

Shapes = dict[str, tuple[int, ...]]


def deepseek_shapes(config: Config) -> Shapes:
    """The shape of every tensor under Hugging Face's names."""
    width, heads, bias = config["hidden_size"], config["num_attention_heads"], config["attention_bias"]
    own, turned, rank = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["kv_lora_rank"]
    low, inner = config["q_lora_rank"], config["intermediate_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    for number in range(config["num_hidden_layers"]):
        at = f"model.layers.{number}."
        shapes |= {at + "input_layernorm.weight": (width,), at + "post_attention_layernorm.weight": (width,)}
        part = at + "self_attn."
        if low is None:
            shapes |= _linear(part + "q_proj", heads * (own + turned), width, False)
        else:
            shapes |= _linear(part + "q_a_proj", low, width, bias) | {part + "q_a_layernorm.weight": (low,)}
            shapes |= _linear(part + "q_b_proj", heads * (own + turned), low, False)
        shapes |= _linear(part + "kv_a_proj_with_mqa", rank + turned, width, bias)
        shapes |= {part + "kv_a_layernorm.weight": (rank,)}
        shapes |= _linear(part + "kv_b_proj", heads * (own + config["v_head_dim"]), rank, False)
        shapes |= _linear(part + "o_proj", width, heads * config["v_head_dim"], bias)
        if number >= config["first_k_dense_replace"]:
            shapes |= _experts(config, at + "mlp.")
            continue
        shapes |= _linear(at + "mlp.gate_proj", inner, width, False) | _linear(at + "mlp.up_proj", inner, width, False)
        shapes |= _linear(at + "mlp.down_proj", width, inner, False)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    return shapes


def _experts(config: Config, at: str) -> Shapes:
    width, inner, number = config["hidden_size"], config["moe_intermediate_size"], config["n_routed_experts"]
    shapes: Shapes = {at + "gate.weight": (number, width)}
    if config["model_type"] == "deepseek_v3":
        shapes[at + "gate.e_score_correction_bias"] = (number,)
    shared = f"{at}shared_experts", inner * config["n_shared_experts"]
    for part, size in (shared, *((f"{at}experts.{expert}", inner) for expert in range(number))):
        shapes |= _linear(f"{part}.gate_proj", size, width, False) | _linear(f"{part}.up_proj", size, width, False)
        shapes |= _linear(f"{part}.down_proj", width, size, False)
    return shapes


def _linear(name: str, rows: int, columns: int, bias: bool) -> Shapes:
    return {name + ".weight": (rows, columns)} | ({name + ".bias": (rows,)} if bias else {})
