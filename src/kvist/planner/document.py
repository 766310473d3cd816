"""A plan as JSON: the contract of ``kvist plan --json``. Sizes are bytes, times seconds; what isn't known is null."""

from __future__ import annotations

from typing import Any

from kvist.planner.advice import Advice, advice
from kvist.planner.hardware import Device, Figure
from kvist.planner.latency import Roofline
from kvist.planner.lengths import Demand
from kvist.planner.plan import Plan

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def document(plan: Plan, demand: Demand | None = None, probability: float = 0.01) -> dict[str, Any]:
    """Return all that a plan says."""
    found: dict[str, Any] = {
        "model": plan.source.name or plan.source.architecture,
        "architecture": plan.source.architecture,
        "context": plan.context,
        "trained_context": plan.source.context_length,
        "notes": list(plan.source.notes),
        "kv": _kv(plan),
        "weights": _weights(plan),
        "engine": plan.settings.engine.report(plan.rank, plan.context, plan.budget.kv_bytes if plan.budget else None),
    }
    if plan.settings.device is not None:
        found["device"] = _device(plan.settings.device)
    if plan.settings.has_memory:
        found["capacity"] = _capacity(plan)
        found["latency"] = _latency(plan)
        found["advice"] = [_advice(made) for made in advice(plan)]
    if demand is not None:
        found["demand"] = _demand(plan, demand, probability)
    return found


def _kv(plan: Plan) -> dict[str, Any]:
    footprint, context = plan.footprint, plan.context
    return {
        "k": plan.settings.cache.k_codec,
        "v": plan.settings.cache.v_codec,
        "retention": str(plan.settings.cache.retention),
        "full_bytes_per_token": footprint.full_bytes_per_token,
        "window_bytes_per_token": {str(window): size for window, size in footprint.window_bytes_per_token.items()},
        "constant_bytes": footprint.constant_bytes,
        "sequence_bytes": footprint.sequence_bytes(context),
        "allocated_bytes": plan.settings.engine.allocated_bytes(footprint, context),
        "charged_bytes": plan.charged_bytes,
        "per_rank_sequence_bytes": plan.rank.sequence_bytes(context),
        "tensor_parallel": plan.settings.tensor_parallel,
        "outgrows_weights_at": plan.outgrows_weights_at,
    }


def _weights(plan: Plan) -> dict[str, Any]:
    parameters = plan.source.parameters
    return {
        "parameters": parameters.total if parameters else None,
        "active_parameters": parameters.active if parameters else None,
        "bytes": plan.weights_bytes,
        "type": plan.weight_type,
        "unknown": plan.source.missing or None,
    }


def _device(device: Device) -> dict[str, Any]:
    def figure(item: Figure | None) -> dict[str, Any] | None:
        return None if item is None else {"value": item.value, "origin": item.sources, "verified": item.is_verified}

    return {
        "name": device.name,
        "memory_bytes": figure(device.memory_bytes),
        "usable_bytes": figure(device.usable_bytes),
        "bandwidth": figure(device.bandwidth),
        "peaks": {name: figure(item) for name, item in device.peaks.items()},
        "note": device.note,
    }


def _capacity(plan: Plan) -> dict[str, Any]:
    found = plan.budget
    assert found is not None, "a plan with a memory has a budget"
    return {
        "users": plan.users,
        "max_context": plan.max_context,
        "kv_budget_bytes": found.kv_bytes,
        "memory_bytes": found.memory_bytes,
        "usable_bytes": found.usable_bytes,
        "weights_bytes": found.weights_bytes,
        "overhead_bytes": found.overhead_bytes,
        "missing_bytes": found.missing_bytes,
        "devices": plan.settings.num_devices or plan.settings.tensor_parallel,
        "wished_users": plan.settings.users,
        "fits": plan.fits,
        "memory_needed_bytes": plan.memory_needed,
    }


def _latency(plan: Plan) -> dict[str, Any]:
    roofline = plan.roofline
    if roofline is None:
        return {"ttft_s": None, "tpot_s": None}
    prompt = plan.settings.prompt_tokens or plan.context
    return {
        "ttft_s": roofline.ttft_s(prompt) if roofline.peak else None,
        "tpot_s": roofline.tpot_s(batch_of(plan), plan.context),
        "prompt_tokens": prompt,
        "batch": batch_of(plan),
        "knee": roofline.knee(plan.context),
        "compute_bound_at": roofline.compute_bound_at(plan.context),
        "batches": [_batch(plan, roofline, size) for size in BATCHES if fits_batch(plan, size)],
    }


def batch_of(plan: Plan) -> int:
    """The sequences that decode together in the latency that is told: the wished users, else one."""
    return -(-(plan.settings.users or 1) // plan.settings.num_replicas)


def fits_batch(plan: Plan, size: int) -> bool:
    """Whether the caches of ``size`` sequences fit a rank."""
    return plan.users is None or size * plan.settings.num_replicas <= max(plan.users, 1)


def _batch(plan: Plan, roofline: Roofline, size: int) -> dict[str, Any]:
    tpot_s = roofline.tpot_s(size, plan.context)
    return {
        "batch": size,
        "tpot_s": tpot_s,
        "tokens_per_s": size / tpot_s * plan.settings.num_replicas,
        "bytes_per_step": roofline.decode_bytes(size, plan.context),
    }


def _advice(made: Advice) -> dict[str, Any]:
    return {
        "change": made.change,
        "options": made.options,
        "users": made.users,
        "max_context": made.max_context,
        "fits": made.fits,
    }


def _demand(plan: Plan, found: Demand, probability: float) -> dict[str, Any]:
    budget = plan.budget
    wished = plan.settings.users
    return {
        "probability": probability,
        "mean_bytes": found.mean_bytes,
        "shared_bytes": found.shared_bytes,
        "users": found.users_within(budget.kv_bytes, probability) * plan.settings.num_replicas if budget else None,
        "wished_users": wished,
        "bytes_for_wished": found.bytes_at(wished, probability) if wished else None,
    }
