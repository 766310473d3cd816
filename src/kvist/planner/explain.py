"""The plan's arithmetic in words, the numbers put in: a line a step, each with its unit."""

from __future__ import annotations

from kvist.planner.hardware import Device
from kvist.planner.latency import Roofline
from kvist.planner.plan import Plan
from kvist.spec.cache import CacheSpec, LayerGroup
from kvist.spec.model import LayerSpec
from kvist.units import format_bytes


def explain(plan: Plan) -> list[str]:
    """Return the lines."""
    lines = ["Cache of one sequence"]
    lines += [f"  {line}" for group in plan.footprint.groups for line in _group(plan, group)]
    lines += [f"  {line}" for line in (*_shared(plan), *_states(plan), *_cross(plan))]
    lines.append(f"  all together: {_bytes(plan.footprint.sequence_bytes(plan.context))}")
    lines += [f"  {line}" for line in _engine(plan)]
    lines += ["Weights", *(f"  {line}" for line in _weights(plan))]
    if plan.budget is not None:
        lines += ["Memory of one device", *(f"  {line}" for line in _memory(plan))]
    if plan.roofline is not None and plan.settings.device is not None:
        lines += ["Speed at best", *(f"  {line}" for line in _speed(plan, plan.roofline, plan.settings.device))]
    return lines


def _bytes(size: int) -> str:
    return f"{size:,} B ({format_bytes(size)})"


def _group(plan: Plan, group: LayerGroup) -> list[str]:
    layer, context = group.layer, plan.context
    seen = group.num_seen_tokens(context, plan.settings.prompt_tokens)
    tokens = f"{context:,} tokens"
    if group.most_seen_tokens is not None:
        name = layer.kind if group.retention.kind == "all" else f"{group.retention}, at most"
        tokens = f"min({context:,} tokens, {name} of {group.most_seen_tokens:,}) = {seen:,} tokens"
    names = _names(layer, plan.settings.cache)
    return [
        f"{len(group.layers)} layers x {names} = {group.token_bytes:,} B a token",
        f"  x {tokens} = {_bytes(group.token_bytes * seen)}",
    ]


def _names(layer: LayerSpec, cache: CacheSpec) -> str:
    if layer.kind == "mla":
        parts = f"one latent of {layer.k_dim} in {cache.k_codec}"
    else:
        parts = (
            f"{layer.num_kv_heads} KV heads x (K {layer.k_dim} in {cache.k_codec} + V {layer.v_dim} in {cache.v_codec})"
        )
    index = f" + index key of {layer.index_dim}" if layer.index_dim else ""
    scales = " with scales" if {"int8", "int4"} & {cache.k_codec, cache.v_codec} else ""
    return f"({parts}{index}{scales})"


def _shared(plan: Plan) -> list[str]:
    number = sum(layer.shares_cache for layer in plan.model.layers)
    return [f"{number} layers read an earlier layer's keys and values: 0 B"] if number else []


def _states(plan: Plan) -> list[str]:
    states = [layer.state for layer in plan.model.layers if layer.state]
    if not states:
        return []
    first, size = states[0], plan.footprint.state_bytes
    codec = "f32" if first.is_always_f32 else plan.settings.state_codec
    numbers = f"{first.num_heads:,} heads x {first.head_elements:,} numbers in {codec}"
    channels = first.num_conv_elements // max(first.conv_columns, 1)
    columns = f"{first.conv_columns} columns of {channels:,} channels"
    return [f"{len(states)} layers keep a state: {numbers} + {columns} = {_bytes(size)}, whatever the length"]


def _cross(plan: Plan) -> list[str]:
    footprint = plan.footprint
    if not footprint.cross_token_bytes:
        return []
    each = f"{footprint.cross_token_bytes:,} B an encoder token x {footprint.num_encoder_tokens:,} tokens"
    return [f"cross attention: {each} = {_bytes(footprint.cross_bytes)}"]


def _engine(plan: Plan) -> list[str]:
    engine, settings = plan.settings.engine, plan.settings
    lines = []
    if settings.tensor_parallel > 1:
        whole = plan.rank.sequence_bytes(plan.context)
        lines.append(f"on each of {settings.tensor_parallel} ranks (KV heads divided, at least one): {_bytes(whole)}")
    report = engine.report(plan.rank, plan.context, None)
    blocks = f", {report['blocks']:,} blocks" if "blocks" in report else ""
    return [*lines, f"{engine.name} reserves for it on a rank{blocks}: {_bytes(plan.charged_bytes)}"]


def _weights(plan: Plan) -> list[str]:
    found, size = plan.source.parameters, plan.weights_bytes
    if found is None:
        given = f", given as {_bytes(size)}" if size is not None else ""
        return [f"number unknown: {plan.source.missing}{given}"]
    parts = f"embedding {found.embedding:,} + output {found.output:,} + layers {found.body:,}"
    if found.experts:
        parts += f" + experts {found.experts:,} (a token uses {found.experts_per_token} in {found.num_experts})"
    lines = [f"{parts} = {found.total:,} parameters"]
    if size is not None:
        lines.append(f"in {plan.weight_type}: {_bytes(size)}")
    if plan.outgrows_weights_at is not None:
        lines.append(f"one sequence's cache is larger from {plan.outgrows_weights_at:,} tokens on")
    return lines


def _memory(plan: Plan) -> list[str]:
    found, settings = plan.budget, plan.settings
    assert found is not None
    lines = []
    if settings.kv_memory_bytes is None:
        lines = [
            f"{_bytes(found.memory_bytes)} x {settings.utilisation:g} = {_bytes(found.usable_bytes)} usable",
            f"  - weights {_bytes(found.weights_bytes)} - overhead {_bytes(found.overhead_bytes)}",
        ]
    lines.append(f"  = {_bytes(found.kv_bytes)} for the cache")
    if plan.charged_bytes:
        replicas = f" x {settings.num_replicas} replicas" if settings.num_replicas > 1 else ""
        lines.append(f"  / {plan.charged_bytes:,} B a user{replicas} = {plan.users:,} users of {plan.context:,} tokens")
    return lines


def _speed(plan: Plan, roofline: Roofline, device: Device) -> list[str]:
    read = _bytes(int(roofline.decode_bytes(1, plan.context)))
    speed = f"{device.bandwidth.value / 1e9:,.0f} GB/s a device"
    lines = [f"a token of one user reads {read} at {speed}: {roofline.tpot_s(1, plan.context) * 1e3:,.2f} ms"]
    if roofline.peak:
        prompt = plan.settings.prompt_tokens or plan.context
        work = f"{roofline.prefill_operations(prompt) / 1e12:,.2f} TFLOP at {roofline.peak / 1e12:,.2f} TFLOP/s"
        lines.append(f"a prompt of {prompt:,} tokens takes {work}: {roofline.ttft_s(prompt):,.3f} s")
    return lines
