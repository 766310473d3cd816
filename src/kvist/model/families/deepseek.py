"""deepseek_v2 and deepseek_v3: latent attention, and experts in all layers but the first ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvist.checkpoint.files import quote
from kvist.errors import SpecError, UnsupportedError
from kvist.model.families.llama import LLAMA_GGUF, LLAMA_HF, llama
from kvist.model.families.mixture import FUSED, GGUF, SEPARATE, is_normed
from kvist.model.families.settings import number_setting
from kvist.model.families.spec import DecoderSpec, Family, LatentNames, LatentSpec, RoutingSpec
from kvist.model.rope import RopeSpec, yarn_scale
from kvist.spec.fields import Fields
from kvist.spec.model_types import class_defaults

LATENT_HF = LatentNames(
    q="model.layers.{n}.self_attn.q_proj.weight",
    q_a="model.layers.{n}.self_attn.q_a_proj.weight",
    q_norm="model.layers.{n}.self_attn.q_a_layernorm.weight",
    q_b="model.layers.{n}.self_attn.q_b_proj.weight",
    kv_a="model.layers.{n}.self_attn.kv_a_proj_with_mqa.weight",
    kv_norm="model.layers.{n}.self_attn.kv_a_layernorm.weight",
    kv_b="model.layers.{n}.self_attn.kv_b_proj.weight",
)
LATENT_GGUF = LatentNames(
    q="blk.{n}.attn_q.weight",
    q_a="blk.{n}.attn_q_a.weight",
    q_norm="blk.{n}.attn_q_a_norm.weight",
    q_b="blk.{n}.attn_q_b.weight",
    kv_a="blk.{n}.attn_kv_a_mqa.weight",
    kv_norm="blk.{n}.attn_kv_a_norm.weight",
    kv_b="blk.{n}.attn_kv_b.weight",
    k_b="blk.{n}.attn_k_b.weight",
    v_b="blk.{n}.attn_v_b.weight",
)
EXPERTS_HF = replace(
    SEPARATE,
    selection_bias="model.layers.{n}.mlp.gate.e_score_correction_bias",
    shared_up=(
        "model.layers.{n}.mlp.shared_experts.gate_proj.weight",
        "model.layers.{n}.mlp.shared_experts.up_proj.weight",
    ),
    shared_down="model.layers.{n}.mlp.shared_experts.down_proj.weight",
)
EXPERTS_GGUF = replace(
    GGUF,
    selection_bias="blk.{n}.exp_probs_b.bias",
    shared_up=("blk.{n}.ffn_gate_shexp.weight", "blk.{n}.ffn_up_shexp.weight"),
    shared_down="blk.{n}.ffn_down_shexp.weight",
)
DEEPSEEK_HF = replace(
    LLAMA_HF, latent=LATENT_HF, experts=(EXPERTS_HF, replace(EXPERTS_HF, up=FUSED.up, down=FUSED.down))
)
DEEPSEEK_GGUF = replace(LLAMA_GGUF, latent=LATENT_GGUF, experts=(EXPERTS_GGUF,))


def deepseek(config: Mapping[str, object], _head_dim: int) -> DecoderSpec:
    """llama's MLP and norms around latent attention; absent keys mean what transformers' config class says."""
    fields = Fields(config, class_defaults()[str(config["model_type"])])
    own, turned = fields.count("qk_nope_head_dim"), fields.count("qk_rope_head_dim")
    spec = llama(config, turned)
    assert spec.rope is not None
    if spec.rope.dim != turned:
        raise SpecError(f"partial_rotary_factor must be 1 in a model with latents, got {spec.rope.dim / turned:g}")
    check_widths(fields)
    latent = LatentSpec(
        rank=fields.count("kv_lora_rank"),
        turned=turned,
        own=own,
        v_dim=fields.count("v_head_dim"),
        q_rank=fields.maybe_count("q_lora_rank"),
        scale=(own + turned) ** -0.5 * key_scale(spec.rope) ** 2,
        is_interleaved=config.get("model_type") == "deepseek_v2" or config.get("rope_interleave") is not False,
    )
    is_third = config.get("model_type") == "deepseek_v3"
    return replace(spec, latent=latent, routing=sigmoids(config) if is_third else softmax(config))


def softmax(config: Mapping[str, object]) -> RoutingSpec:
    """Version 2: the best of a softmax, or of the groups whose best expert is among the best; never normed."""
    scale, method = number_setting(config, "routed_scaling_factor", 1.0), config.get("topk_method", "greedy")
    if method == "greedy":
        return RoutingSpec(is_normed=False, scale=scale)
    if method != "group_limited_greedy":
        raise UnsupportedError(
            f"topk_method {quote(method)} of a deepseek_v2 isn't supported; supported: greedy, group_limited_greedy"
        )
    fields = Fields(config, {})
    groups, kept = fields.count("n_group"), fields.count("topk_group")
    return RoutingSpec(is_normed=False, scale=scale, num_groups=groups, num_kept_groups=kept)


def sigmoids(config: Mapping[str, object]) -> RoutingSpec:
    """Version 3: the best sigmoids with a bias, of the groups whose two best add up to most."""
    fields = Fields(config, {"n_group": 8, "topk_group": 4})
    return RoutingSpec(
        scores="sigmoid",
        is_normed=is_normed({"norm_topk_prob": True, **config}),
        scale=number_setting(config, "routed_scaling_factor", 2.5),
        num_groups=fields.count("n_group"),
        num_kept_groups=fields.count("topk_group"),
        group_best=2,
    )


def check_widths(fields: Fields) -> None:
    """Raise UnsupportedError for widths that kernels of 16 lanes don't take."""
    for key in ("kv_lora_rank", "qk_rope_head_dim", "v_head_dim"):
        if fields.count(key) % 16:
            raise UnsupportedError(f"{key} {fields.count(key)} isn't supported; supported: multiples of 16")


def key_scale(rope: RopeSpec) -> float:
    """What queries and keys are multiplied with for ``mscale_all_dim`` (YaRN, Peng et al., 2023)."""
    if rope.scaling == "default" or not rope.is_set("mscale_all_dim"):
        return 1.0
    return yarn_scale(rope.setting("factor"), rope.setting("mscale_all_dim"))


def deepseek_biases(config: Mapping[str, object]) -> frozenset[str]:
    """The matrices that have biases where the config says so; what makes queries at once, beside latents, has none."""
    has_low_rank = config.get("q_lora_rank", 1) is not None
    roles = ("latent", "attention_output") if has_low_rank else ("attention_output",)
    attention = roles if config.get("attention_bias") else ()
    return frozenset((*attention, *(("up", "down") if config.get("mlp_bias") else ())))


FAMILIES: dict[str, Family] = {
    "deepseek_v2": Family(deepseek, DEEPSEEK_HF, DEEPSEEK_GGUF, deepseek_biases),
    "deepseek_v3": Family(deepseek, DEEPSEEK_HF, DEEPSEEK_GGUF, deepseek_biases),
}
