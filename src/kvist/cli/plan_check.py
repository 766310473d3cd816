"""``kvist plan --check``: the same model in the engine, its real bytes beside the predicted ones."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvist.cli.output import Output
from kvist.errors import SpecError
from kvist.planner.plan import Plan, plan
from kvist.spec.cache import BLOCK_TOKENS, allocated_bytes, logical_bytes
from kvist.units import format_bytes

if TYPE_CHECKING:
    from kvist.llm import LLM
    from kvist.spec.model import ModelSpec

_LENGTHS = (1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 300)
_TIMED_TOKENS = 32
_TIMED_PROMPT = 64


def check(name: str, made: Plan, out: Output) -> dict[str, Any]:
    """Load the model, reserve, run, and return ``rows`` of predicted and real bytes, and whether all are ``equal``.

    Raises:
        SpecError: the plan is about another engine, or changes the model.
    """
    settings = made.settings
    if settings.engine.name != "kvist" or settings.tensor_parallel > 1 or settings.window is not None:
        raise SpecError("--check compares with kvist itself; leave out --engine, --tp and --window")
    from kvist.llm import LLM

    context = min(made.context, made.source.context_length)
    with LLM(name, cache=settings.cache, context=context) as llm:
        rows = list(_rows(llm, made))
        speed = _speed(llm, made)
        resident = _resident(llm.spec, made, llm.capacity.num_tokens)
    for row in rows:
        verdict = "equal" if row["predicted"] == row["real"] else "DIFFERENT"
        tokens = f"at {row['tokens']:,} tokens"
        out.line(f"{row['what']:<10} {tokens:>18}: predicted {row['predicted']:,} B, real {row['real']:,} B, {verdict}")
    predicted, real = resident["predicted"], resident["real"]
    if real is not None:
        out.line(f"resident size grew by {format_bytes(real)} as {format_bytes(predicted)} were reserved")
    if speed is not None:
        share = speed["predicted_tpot_s"] / speed["tpot_s"]
        out.line(f"a token took {speed['tpot_s'] * 1e3:.2f} ms, {share:.0%} of this machine's roofline reached")
    return {
        "rows": rows,
        "equal": all(row["predicted"] == row["real"] for row in rows),
        "resident": resident,
        "speed": speed,
    }


def _rows(llm: LLM, made: Plan) -> Iterator[dict[str, Any]]:
    from kvist.engine.request import SamplingParams

    model, spec, reserved = llm.spec, made.settings.cache, llm.capacity.num_tokens
    for length in (*_LENGTHS, made.context - 1):
        if not 0 < length < min(llm.context_length, 2048):
            continue
        usage = llm.generate([1] * length, SamplingParams(max_tokens=1, temperature=0.0)).kv
        if length == _LENGTHS[0]:
            predicted = made.footprint.reserved_bytes(reserved)
            yield {"what": "pool", "tokens": reserved, "predicted": predicted, "real": usage.pool_bytes}
        logical, allocated = logical_bytes(model, spec, length), allocated_bytes(model, spec, length)
        yield {"what": "logical", "tokens": length, "predicted": logical, "real": usage.logical_bytes}
        yield {"what": "allocated", "tokens": length, "predicted": allocated, "real": usage.allocated_bytes}


def _resident(model: ModelSpec, made: Plan, num_tokens: int) -> dict[str, Any]:
    """How the process grows as a second cache of ``num_tokens`` is reserved; None where the system doesn't say."""
    from kvist.cache.kv_cache import KvCache
    from kvist.cache.memory import resident_memory

    gc.collect()
    before = resident_memory()
    cache = KvCache(model, made.settings.cache, num_tokens=num_tokens)
    after = resident_memory()
    grown = None if before is None or after is None else after - before
    return {"predicted": made.footprint.reserved_bytes(num_tokens), "allocated": cache.pool_bytes, "real": grown}


def _speed(llm: LLM, made: Plan) -> dict[str, Any] | None:
    """A measured token beside the roofline of this machine; None where it isn't calibrated."""
    from kvist.cli.calibration import is_calibrated, local_device
    from kvist.engine.request import SamplingParams

    if not is_calibrated() or llm.context_length <= _TIMED_PROMPT + _TIMED_TOKENS:
        return None
    local = plan(made.source, cache=made.settings.cache, device=local_device(), weight_bytes=made.settings.weight_bytes)
    if local.roofline is None:
        return None
    settings = SamplingParams(max_tokens=_TIMED_TOKENS, temperature=0.0, ignore_eos=True)
    times = [llm.generate([1] * _TIMED_PROMPT, settings).tpot_s for _ in range(3)]
    measured = min(time for time in times if time is not None)
    predicted = local.roofline.tpot_s(1, _TIMED_PROMPT + _TIMED_TOKENS // 2)
    return {"tokens": _TIMED_PROMPT, "tpot_s": measured, "predicted_tpot_s": predicted}
