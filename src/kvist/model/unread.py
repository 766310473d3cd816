"""Tensors of a checkpoint that no part of the forward pass reads: a sign that the file is of another model.

Left out is what changes no logit: buffers that files carry along, what positions or images are made of, scales that
activations are quantised with, layers that only guess ahead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from kvist.checkpoint.files import Checkpoint, TensorInfo, quote, quote_path
from kvist.errors import UnsupportedError
from kvist.model.families import LatentNames, Names
from kvist.spec.model import ModelSpec

_HARMLESS = re.compile(
    r"rope_(freqs|factors_long|factors_short)\.weight$"  # the config's rope settings
    r"|\.(rope_freqs|attn_rot_embd)\.weight$|rotary_emb\.(inv_freq|cos_cached|sin_cached)$"
    r"|\.(attn|attention)\.(bias|masked_bias)$"  # masks
    r"|\.(input|output|act|k|v|q|kv|prob)_scale$|\.(g_idx|weight_g_idx|weight_shape|qzeros)$"
    r"|^(v|mm|a|mtp)\.|^v_head\."  # images and sound beside a text model in GGUF; values, not logits
)
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def check_all_read(checkpoint: Checkpoint, read: AbstractSet[str], names: Names, model: ModelSpec) -> None:
    """Raise UnsupportedError where tensors of the checkpoint are neither in ``read`` nor known to be harmless."""
    left = list(_unread(checkpoint, read, names, model))
    if left:
        number = "a tensor" if len(left) == 1 else f"{len(left)} tensors"
        raise UnsupportedError(
            f"{quote_path(checkpoint.path)} has {number} that {model.architecture}'s forward pass doesn't use, the "
            f"first is {quote(left[0].name)}; it may be of another family, or have more layers than its config says"
        )


def _unread(checkpoint: Checkpoint, read: AbstractSet[str], names: Names, model: ModelSpec) -> Iterator[TensorInfo]:
    outputs = {start + name for start in names.prefixes for name in (names.output, names.other_output) if model.is_tied}
    ahead = _layers_ahead(checkpoint.config, len(model.layers))
    for name, info in checkpoint.tensors.items():
        layer = _LAYER.search(name)
        is_ahead = layer is not None and int(layer[1][:9]) in ahead
        is_harmless = is_ahead or _HARMLESS.search(name) or name in outputs or _is_latents_other(name, names)
        if name not in read and not is_harmless and not _is_no_bias(checkpoint, info):
            yield info


def _layers_ahead(config: Mapping[str, object], num_layers: int) -> range:
    """Layers after the last that predict more than the next token (DeepSeek-V3)."""
    number = config.get("num_nextn_predict_layers")
    return range(num_layers, num_layers + (number if type(number) is int else 0))


def _is_latents_other(name: str, names: Names) -> bool:
    """Whether a tensor is a form of what expands latents, which some GGUF files have in both."""
    latent: LatentNames | None = names.latent
    forms = (latent.kv_b, latent.k_b, latent.v_b) if latent is not None and latent.k_b else ()
    return any(re.fullmatch(re.escape(form).replace(r"\{n\}", r"\d+"), name) for form in forms)


def _is_no_bias(checkpoint: Checkpoint, info: TensorInfo) -> bool:
    """Whether a tensor is a bias of zeros, as GPTQ's programs add to every matrix."""
    is_bias = info.name.endswith(".bias") and len(info.shape) == 1 and info.type in ("f32", "f16", "bf16")
    return is_bias and not checkpoint.raw(info.name).any()
