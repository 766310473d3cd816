"""How many tokens one sequence may hold, from the memory there is. Pure: the numbers come as arguments."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.errors import CapacityError
from kvist.spec.cache import BLOCK_TOKENS, CacheSpec, pool_bytes
from kvist.spec.model import ModelSpec
from kvist.units import format_bytes

_MOST_TOKENS = 1 << 40


@dataclass(frozen=True)
class Capacity:
    """``num_tokens`` is what the pool is laid out for; ``is_cut`` says that the context asked for is longer."""

    num_tokens: int
    is_cut: bool


def plan_capacity(
    model: ModelSpec, spec: CacheSpec, *, context: int, step_tokens: int, budget: int | None, available: int | None
) -> Capacity:
    """Return the tokens to reserve for.

    With a ``budget`` in bytes: as many as fit it, be they more or fewer than the context. Without one: the context,
    or as many as fit half of the ``available`` bytes (None: unknown).

    Raises:
        CapacityError: not even one block fits, or the budget is more than the memory there is.
    """
    least = pool_bytes(model, spec, 1, step_tokens)
    if budget is not None:
        if budget < least:
            raise CapacityError(
                f"a KV budget of {budget} bytes holds no block: {BLOCK_TOKENS} tokens of this model take {least} bytes "
                f"({format_bytes(least)}); give at least that to kv_budget"
            )
        if available is not None and budget > available:
            raise CapacityError(
                f"a KV budget of {format_bytes(budget)} ({budget} bytes) is more than the {format_bytes(available)} "
                "of free memory; give less to kv_budget, or free some memory"
            )
        has_end = pool_bytes(model, spec, _MOST_TOKENS, step_tokens) <= budget  # only windows: no pool gets that large
        limit = context if has_end else _MOST_TOKENS
        num_tokens = most_tokens(model, spec, budget, step_tokens, limit)
        return Capacity(num_tokens, num_tokens < context)
    if available is None or pool_bytes(model, spec, context, step_tokens) <= available // 2:
        return Capacity(context, is_cut=False)
    if least > available // 2:
        raise CapacityError(
            f"the KV cache needs at least {least} bytes ({format_bytes(least)}), and half of the free memory is "
            f"{format_bytes(available // 2)}; free some memory, or set kv_budget to take more than half"
        )
    return Capacity(most_tokens(model, spec, available // 2, step_tokens, limit=context), is_cut=True)


def most_tokens(model: ModelSpec, spec: CacheSpec, budget: int, step_tokens: int, limit: int) -> int:
    """Return the most tokens, up to ``limit``, whose pool fits ``budget`` bytes; whole blocks, or ``limit``."""
    low, high = 0, -(-limit // BLOCK_TOKENS)  # in blocks: low fits, what is above high doesn't
    while low < high:
        middle = (low + high + 1) // 2
        if pool_bytes(model, spec, middle * BLOCK_TOKENS, step_tokens) <= budget:
            low = middle
        else:
            high = middle - 1
    return min(low * BLOCK_TOKENS, limit)
