"""Random models whose rows are multiples of 256, so that llama.cpp's quantiser uses every type that it is asked for.

(SmolLM2's rows are 576 wide: most types need a multiple of 256, and fall back to others there.)
"""

from __future__ import annotations

from pathlib import Path

from oracles_llamacpp.runtime import quantise
from tiny.gguf_file import write_gguf
from tiny.models import TinyModel

from kvist.checkpoint.gguf import GgufFile

_CONFIG = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,  # of 64, three to a KV head: the shape that SmolLM2 has compiled
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_EXPERTS = {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None}
LLAMA = TinyModel("llama-wide", _CONFIG, seed=512)
MIXTRAL = TinyModel("mixtral-wide", _CONFIG | _EXPERTS, seed=513)
MIXTRAL_OF_ALL = TinyModel("mixtral-wide-all", {**MIXTRAL.config, "num_experts_per_tok": 3}, seed=513)
"""The same with every expert for every token, so that no rounding decides which are chosen."""

FTYPES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q2_K_S", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M"),
    *("Q5_K_S", "Q5_K_M", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS"),
    *("IQ3_S", "IQ3_M", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4_MOE", "F16", "BF16"),
)
"""What files are made as. MXFP4 is for experts alone; NVFP4 is in llama.cpp's list, but not among what it makes."""


def model_of(ftype: str) -> TinyModel:
    """The model that files of this kind are made of."""
    return MIXTRAL if ftype == "MXFP4_MOE" else LLAMA


def write_as(ftype: str, directory: Path, model: TinyModel | None = None) -> tuple[Path, Path]:
    """A file made by llama.cpp's quantiser, and the same with its numbers as f32, by llama.cpp's dequantiser.

    The types that need to know which inputs matter are told that all do alike.
    """
    source = directory / "f32.gguf"
    write_gguf(model or model_of(ftype), source)
    importance = {name: info.shape[-1] for name, info in GgufFile(source).tensors.items() if len(info.shape) == 2}
    path = quantise(source, directory / f"{ftype}.gguf", ftype, importance)
    return path, quantise(path, directory / f"{ftype}-f32.gguf", "F32")
