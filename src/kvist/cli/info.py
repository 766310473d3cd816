"""``kvist info``: what a model is and what its cache costs, without loading its weights."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kvist.cli import options
from kvist.cli.flatten import flattened
from kvist.cli.output import Output, command
from kvist.spec.cache import BLOCK_TOKENS, CacheSpec, allocated_bytes, bytes_per_token, layer_groups
from kvist.units import format_bytes

if TYPE_CHECKING:
    from kvist.engine.files import ModelFiles


@command
@flattened
def info(
    model: options.Model = options.DEFAULT_MODEL,
    kv: options.Kv = options.DEFAULT_KV,
    is_json: options.Json = False,
) -> None:
    """Show what a model is, what its weights are, and what its KV cache takes."""
    from kvist.engine.files import open_model

    out = Output(is_json)
    with open_model(model) as files:
        facts = _facts(files, CacheSpec(kv))
    for line in _lines(facts):
        out.line(line)
    out.finish(facts)


def _facts(files: ModelFiles, cache: CacheSpec) -> dict[str, Any]:
    spec, tokenizer = files.spec, files.tokenizer
    types: Counter[str] = Counter()
    for tensor in files.checkpoint.tensors.values():
        types[tensor.type] += tensor.num_bytes
    return {
        "model": files.name,
        "path": str(files.checkpoint.path),
        "format": files.checkpoint.format,
        "architecture": spec.architecture,
        "num_layers": spec.num_layers,
        "width": spec.width,
        "mlp_width": spec.mlp_width,
        "vocab_size": spec.vocab_size,
        "context_length": spec.context_length,
        "is_tied": spec.is_tied,
        "weights_bytes": files.weights_bytes,
        "weight_types": dict(types.most_common()),
        "layer_groups": [_group(group.layer, len(group.layers)) for group in layer_groups(spec, cache)],
        "tokenizer_vocab_size": tokenizer.vocab_size if tokenizer else None,
        "end_token_ids": sorted(files.end_token_ids),
        "has_chat_template": files.has_template,
        "kv": {
            "k": cache.k_codec,
            "v": cache.v_codec,
            "bytes_per_token": bytes_per_token(spec, cache),
            "block_bytes": sum(group.block_bytes for group in layer_groups(spec, cache)),
            "context_bytes": allocated_bytes(spec, cache, spec.context_length),
        },
    }


def _group(layer: Any, num_layers: int) -> dict[str, Any]:
    return {
        "kind": layer.kind,
        "num_layers": num_layers,
        "num_heads": layer.num_heads,
        "num_kv_heads": layer.num_kv_heads,
        "k_dim": layer.k_dim,
        "v_dim": layer.v_dim,
        "window": layer.window,
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    types = ", ".join(f"{name} {format_bytes(size)}" for name, size in facts["weight_types"].items())
    kv = facts["kv"]
    tokenizer = "none" if facts["tokenizer_vocab_size"] is None else f"{facts['tokenizer_vocab_size']} tokens"
    rows = [
        ("model", facts["model"]),
        ("path", f"{facts['path']} ({facts['format']})"),
        ("architecture", f"{facts['architecture']}, {facts['num_layers']} layers, width {facts['width']}"),
        (
            "vocabulary",
            f"{facts['vocab_size']}, output {'tied to' if facts['is_tied'] else 'apart from'} the embedding",
        ),
        ("context", f"{facts['context_length']} tokens"),
        ("weights", f"{format_bytes(facts['weights_bytes'])}: {types}"),
        ("tokenizer", f"{tokenizer}, {'with' if facts['has_chat_template'] else 'without'} a chat template"),
    ]
    rows += [("attention", _attention(group)) for group in facts["layer_groups"]]
    sizes = ", ".join(
        f"{format_bytes(kv[name])} {what}"
        for name, what in (
            ("bytes_per_token", "a token"),
            ("block_bytes", f"a block of {BLOCK_TOKENS}"),
            ("context_bytes", "for the whole context"),
        )
    )
    rows.append(("KV cache", f"K {kv['k']}, V {kv['v']}: {sizes}"))
    return [f"{name:<13} {value}" for name, value in rows]


def _attention(group: dict[str, Any]) -> str:
    window = "" if group["window"] is None else f", window of {group['window']} tokens"
    return (
        f"{group['num_layers']} layers, {group['num_heads']} heads over {group['num_kv_heads']} KV heads of "
        f"{group['k_dim']}{window}"
    )
