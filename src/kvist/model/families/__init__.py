"""The model families as a table: switches of the one forward pass, and where a file keeps each matrix.

Adding a family is an entry in a table of this package: how to read its switches from a config, and the tensor names of
its Hugging Face and GGUF files. Knows no bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvist.checkpoint.files import quote
from kvist.errors import UnsupportedError
from kvist.model.families import deepseek, gemma, gpt2, llama, mixture, neox, olmo, phi
from kvist.model.families.spec import DecoderSpec, Family, LatentNames, LatentSpec, Names
from kvist.spec.model import ModelSpec

__all__ = [
    "FAMILIES",
    "DecoderSpec",
    "Family",
    "LatentNames",
    "LatentSpec",
    "Names",
    "check_runs",
    "family_of",
    "has_learned_positions",
]

FAMILIES: dict[str, Family] = {
    **llama.FAMILIES,
    **gpt2.FAMILIES,
    **gemma.FAMILIES,
    **phi.FAMILIES,
    **neox.FAMILIES,
    **olmo.FAMILIES,
    **mixture.FAMILIES,
    **deepseek.FAMILIES,
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
        if layer.kind == "mla" and not layer.index_dim:
            if layer.k_dim % 16:
                raise UnsupportedError(f"layer {number} has latents of width {layer.k_dim}; supported: multiples of 16")
            continue
        if layer.kind not in ("full", "window") or layer.shares_cache or layer.state or layer.cross:
            raise UnsupportedError(f"layer {number} is of kind {layer.kind}, which kvist plans but doesn't run")
        if layer.k_dim != layer.v_dim or layer.k_dim % 16:
            raise UnsupportedError(f"layer {number} has heads of width {layer.k_dim}; supported: multiples of 16")
