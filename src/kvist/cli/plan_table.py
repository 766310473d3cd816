"""A plan as lines for people: one in full, or several side by side; every number with its unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvist.planner.advice import advice
from kvist.planner.document import BATCHES, batch_of, fits_batch
from kvist.planner.latency import Roofline
from kvist.planner.lengths import Demand
from kvist.planner.plan import Plan
from kvist.units import format_bytes

_LABEL_WIDTH = 12


def lines(plan: Plan, demand: Demand | None = None, probability: float = 0.01) -> list[str]:
    """Return what is said of one plan."""
    shown, last = [], ""
    for label, text in rows(plan, demand, probability):
        shown.append(f"{label if label != last else '':<{_LABEL_WIDTH}} {text}")
        last = label
    return shown


def comparison(plans: Sequence[Plan]) -> list[str]:
    """Return plans side by side, one number a row."""
    columns = [dict(_facts(plan)) for plan in plans]
    labels: list[str] = []
    for column in columns:
        place = 0
        for label in column:
            if label not in labels:
                labels.insert(place, label)
            place = labels.index(label) + 1
    cells = [[column.get(label, "-") for column in columns] for label in labels]
    first = max(map(len, labels))
    widths = [max(len(row[number]) for row in cells) for number in range(len(columns))]
    return [
        f"{label:<{first}}  " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for label, row in zip(labels, cells, strict=True)
    ]


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """One line's worth of each number, for a column."""
    footprint, parameters, roofline = plan.footprint, plan.source.parameters, plan.roofline
    yield "model", plan.source.name or plan.source.architecture
    yield "parameters", f"{parameters.total / 1e9:,.2f} billion" if parameters else "unknown"
    if parameters and parameters.experts:
        yield "active parameters", f"{parameters.active / 1e9:,.2f} billion"
    yield (
        "weights",
        "unknown" if plan.weights_bytes is None else f"{format_bytes(plan.weights_bytes)} {plan.weight_type}",
    )
    yield "cache a token", format_bytes(footprint.full_bytes_per_token)
    for window, each in footprint.window_bytes_per_token.items():
        yield f"a token of the last {window:,}", format_bytes(each)
    if footprint.constant_bytes:
        yield "whatever the length", format_bytes(footprint.constant_bytes)
    yield f"a sequence of {plan.context:,} tokens", format_bytes(footprint.sequence_bytes(plan.context))
    if plan.settings.tensor_parallel > 1:
        yield f"on one of {plan.settings.tensor_parallel} ranks", format_bytes(plan.rank.sequence_bytes(plan.context))
    if plan.outgrows_weights_at is not None:
        yield "outgrows the weights at", f"{plan.outgrows_weights_at:,} tokens"
    if plan.budget is not None:
        yield "left for the cache", format_bytes(plan.budget.kv_bytes)
        yield f"users of {plan.context:,} tokens", "any number" if plan.users is None else f"{plan.users:,}"
        longest = "any length" if plan.max_context is None else f"{plan.max_context:,} tokens"
        yield f"longest context for {plan.settings.users or 1:,}", longest
    if roofline is not None:
        yield (
            f"a token, {batch_of(plan):,} at once, at best",
            f"{roofline.tpot_s(batch_of(plan), plan.context) * 1e3:,.2f} ms",
        )


def rows(plan: Plan, demand: Demand | None = None, probability: float = 0.01) -> list[tuple[str, str]]:
    """Return what is said of one plan: (label, text), a label several times for several lines."""
    source = plan.source
    kind = f"{source.architecture}, {source.num_layers} layers, trained to {source.context_length:,} tokens"
    found = [("model", source.name or source.architecture), ("model", kind)]
    found += [("weights", text) for text in _weights(plan)]
    found += [("cache", text) for text in _cache(plan)]
    found += [("engine", text) for text in _engine(plan)]
    if plan.budget is not None:
        found += [("memory", text) for text in _memory(plan)]
        found += [("users", text) for text in _users(plan)]
    if demand is not None:
        found += [("lengths", text) for text in _demand(plan, demand, probability)]
    if plan.roofline is not None:
        found += [("speed", text) for text in _speed(plan, plan.roofline)]
    if plan.budget is not None:
        found += [("more users", text) for text in _advice(plan)]
    return found + [("note", note) for note in _notes(plan)]


def _weights(plan: Plan) -> Iterator[str]:
    parameters, size = plan.source.parameters, plan.weights_bytes
    text = "number of parameters unknown: " + plan.source.missing
    if parameters is not None:
        active = f" ({parameters.active:,} active)" if parameters.experts else ""
        text = f"{parameters.total:,} parameters{active}"
    yield text + (f", {format_bytes(size)}" if size is not None else "")
    if size is not None:
        yield f"in {plan.weight_type}" if plan.settings.weight_bytes is None else "as given or as its files hold them"


def _cache(plan: Plan) -> Iterator[str]:
    footprint, cache = plan.footprint, plan.settings.cache
    parts = [f"{format_bytes(footprint.full_bytes_per_token)} a token"] if footprint.full_bytes_per_token else []
    for window, size in footprint.window_bytes_per_token.items():
        parts.append(f"{format_bytes(size)} a token of the last {window:,}")
    if footprint.constant_bytes:
        parts.append(f"{format_bytes(footprint.constant_bytes)} whatever the length")
    yield " + ".join(parts or ["nothing"]) + f" (K {cache.k_codec}, V {cache.v_codec})"
    sequence = footprint.sequence_bytes(plan.context)
    yield f"{format_bytes(sequence)} for one sequence of {plan.context:,} tokens ({sequence:,} bytes)"
    if plan.settings.tensor_parallel > 1:
        share = format_bytes(plan.rank.sequence_bytes(plan.context))
        yield f"{share} of it on each of {plan.settings.tensor_parallel} ranks"
    if plan.outgrows_weights_at is not None:
        yield f"one sequence outgrows the weights at {plan.outgrows_weights_at:,} tokens"


