"""What ``kvist info`` says of a model's forward pass: its family's switches, or in a line why kvist doesn't run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvist.errors import KvistError
from kvist.model.families import DecoderSpec, check_runs, family_of
from kvist.model.rope import attention_factor
from kvist.spec.model import ModelSpec


def switches_of(config: Mapping[str, object], model: ModelSpec) -> dict[str, Any]:
    """Return the switches as JSON has them; ``not_run`` is the reason where there are none."""
    try:
        check_runs(model)
        spec = family_of(config).switches(config, model.layers[0].k_dim)
        factors = [attention_factor(rope) for rope in spec.ropes]
    except KvistError as error:
        return {"not_run": str(error)}
    return {
        "not_run": None,
        "norm": spec.norm,
        "norm_place": spec.norm_place,
        "qk_norm": spec.qk_norm or None,
        "activation": spec.activation,
        "is_gated": spec.is_gated,
        "is_parallel": spec.is_parallel,
        "score_cap": spec.score_cap or None,
        "logit_cap": spec.logit_cap or None,
        "scales": _scales(spec),
        "attention_factor": max(factors, default=1.0),
        "num_layers_unrotated": len(spec.unrotated),
    }


def _scales(spec: DecoderSpec) -> dict[str, float]:
    """What is multiplied with a number of its own."""
    scales = {
        "embeddings": spec.embedding_scale,
        "scores": spec.score_scale,
        "residuals": spec.residual_scale,
        "logits": spec.logit_scale,
    }
    return {name: scale for name, scale in scales.items() if scale is not None and scale != 1}


def in_a_line(found: dict[str, Any]) -> str:
    """The switches for people."""
    if found["not_run"] is not None:
        return f"not run: {found['not_run']}"
    norm = "RMSNorm" if found["norm"] == "rms" else "LayerNorm"
    place = {"before": "before", "after": "after", "around": "before and after"}[found["norm_place"]]
    activation = {"silu": "SiLU", "gelu_tanh": "GELU (tanh)", "gelu": "GELU"}[found["activation"]]
    parts = [f"{norm} {place} each part", f"{activation}{', gated' if found['is_gated'] else ''}"]
    if found["qk_norm"]:
        over = {"head": "over each head", "each": "over each head, of its own", "all": "over all heads"}
        parts.append(f"q and k normed {over[found['qk_norm']]}")
    if found["is_parallel"]:
        parts.append("attention and MLP side by side")
    caps = {"scores": found["score_cap"], "logits": found["logit_cap"]}
    parts += [f"{name} capped at {cap:g}" for name, cap in caps.items() if cap]
    parts += [f"{name} x {scale:.4g}" for name, scale in found["scales"].items()]
    if found["attention_factor"] != 1:
        parts.append(f"rotations x {found['attention_factor']:.4g}")
    return ", ".join(parts)
