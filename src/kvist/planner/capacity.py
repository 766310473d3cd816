"""How many users fit, how long their contexts may be, and how much memory a wish needs: one formula, both ways.

A rank holds its share of the weights, what the engine takes beside, and of every user's cache what
``Engine.charged_bytes`` says. All of it is whole bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvist.errors import CapacityError
from kvist.planner.settings import MAX_TOKENS, PlanSettings
from kvist.spec.footprint import Footprint
from kvist.units import format_bytes


@dataclass(frozen=True)
class Budget:
    """One rank's memory: what may be used of it, and what the cache gets of that."""

    memory_bytes: int
    usable_bytes: int
    weights_bytes: int
    overhead_bytes: int
    kv_bytes: int

    @property
    def missing_bytes(self) -> int:
        """Bytes by which weights and overhead alone exceed what may be used; 0 where they fit."""
        return max(0, self.weights_bytes + self.overhead_bytes - self.usable_bytes)


def budget(settings: PlanSettings, weights_bytes: int | None, overhead_bytes: int, missing: str) -> Budget | None:
    """Return the memory of one rank, None where no memory was given.

    ``missing`` says why the weights' size isn't known.

    Raises:
        CapacityError: the weights' size is needed and isn't known.
    """
    if settings.kv_memory_bytes is not None:
        kv = settings.kv_memory_bytes
        return Budget(kv, kv, 0, 0, kv)
    memory = settings.memory_bytes or (settings.device.capacity_bytes if settings.device else None)
    if memory is None:
        return None
    if weights_bytes is None:
        raise CapacityError(
            f"what the weights leave isn't known, give --weight-bytes SIZE or --kv-memory SIZE: {missing}"
        )
    usable = math.floor(memory * settings.utilisation)
    weights = -(-weights_bytes // settings.tensor_parallel)
    return Budget(memory, usable, weights, overhead_bytes, max(0, usable - weights - overhead_bytes))


def users(settings: PlanSettings, rank: Footprint, kv_bytes: int, num_tokens: int) -> int | None:
    """Return how many sequences of ``num_tokens`` fit into ``kv_bytes`` of every rank; None: any number."""
    each = settings.engine.charged_bytes(rank, num_tokens)
    return kv_bytes // each * settings.num_replicas if each else None


def max_context(settings: PlanSettings, rank: Footprint, kv_bytes: int, num_users: int) -> int | None:
    """Return the most tokens that each of ``num_users`` can have; 0 where none fits, None where length is free.

    The trained length is not regarded.
    """
    share = kv_bytes // -(-num_users // settings.num_replicas)

    def fits(num_tokens: int) -> bool:
        return settings.engine.charged_bytes(rank, num_tokens) <= share

    if fits(MAX_TOKENS):
        return None
    low, high = 0, MAX_TOKENS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def memory_needed(settings: PlanSettings, rank: Footprint, rest: Budget, num_users: int, num_tokens: int) -> int:
    """Return the memory of one device with which ``num_users`` of ``num_tokens`` fit: the inverse of ``users``."""
    kv = settings.engine.charged_bytes(rank, num_tokens) * -(-num_users // settings.num_replicas)
    wanted = kv + rest.weights_bytes + rest.overhead_bytes
    memory = math.ceil(wanted / settings.utilisation)
    while math.floor(memory * settings.utilisation) < wanted:
        memory += 1
    return memory


def outgrows_weights_at(settings: PlanSettings, rank: Footprint, weights_bytes: int) -> int | None:
    """Return the length from which one sequence's cache is larger than the weights; None: never."""

    def is_larger(num_tokens: int) -> bool:
        return settings.engine.charged_bytes(rank, num_tokens) > weights_bytes

    if not is_larger(MAX_TOKENS):
        return None
    low, high = 0, MAX_TOKENS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_larger(middle) else (middle, high)
    return high


def require_room(found: Budget) -> None:
    """Raise CapacityError where weights and overhead leave nothing."""
    if found.missing_bytes:
        raise CapacityError(
            f"weights {format_bytes(found.weights_bytes)} and overhead {format_bytes(found.overhead_bytes)} exceed "
            f"{format_bytes(found.usable_bytes)} by {format_bytes(found.missing_bytes)}; take more devices (--tp), "
            "a smaller --weights type or a larger memory"
        )