def _engine(plan: Plan) -> Iterator[str]:
    name = plan.settings.engine.name
    report = plan.settings.engine.report(plan.rank, plan.context, plan.budget.kv_bytes if plan.budget else None)
    charged = format_bytes(plan.charged_bytes)
    if name == "vllm":
        resident = format_bytes(report["resident_bytes"])
        yield f"vllm: resident {resident}; charged at admission {charged} = {report['blocks']:,} blocks"
        yield f"of {format_bytes(report['block_bytes'])}, {report['block_tokens']:,} tokens of full attention each"
        if report["logged_tokens"] is not None:
            size, tokens = format_bytes(report["pool_bytes"]), report["logged_tokens"]
            yield f"logs {size} of cache, {report['pool_blocks']:,} blocks, {tokens:,} tokens"
            yield f"and {report['concurrency']:.2f}x concurrency at {plan.context:,} tokens"
    elif name == "llama.cpp":
        yield f"llama.cpp: cells {format_bytes(report['kv_bytes'])}, states {format_bytes(report['recurrent_bytes'])}"
    else:
        yield f"kvist reserves {charged} for it, in blocks of {report['block_tokens']} tokens"


def _memory(plan: Plan) -> Iterator[str]:
    found, settings = plan.budget, plan.settings
    assert found is not None
    if settings.kv_memory_bytes is not None:
        yield f"{format_bytes(found.kv_bytes)} for the cache"
        return
    name = f"{settings.device.name}: " if settings.device and not settings.memory_bytes else ""
    usable = f"{settings.utilisation:.0%} usable: {format_bytes(found.usable_bytes)}"
    yield f"{name}{format_bytes(found.memory_bytes)}, {usable}"
    share = found.kv_bytes / found.usable_bytes
    split = f"weights {format_bytes(found.weights_bytes)}, overhead {format_bytes(found.overhead_bytes)}"
    yield f"{split}, cache {format_bytes(found.kv_bytes)} ({share:.0%})"
    if found.missing_bytes:
        yield f"too small for the weights by {format_bytes(found.missing_bytes)}"


def _users(plan: Plan) -> Iterator[str]:
    wished, settings = plan.settings.users or 1, plan.settings
    devices = settings.num_devices or settings.tensor_parallel
    where = f" on {devices} devices" if devices > 1 else ""
    number = "any number" if plan.users is None else f"{plan.users:,}"
    yield f"{number} of {plan.context:,} tokens{where}"
    if plan.max_context is None:
        yield f"{wished:,} with contexts of any length"
    elif plan.max_context:
        beyond = " (beyond the trained length)" if plan.max_context > plan.source.context_length else ""
        yield f"{wished:,} with contexts of up to {plan.max_context:,} tokens{beyond}"
    if plan.fits is False and plan.memory_needed is not None:
        yield f"{wished:,} of {plan.context:,} tokens need {format_bytes(plan.memory_needed)} a device"


def _demand(plan: Plan, demand: Demand, probability: float) -> Iterator[str]:
    share = f"{format_bytes(demand.shared_bytes)} shared, " if demand.shared_bytes else ""
    yield f"{share}{format_bytes(int(demand.mean_bytes))} a user on average"
    if plan.settings.users:
        size = format_bytes(int(demand.bytes_at(plan.settings.users, probability)))
        yield f"{plan.settings.users:,} users exceed {size} with a probability of {probability:g}"
    if plan.budget is not None:
        users = demand.users_within(plan.budget.kv_bytes, probability) * plan.settings.num_replicas
        yield f"{users:,} users fit with a probability of preemption of at most {probability:g}"


def _speed(plan: Plan, roofline: Roofline) -> Iterator[str]:
    tpot_s = roofline.tpot_s(batch_of(plan), plan.context)
    who = "one user" if batch_of(plan) == 1 else f"each of {batch_of(plan):,} users"
    yield f"at best (roofline) {tpot_s * 1e3:,.2f} ms a token for {who}"
    prompt = plan.settings.prompt_tokens or plan.context
    if roofline.peak:
        yield f"{roofline.ttft_s(prompt):,.3f} s to read a prompt of {prompt:,} tokens"
    sizes = [size for size in BATCHES if fits_batch(plan, size)]
    if len(sizes) > 1:
        speeds = [f"{size}: {size / roofline.tpot_s(size, plan.context):,.0f}" for size in sizes]
        yield f"tokens/s by users at once: {', '.join(speeds)}"
    knee, bound = roofline.knee(plan.context), roofline.compute_bound_at(plan.context)
    limit = "reading memory limits every batch" if bound is None else f"arithmetic limits from {_user_count(bound)} on"
    yield f"from {_user_count(knee)} on the caches are read longer than the weights; {limit}"


def _user_count(number: int) -> str:
    return "1 user" if number == 1 else f"{number:,} users"


def _advice(plan: Plan) -> Iterator[str]:
    if plan.fits:
        return
    for made in advice(plan):
        number = "any number" if made.users is None else f"{made.users:,} users"
        verdict = ", enough" if made.fits and plan.settings.users else ""
        yield f"{made.options:<16} {made.change}: {number}{verdict}"


def _notes(plan: Plan) -> Iterator[str]:
    yield from plan.source.notes
    device = plan.settings.device
    if device is not None and device.unverified:
        yield f"unverified for {device.name}: {', '.join(device.unverified)}"
    if device is not None and device.note:
        yield f"{device.name}: {device.note}"
    if plan.context > plan.source.context_length:
        yield f"{plan.context:,} tokens are more than the trained {plan.source.context_length:,}"
