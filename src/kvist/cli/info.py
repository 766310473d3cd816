"""``kvist info``: what a model is and what its cache costs, without loading its weights."""

from __future__ import annotations

from typing import Any

from kvist.cli import options
from kvist.cli.flatten import flattened
from kvist.cli.output import Output, command
from kvist.spec.cache import BLOCK_TOKENS, CacheSpec
from kvist.units import format_bytes


@command
@flattened
def info(
    model: options.Model = options.DEFAULT_MODEL,
    kv: options.Kv = options.DEFAULT_KV,
    is_json: options.Json = False,
) -> None:
    """Show what a model is, what its weights are, and what its KV cache takes."""
    from kvist.cli.model_facts import model_facts
    from kvist.engine.files import open_model

    out = Output(is_json)
    with open_model(model) as files:
        facts = model_facts(files, CacheSpec(kv))
    for name, value in _rows(facts):
        out.line(f"{name:<13} {_on_one_line(value)}")
    out.finish(facts)


def _on_one_line(value: str) -> str:
    """Names come from files and may hold anything; what doesn't print becomes an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    from kvist.cli.model_switches import in_a_line

    sizes = f"{facts['num_layers']} layers, width {facts['width']}, MLP {facts['mlp_width']}"
    return [
        ("model", facts["model"]),
        ("path", f"{facts['path']} ({facts['format']})"),
        ("family", f"{facts['architecture']}, {sizes}, {facts['num_parameters']:,} parameters"),
        *(("layers", _layers(layer)) for layer in facts["layers"]),
        *(("experts", _experts(kind)) for kind in facts["experts"]),
        *([("left out", facts["left_out"])] if facts["left_out"] else []),
        ("positions", _positions(facts["rope"])),
        ("forward", in_a_line(facts["switches"])),
        ("context", f"{facts['context_length']} tokens"),
        (
            "vocabulary",
            f"{facts['vocab_size']}, output {'tied to' if facts['is_tied'] else 'apart from'} the embedding",
        ),
        ("weights", _weights(facts)),
        *_tokenizer_rows(facts),
        ("chat template", _templates(facts["chat_templates"])),
        ("KV cache", _cache(facts["kv"])),
    ]


def _weights(facts: dict[str, Any]) -> str:
    """What the file holds by type, and what becomes another one in memory."""
    changed = {
        item["type"]: f" (loaded as {item['form']}, {format_bytes(item['kept_bytes'])})"
        for item in facts["kept_as"]
        if item["form"] not in ("f32", item["type"])
    }
    types = [f"{name} {format_bytes(size)}{changed.get(name, '')}" for name, size in facts["weight_types"].items()]
    in_memory = f", in memory {format_bytes(facts['loaded_bytes'])}" if changed else ""
    return f"{format_bytes(facts['weights_bytes'])}{in_memory}: {', '.join(types)}"


def _layers(layer: dict[str, Any]) -> str:
    kind, number = layer["kind"], layer["num_layers"]
    if kind in ("none", "recurrent"):
        return f"{number} {'recurrent' if kind == 'recurrent' else 'without attention'}"
    window = "" if layer["window"] is None else f" of {layer['window']} tokens"
    widths = str(layer["k_dim"]) if layer["v_dim"] in (0, layer["k_dim"]) else f"{layer['k_dim']} and {layer['v_dim']}"
    return f"{number} {kind}{window}, {layer['num_heads']} heads over {layer['num_kv_heads']} KV heads of {widths}"


def _experts(kind: dict[str, Any]) -> str:
    shared = f", and one of width {kind['shared_width']} that all use" if kind["shared_width"] else ""
    layers = f"in {kind['num_layers']} layers"
    return f"{kind['number']} of width {kind['width']} {layers}, a token uses {kind['chosen']}{shared}"


def _positions(rope: dict[str, Any] | None) -> str:
    if rope is None:
        return "not rotary, or by the family's defaults"
    base = "the family's default" if rope["base"] is None else f"{rope['base']:g}"
    parts = [f"rotary, base {base}"]
    if rope["local_base"] is not None:
        parts.append(f"{rope['local_base']:g} in window layers")
    if rope["scaling"] != "default":
        factor = "" if rope["factor"] is None else f" x {rope['factor']:g}"
        original = rope["original_context_length"]
        parts.append(f"scaling {rope['scaling']}{factor}" + (f" from {original} tokens" if original else ""))
    if rope["rotated_share"] != 1:
        parts.append(f"{rope['rotated_share']:g} of each head")
    if rope["num_layers_without"]:
        parts.append(f"none in {rope['num_layers_without']} layers")
    return ", ".join(parts)


def _tokenizer_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    tokenizer = facts["tokenizer"]
    if tokenizer is None:
        return [("tokenizer", "none")]
    pre = f", pre-tokenizer {tokenizer['pre_tokenizer']}" if tokenizer["pre_tokenizer"] else ""
    adds = [name for key, name in (("adds_bos", "BOS before"), ("adds_eos", "EOS behind")) if tokenizer[key]]
    bos = "none" if tokenizer["bos"] is None else _token(tokenizer["bos"])
    ends = ", ".join(map(_token, tokenizer["ends"])) or "none"
    return [
        (
            "tokenizer",
            f"{tokenizer['kind']}{pre}, {tokenizer['vocab_size']} tokens, {tokenizer['num_special']} special",
        ),
        ("", f"BOS {bos}; ends {ends}; a text gets {' and '.join(adds) or 'neither'}"),
    ]


def _token(named: dict[str, Any]) -> str:
    from kvist.checkpoint.files import quote

    return f"{named['id']} {quote(named['text'])}"


def _templates(templates: dict[str, int]) -> str:
    return ", ".join(f"{name} ({size} characters)" for name, size in templates.items()) or "none"


def _cache(kv: dict[str, Any]) -> str:
    sizes = {"bytes_per_token": "a token", "block_bytes": f"a block of {BLOCK_TOKENS}"}
    sizes["context_bytes"] = "for the whole context"
    shown = ", ".join(f"{format_bytes(kv[name])} {what}" for name, what in sizes.items())
    return f"K {kv['k']}, V {kv['v']}: {shown}"
