"""What ``kvist info`` says of a model: facts out of its files, as they go into JSON. Loads no weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

from kvist.cli.model_switches import switches_of
from kvist.model.kept import kept
from kvist.spec.cache import CacheSpec, allocated_bytes, bytes_per_token, layer_groups

if TYPE_CHECKING:
    from kvist.checkpoint.tokenizer import Tokenizer
    from kvist.engine.files import ModelFiles
    from kvist.spec.experts import Experts
    from kvist.spec.model import LayerSpec


def model_facts(files: ModelFiles, cache: CacheSpec) -> dict[str, Any]:
    """Return everything, sizes in bytes."""
    spec, tokenizer, tensors = files.spec, files.tokenizer, files.checkpoint.tensors
    types: Counter[str] = Counter()
    for tensor in tensors.values():
        types[tensor.type] += tensor.num_bytes
    switches = switches_of(files.checkpoint.config, spec)
    return {
        "model": files.name,
        "path": str(files.checkpoint.path),
        "format": files.checkpoint.format,
        "architecture": spec.architecture,
        "num_parameters": sum(prod(tensor.shape) for tensor in tensors.values()),
        "num_layers": spec.num_layers,
        "layers": [_layer(layer, number) for layer, number in Counter(spec.layers).items()],
        "width": spec.width,
        "mlp_width": spec.mlp_width,
        "experts": _experts(spec.experts),
        "left_out": files.left_out,
        "rope": _rope(files.checkpoint.config, switches.get("num_layers_unrotated", 0)),
        "switches": switches,
        "vocab_size": spec.vocab_size,
        "context_length": spec.context_length,
        "is_tied": spec.is_tied,
        "weights_bytes": files.weights_bytes,
        "weight_types": dict(types.most_common()),
        "loaded_bytes": files.loaded_bytes(None),
        "kept_as": [asdict(item) for item in kept(tensors.values())],
        "layer_groups": [_layer(group.layer, len(group.layers)) for group in layer_groups(spec, cache)],
        "tokenizer": None if tokenizer is None else _tokenizer(tokenizer),
        "tokenizer_vocab_size": tokenizer.vocab_size if tokenizer else None,
        "end_token_ids": sorted(files.end_token_ids),
        "has_chat_template": files.has_template,
        "chat_templates": {} if tokenizer is None else {n: len(text) for n, text in tokenizer.chat_templates.items()},
        "kv": {
            "k": cache.k_codec,
            "v": cache.v_codec,
            "bytes_per_token": bytes_per_token(spec, cache),
            "block_bytes": sum(group.block_bytes for group in layer_groups(spec, cache)),
            "context_bytes": allocated_bytes(spec, cache, spec.context_length),
        },
    }


def _layer(layer: LayerSpec, num_layers: int) -> dict[str, Any]:
    return {
        "kind": layer.kind,
        "num_layers": num_layers,
        "num_heads": layer.num_heads,
        "num_kv_heads": layer.num_kv_heads,
        "k_dim": layer.k_dim,
        "v_dim": layer.v_dim,
        "window": layer.window,
    }


def _experts(experts: tuple[Experts | None, ...]) -> list[dict[str, Any]]:
    """What layers with experts have, by kind; of a model without, nothing."""
    kinds = Counter(kind for kind in experts if kind is not None)
    return [{"num_layers": number, **asdict(kind)} for kind, number in kinds.items()]


def _rope(config: Mapping[str, object], num_unrotated: int) -> dict[str, Any] | None:
    """Rotary settings as the config has them, in either of transformers' spellings; None where it has none.

    ``local_base`` is that of window layers where they have one of their own, ``num_layers_without`` counts layers that
    rotate nothing.
    """
    text = config.get("text_config")
    config = text if isinstance(text, Mapping) else config
    found = config.get("rope_parameters") or config.get("rope_scaling")
    settings = found if isinstance(found, Mapping) else {}
    by_kind = {kind: part for kind, part in settings.items() if isinstance(part, Mapping)}
    local = by_kind.get("sliding_attention", {})
    settings = by_kind.get("full_attention", settings)
    base = _number(settings.get("rope_theta", config.get("rope_theta")))
    if base is None and not settings:
        return None
    without = config.get("no_rope_layers")
    return {
        "base": base,
        "local_base": _number(local.get("rope_theta", config.get("rope_local_base_freq"))),
        "scaling": str(settings.get("rope_type") or settings.get("type") or "default"),
        "factor": _number(settings.get("factor")),
        "original_context_length": _number(settings.get("original_max_position_embeddings")),
        "rotated_share": _number(settings.get("partial_rotary_factor", config.get("partial_rotary_factor"))) or 1.0,
        "num_layers_without": without.count(0) if isinstance(without, list) else num_unrotated,
    }


def _number(value: object) -> int | float | None:
    """Return a number that JSON has; configs are strangers' and may hold anything."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if isfinite(value) else None


def _tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    bos = tokenizer.bos_token_id
    around = tokenizer.encode("")
    return {
        "kind": tokenizer.kind,
        "pre_tokenizer": tokenizer.pre_tokenizer,
        "vocab_size": tokenizer.vocab_size,
        "num_special": len(tokenizer.special_token_ids),
        "bos": None if bos is None else _named(tokenizer, bos),
        "ends": [_named(tokenizer, token_id) for token_id in sorted(tokenizer.eos_token_ids)],
        "adds_bos": around[:1] == [bos],
        "adds_eos": bool(around) and around[-1] in tokenizer.eos_token_ids and around[-1:] != [bos],
        "variables": dict(tokenizer.template_tokens),
    }


def _named(tokenizer: Tokenizer, token_id: int) -> dict[str, Any]:
    return {"id": token_id, "text": tokenizer.token_text(token_id)}
