"""Tiny models in the forms that identity is proved for: weights as files hold them, caches as they are kept.

Head dims and shares are few, because each kind of attention takes seconds to compile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny.gguf_file import write_gguf
from tiny.models import TinyModel
from tiny.tensors import write_directory

from kvist.cache.kv_cache import KvCache
from kvist.checkpoint.catalog import open_checkpoint
from kvist.model.decoder import Decoder, load_decoder
from kvist.spec.cache import CacheSpec

CONTEXT = 700


@dataclass(frozen=True)
class Case:
    """``form``: the matrices' type in a GGUF file, or a directory's (``weights`` then converts at load, None: not)."""

    name: str
    config: Mapping[str, Any]
    form: str = "directory"
    weights: str | None = None
    codec: str = "bf16"
    v_codec: str | None = None
    keep_layers: tuple[int, ...] = ()
    seed: int = 77

    @property
    def cache(self) -> CacheSpec:
        return CacheSpec(self.codec, v=self.v_codec, keep_layers=self.keep_layers)

    @property
    def model(self) -> TinyModel:
        return TinyModel(f"{self.config['model_type']}-{self.name}", self.config, self.seed)

    def write(self, path: Path) -> Path:
        """Write the model's file or directory below ``path``; returns where it is."""
        if self.form == "directory":
            return write_directory(self.model, path / self.name)
        write_gguf(self.model, path / f"{self.name}.gguf", self.form)
        return path / f"{self.name}.gguf"

    def load(self, path: Path, threads: int = 2) -> Decoder:
        """The decoder of what ``write`` returned."""
        checkpoint = open_checkpoint(path)
        decoder = load_decoder(checkpoint, weights=self.weights, threads=threads)
        checkpoint.close()
        return decoder

    def new_cache(self, decoder: Decoder, num_sequences: int = 1) -> KvCache:
        """A cache whose every byte says NaN, so that reading what was never written shows."""
        cache = KvCache(decoder.spec, self.cache, num_tokens=CONTEXT, num_sequences=num_sequences)
        cache.store.arena[:] = 0xFF
        return cache


def _llama(family: str = "llama", **changes: Any) -> dict[str, Any]:
    common = {
        "model_type": family,
        "vocab_size": 67,
        "hidden_size": 64,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }
    return common | changes


_GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 53,
    "n_embd": 48,
    "n_head": 3,
    "n_layer": 2,
    "n_inner": 100,
    "n_positions": CONTEXT,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}
_LATENT = {
    "model_type": "deepseek_v2",
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "attention_bias": False,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
_ONE_KV_HEAD = {"hidden_size": 40, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 56}
_GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 100, "attention_bias": True}
_MIXED = {"use_sliding_window": True, "sliding_window": 100, "layer_types": ["full_attention", "sliding_attention"]}

CASES = {
    case.name: case
    for case in (
        *(Case(form, _llama(), form) for form in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1")),
        Case("window", _llama("mistral", **_ONE_KV_HEAD, sliding_window=20, tie_word_embeddings=False), codec="f32"),
        Case("mixed", _llama("qwen3", hidden_size=72, intermediate_size=100, **_MIXED), weights="bf16"),
        Case("biases", _llama("qwen2", **_ONE_KV_HEAD), weights="q4"),
        Case("learned", _GPT2, codec="f32"),
        Case("experts", _llama("mixtral", num_local_experts=5, num_experts_per_tok=2, sliding_window=None), "q4_0"),
        Case("nothing", _llama("gpt_oss", **_GPT_OSS), weights="q8", codec="int8"),
        Case("latent", _LATENT),
        Case("int8", _llama(), "q4_1", codec="int8"),
        Case("int4", _llama("mistral", sliding_window=300), codec="int4"),
        Case("codecs", _llama(num_hidden_layers=3), "bf16", codec="int8", v_codec="int4", keep_layers=(1,)),
    )
}
