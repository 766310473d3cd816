"""What GGUF's ``deepseek2`` says of latent attention and of experts, in the words of Hugging Face's config.

Older files state the widths of keys and values as they are computed with; newer ones state those of the stored latents,
and the others under names of their own. Which of the two models a file holds isn't said: version 3 chooses experts by
sigmoids.
"""

from __future__ import annotations

from kvist.checkpoint.gguf_keys import Keys, Real, Whole
from kvist.errors import CheckpointError

_SIGMOID = 2
"""What ``expert_gating_func`` says of sigmoids."""

LATENT_KEYS: dict[str, Whole | Real] = {
    "hidden_size": Whole("embedding_length"),
    "intermediate_size": Whole("feed_forward_length"),
    "num_hidden_layers": Whole("block_count"),
    "num_attention_heads": Whole("attention.head_count"),
    "num_key_value_heads": Whole("attention.head_count"),
    "max_position_embeddings": Whole("context_length"),
    "rms_norm_eps": Real("attention.layer_norm_rms_epsilon"),
    "rope_theta": Real("rope.freq_base", default=10000.0),
    "kv_lora_rank": Whole("attention.kv_lora_rank"),
    "qk_rope_head_dim": Whole("rope.dimension_count"),
}


def latent_config(keys: Keys) -> dict[str, object]:
    """Widths, and what is said of experts; raises CheckpointError where widths contradict each other."""
    turned = int(keys.required(Whole("rope.dimension_count")))
    key_width = keys.whole("attention.key_length_mla") or int(keys.required(Whole("attention.key_length")))
    value_width = keys.whole("attention.value_length_mla") or int(keys.required(Whole("attention.value_length")))
    if key_width <= turned:
        raise CheckpointError(
            f"its keys are {key_width} wide, of which it rotates {turned}; more than those are needed"
        )
    config: dict[str, object] = {
        "qk_nope_head_dim": key_width - turned,
        "v_head_dim": value_width,
        "q_lora_rank": keys.whole("attention.q_lora_rank"),
    }
    return config | _experts(keys)


def _experts(keys: Keys) -> dict[str, object]:
    num_experts = keys.whole("expert_count", minimum=0) or 0
    is_third = keys.whole("expert_gating_func", minimum=0) == _SIGMOID
    config: dict[str, object] = {"model_type": "deepseek_v3" if is_third else "deepseek_v2"}
    num_layers = int(keys.required(Whole("block_count")))
    if not num_experts:
        return config | {"first_k_dense_replace": num_layers}
    groups = keys.whole("expert_group_count") or 1
    config |= {
        "first_k_dense_replace": keys.whole("leading_dense_block_count", minimum=0) or 0,
        "n_routed_experts": num_experts,
        "num_experts_per_tok": keys.required(Whole("expert_used_count")),
        "moe_intermediate_size": keys.required(Whole("expert_feed_forward_length")),
        "n_shared_experts": keys.whole("expert_shared_count", minimum=0) or 0,
        "routed_scaling_factor": keys.real("expert_weights_scale", may_be_zero=True) or 1.0,
        "norm_topk_prob": keys.flag("expert_weights_norm"),
        "n_group": groups,
        "topk_group": keys.whole("expert_group_used_count") or groups,
    }
    return config if is_third else config | {"topk_method": "group_limited_greedy" if groups > 1 else "greedy"}


def latent_scaling(keys: Keys, scaling: dict[str, object] | None) -> dict[str, object] | None:
    """A scaled rope with what scores are multiplied with for it: the file says a tenth of ``mscale_all_dim``.

    Cosines and sines are multiplied with the ratio of ``mscale`` to it, which files don't state: 1, as in every model.
    """
    tenth = keys.real("rope.scaling.yarn_log_multiplier", may_be_zero=True)
    if scaling is None or not tenth:
        return scaling
    share = round(tenth * 10, 6)
    return {**scaling, "mscale": share, "mscale_all_dim": share}
