"""Facts of published models: the config keys that decide the cache's bytes, and the bytes.

Not the published files: only what matters, written down anew. The bytes are of a bf16 cache, one sequence; a recurrent
state in f32 and in bf16, convolution columns in bf16. Those of sixteen models were read back from a serving engine,
seven whole-model figures agree with independent published ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Facts:
    """What a model's config says, and what its cache must take."""

    name: str
    config: dict[str, Any]
    full: int
    windows: dict[int, int] = field(default_factory=dict)
    constant_f32: int = 0
    constant_bf16: int = 0
    parameters: int | None = None

    def sequence_bytes(self, num_tokens: int) -> int:
        windows = sum(size * min(window, num_tokens) for window, size in self.windows.items())
        return self.full * num_tokens + windows + self.constant_f32


def transformer(
    model_type: str, width: int, layers: int, heads: int, kv_heads: int | None, **more: Any
) -> dict[str, Any]:
    """The keys that most configs share."""
    keys: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    if kv_heads is not None:
        keys["num_key_value_heads"] = kv_heads
    return keys | more


def _latent(model_type: str, width: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    ranks = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    return transformer(model_type, width, layers, heads, heads, **ranks, **more)


def _period(length: int, last: str, others: str, layers: int) -> list[str]:
    return [last if (number + 1) % length == 0 else others for number in range(layers)]


SLIDING, FULL = "sliding_attention", "full_attention"
_DEEPSEEK_V3 = {
    "vocab_size": 129280,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "tie_word_embeddings": False,
}
_KIMI_FULL = [*range(4, 93, 4), 93]
_KIMI = {
    "full_attn_layers": _KIMI_FULL,
    "kda_layers": [number for number in range(1, 94) if number not in _KIMI_FULL],
    "head_dim": 128,
    "num_heads": 96,
    "short_conv_kernel_size": 4,
}

PUBLISHED: tuple[Facts, ...] = (
    Facts(
        "GPT-2",
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        36864,
        parameters=124439808,
    ),
    Facts(
        "24 layers of 2,048", transformer("llama", 2048, 24, 16, 16, vocab_size=32000, intermediate_size=5504), 196608
    ),
    Facts(
        "Llama-2-7b",
        transformer("llama", 4096, 32, 32, 32, vocab_size=32000, intermediate_size=11008, tie_word_embeddings=False),
        524288,
        parameters=6738415616,
    ),
    Facts(
        "Llama-3.1-8B",
        transformer(
            "llama", 4096, 32, 32, 8, vocab_size=128256, intermediate_size=14336, max_position_embeddings=131072
        ),
        131072,
        parameters=8030261248,
    ),
    Facts(
        "SmolLM2-135M",
        transformer("llama", 576, 30, 9, 3, vocab_size=49152, intermediate_size=1536, tie_word_embeddings=True),
        23040,
        parameters=134515008,
    ),
    Facts(
        "Qwen2.5-7B",
        transformer(
            "qwen2",
            3584,
            28,
            28,
            4,
            vocab_size=152064,
            intermediate_size=18944,
            sliding_window=131072,
            use_sliding_window=False,
            max_window_layers=28,
        ),
        57344,
        parameters=7615616512,
    ),
    Facts(
        "Qwen3-8B",
        transformer("qwen3", 4096, 36, 32, 8, head_dim=128, vocab_size=151936, intermediate_size=12288),
        147456,
        parameters=8190735360,
    ),
    Facts(
        "Qwen3-30B-A3B",
        transformer(
            "qwen3_moe",
            2048,
            48,
            32,
            4,
            head_dim=128,
            vocab_size=151936,
            intermediate_size=6144,
            moe_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=8,
        ),
        98304,
        parameters=30532122624,
    ),
    Facts(
        "Mixtral-8x7B",
        transformer(
            "mixtral",
            4096,
            32,
            32,
            8,
            vocab_size=32000,
            intermediate_size=14336,
            num_local_experts=8,
            num_experts_per_tok=2,
            sliding_window=None,
        ),
        131072,
        parameters=46702792704,
    ),
    Facts(
        "Falcon-7B", transformer("falcon", 4544, 32, 71, None, multi_query=True, new_decoder_architecture=False), 8192
    ),
    Facts(
        "Mistral-7B",
        transformer("mistral", 4096, 32, 32, 8, vocab_size=32000, intermediate_size=14336, sliding_window=4096),
        0,
        {4096: 131072},
        parameters=7241732096,
    ),
    Facts(
        "Phi-3-mini",
        transformer("phi3", 3072, 32, 32, 32, vocab_size=32064, intermediate_size=8192, sliding_window=2047),
        0,
        {2047: 393216},
        parameters=3821079552,
    ),
    Facts(
        "Gemma-2-9B",
        transformer("gemma2", 3584, 42, 16, 8, head_dim=256, vocab_size=256000, sliding_window=4096),
        172032,
        {4096: 172032},
    ),
    Facts(
        "Gemma-3-27B",
        {
            "model_type": "gemma3",
            "text_config": transformer("gemma3_text", 5376, 62, 32, 16, head_dim=128, sliding_window=1024),
            "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 27},
        },
        81920,
        {1024: 425984},
    ),
    Facts(
        "Gemma-3n-E2B",
        {
            "model_type": "gemma3n",
            "text_config": transformer(
                "gemma3n_text",
                2048,
                30,
                8,
                2,
                head_dim=256,
                sliding_window=512,
                num_kv_shared_layers=10,
                layer_types=_period(5, FULL, SLIDING, 30),
            ),
        },
        8192,
        {512: 32768},
    ),
    Facts(
        "Gemma-4-26B-A4B",
        {
            "model_type": "gemma4",
            "text_config": transformer(
                "gemma4_text",
                2816,
                30,
                16,
                8,
                head_dim=256,
                global_head_dim=512,
                num_global_key_value_heads=2,
                attention_k_eq_v=True,
                sliding_window=1024,
                layer_types=_period(6, FULL, SLIDING, 30),
            ),
        },
        20480,
        {1024: 204800},
    ),
    Facts(
        "gpt-oss-20b",
        transformer(
            "gpt_oss",
            2880,
            24,
            64,
            8,
            head_dim=64,
            vocab_size=201088,
            intermediate_size=2880,
            num_local_experts=32,
            num_experts_per_tok=4,
            sliding_window=128,
            layer_types=_period(2, FULL, SLIDING, 24),
        ),
        24576,
        {128: 24576},
        parameters=20914757184,
    ),
    Facts(
        "Llama-4-Scout",
        {
            "model_type": "llama4",
            "text_config": transformer("llama4_text", 5120, 48, 40, 8, head_dim=128, attention_chunk_size=8192),
        },
        49152,
        {8192: 147456},
    ),
    Facts("DeepSeek-V2-Lite", _latent("deepseek_v2", 2048, 27, 16, vocab_size=102400), 31104),
    Facts("DeepSeek-V3", _latent("deepseek_v3", 7168, 61, 128, **_DEEPSEEK_V3), 70272, parameters=671026404352),
    Facts(
        "DeepSeek-V3.2",
        _latent("deepseek_v32", 7168, 61, 128, index_head_dim=128, index_n_heads=64, **_DEEPSEEK_V3),
        85888,
    ),
    Facts(
        "Qwen3-Next-80B-A3B",
        transformer(
            "qwen3_next",
            2048,
            48,
            16,
            2,
            head_dim=256,
            full_attention_interval=4,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_conv_kernel_dim=4,
        ),
        24576,
        constant_f32=77266944,
        constant_bf16=39518208,
    ),
    Facts(
        "Jamba-v0.1",
        transformer(
            "jamba", 4096, 32, 32, 8, attn_layer_period=8, attn_layer_offset=4, mamba_d_state=16, mamba_d_conv=4
        ),
        16384,
        constant_f32=16056320,
        constant_bf16=8716288,
    ),
    Facts(
        "Granite-4.0-H-Small",
        transformer(
            "granitemoehybrid",
            4096,
            40,
            32,
            8,
            layer_types=["attention" if number in (5, 15, 25, 35) else "mamba" for number in range(40)],
            mamba_n_heads=128,
            mamba_d_head=64,
            mamba_d_state=128,
            mamba_n_groups=1,
            mamba_d_conv=4,
        ),
        16384,
        constant_f32=152819712,
        constant_bf16=77322240,
    ),
    Facts(
        "Nemotron-H-8B",
        transformer(
            "nemotron_h",
            4096,
            52,
            32,
            8,
            head_dim=128,
            hybrid_override_pattern="M-M-M-M*" + "-M-M-M-M-M*" * 3 + "-M-M-M-M-M-",
            mamba_num_heads=128,
            mamba_head_dim=64,
            ssm_state_size=128,
            n_groups=8,
            conv_kernel=4,
        ),
        16384,
        constant_f32=102137856,
        constant_bf16=51806208,
    ),
    Facts(
        "Nemotron-3-Nano-30B-A3B",
        transformer(
            "nemotron_h",
            2688,
            52,
            32,
            2,
            head_dim=128,
            hybrid_override_pattern="MEMEM*" + "EMEMEM*" * 4 + "EMEMEMEM*" + "EMEMEMEME",
            mamba_num_heads=64,
            mamba_head_dim=64,
            ssm_state_size=128,
            n_groups=8,
            conv_kernel=4,
        ),
        6144,
        constant_f32=49082368,
        constant_bf16=24965120,
    ),
    Facts(
        "LFM2-1.2B",
        transformer("lfm2", 2048, 16, 32, 8, conv_L_cache=3, full_attn_idxs=[2, 5, 8, 10, 12, 14], block_ff_dim=12288),
        12288,
        constant_f32=81920,
        constant_bf16=81920,
    ),
    Facts(
        "Kimi-K3",
        {"model_type": "kimi_k3", "text_config": _latent("kimi_linear", 7168, 93, 96, linear_attn_config=_KIMI)},
        27648,
        constant_f32=449372160,
        constant_bf16=449372160,
    ),
    Facts(
        "T5-base",
        {
            "model_type": "t5",
            "d_model": 768,
            "d_kv": 64,
            "d_ff": 3072,
            "num_layers": 12,
            "num_heads": 12,
            "vocab_size": 32128,
        },
        36864,
        parameters=222903552,
    ),
    Facts(
        "Whisper-large-v3",
        {
            "model_type": "whisper",
            "d_model": 1280,
            "encoder_layers": 32,
            "decoder_layers": 32,
            "decoder_attention_heads": 20,
            "encoder_attention_heads": 20,
            "max_source_positions": 1500,
            "num_hidden_layers": 32,
            "vocab_size": 51866,
            "num_mel_bins": 128,
            "decoder_ffn_dim": 5120,
            "encoder_ffn_dim": 5120,
        },
        163840,
        constant_f32=245760000,
        constant_bf16=245760000,
        parameters=1543490560,
    ),
)
"""Thirty models of every kind of layer."""

BY_NAME = {facts.name: facts for facts in PUBLISHED}
