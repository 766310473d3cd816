"""What users cost in memory: the bytes that the formula says, that blocks take, that are reserved, that are resident.

Each number of users gets a cache of its own, reserved for just them; then their tokens are computed, and all of them
hold their sequences at once. Others have a system prompt in common, whose blocks are there once, and reserved once
where no layer has a window.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvist.cache.kv_cache import KvCache
from kvist.cache.memory import resident_memory
from kvist.cache.sequence import Sequence as Held
from kvist.lab.crowd import made_up_ids
from kvist.model.decoder import Decoder, Part
from kvist.spec.cache import CacheSpec, layer_groups, logical_bytes, pool_bytes, users_bytes

DEFAULT_USERS = (1, 8, 64)
USER_TOKENS = 512
SHARED_TOKENS = 1_000
QUICK_USERS = (1, 4)
QUICK_TOKENS, QUICK_SHARED_TOKENS = 64, 100


@dataclass(frozen=True)
class Memory:
    """So many users, each with ``tokens``, of which all have the first ``shared_tokens`` in common; bytes.

    ``predicted``, ``logical`` and ``predicted_reserved`` come from the formula. ``allocated`` are the blocks that the
    users held together, ``reserved`` is the size of the arena. ``resident`` is by how much the process grew when it was
    reserved: every page is touched then, so nothing is added later (None: the system doesn't say).
    """

    users: int
    tokens: int
    shared_tokens: int
    logical_bytes: int
    predicted_bytes: int
    allocated_bytes: int
    predicted_reserved_bytes: int
    reserved_bytes: int
    resident_bytes: int | None

    @property
    def is_exact(self) -> bool:
        """Whether what was predicted is what was there, to the byte."""
        is_held = self.predicted_bytes == self.allocated_bytes
        return is_held and self.predicted_reserved_bytes == self.reserved_bytes

    def as_json(self) -> dict[str, object]:
        return {
            "users": self.users,
            "tokens": self.tokens,
            "shared_tokens": self.shared_tokens,
            "logical_bytes": self.logical_bytes,
            "predicted_bytes": self.predicted_bytes,
            "allocated_bytes": self.allocated_bytes,
            "predicted_reserved_bytes": self.predicted_reserved_bytes,
            "reserved_bytes": self.reserved_bytes,
            "resident_bytes": self.resident_bytes,
            "exact": self.is_exact,
        }


@dataclass(frozen=True)
class MemoryBench:
    """Users with nothing in common, and users with a system prompt."""

    apart: tuple[Memory, ...]
    shared: tuple[Memory, ...]

    @property
    def is_exact(self) -> bool:
        return all(row.is_exact for row in (*self.apart, *self.shared))

    @property
    def is_linear(self) -> bool:
        """Whether users with nothing in common take exactly so many times what the first row's take each."""
        first = self.apart[0]
        return all(row.allocated_bytes * first.users == first.allocated_bytes * row.users for row in self.apart)

    def as_json(self) -> dict[str, object]:
        return {
            "exact": self.is_exact,
            "linear": self.is_linear,
            "apart": [row.as_json() for row in self.apart],
            "shared": [row.as_json() for row in self.shared],
        }


def bench_memory(
    decoder: Decoder,
    spec: CacheSpec,
    users: Sequence[int] = DEFAULT_USERS,
    *,
    tokens: int = USER_TOKENS,
    shared_tokens: int = SHARED_TOKENS,
    on_row: Callable[[Memory], object] = bool,
) -> MemoryBench:
    """Fill a cache for each number of users, without and with ``shared_tokens``; ``on_row`` hears of each.

    Raises CapacityError where the memory for a cache isn't there.
    """
    _fill(decoder, spec, 1, tokens, 0)  # compiles, and takes what memory a pass takes
    rows = []
    for shared in (0, shared_tokens):
        for number in users:
            rows.append(_fill(decoder, spec, number, tokens, shared))
            on_row(rows[-1])
    return MemoryBench(tuple(rows[: len(users)]), tuple(rows[len(users) :]))


def _fill(decoder: Decoder, spec: CacheSpec, users: int, tokens: int, shared: int) -> Memory:
    """Reserve for ``users``, let them hold their tokens all at once, and count."""
    model, length = decoder.spec, shared + tokens
    predicted = users_bytes(model, spec, users, length, shared)
    whole = users * pool_bytes(model, spec, length, decoder.step_tokens)
    is_tight = all(group.window is None for group in layer_groups(model, spec))  # else a pool has a step's slack
    budget = predicted if shared and is_tight else whole
    gc.collect()  # the cache before this one
    before = resident_memory()
    cache = KvCache(model, spec, num_tokens=length, step_tokens=decoder.step_tokens, budget=budget)
    after = resident_memory()
    decoder.prepare(cache)
    prompt = made_up_ids(model.vocab_size, shared)
    held = [_hold(decoder, cache, prompt + made_up_ids(model.vocab_size, tokens, user + 1)) for user in range(users)]
    found = Memory(
        users=users,
        tokens=length,
        shared_tokens=shared,
        logical_bytes=users * logical_bytes(model, spec, length),
        predicted_bytes=predicted,
        allocated_bytes=cache.usage().allocated_bytes,
        predicted_reserved_bytes=budget,
        reserved_bytes=cache.pool_bytes,
        resident_bytes=None if before is None or after is None else after - before,
    )
    for sequence in held:
        sequence.release()
    return found


def _hold(decoder: Decoder, cache: KvCache, token_ids: Sequence[int]) -> Held:
    """Return a sequence of these tokens, computed but for what the cache has of them."""
    sequence = cache.new_sequence(prompt_tokens=len(token_ids))
    sequence.reuse(token_ids)
    while sequence.num_tokens < len(token_ids):
        start = sequence.num_tokens
        rows = sequence.most_rows(min(decoder.step_tokens, len(token_ids) - start))
        piece = list(token_ids[start : start + rows])
        decoder.forward([Part(sequence, piece, "none")], is_copied=False)
        sequence.record(piece)
        sequence.drop_unseen()
    return sequence
