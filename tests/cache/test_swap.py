"""Sequences that wait in host memory: within the budget, and back bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from cache.caches import attention_layer, model_of, models
from cache.fake_tokens import Text, assert_reads, begin, run, step, write
from hypothesis import given
from hypothesis import strategies as st

from kvist.cache.kv_cache import KvCache
from kvist.cache.swap import SwapSpace
from kvist.spec.cache import CacheSpec, pool_bytes, swap_blocks
from kvist.spec.model import ModelSpec
from kvist.spec.retention import RetentionSpec, parse_retention

FULL, WINDOWS = model_of([attention_layer(None)]), model_of([attention_layer(None), attention_layer(20)])
A, B = list(range(100, 180)), list(range(200, 280))


def cache_of(model: ModelSpec = FULL, num_sequences: int = 2) -> KvCache:
    return KvCache(model, CacheSpec(), num_tokens=80, num_sequences=num_sequences)


@given(models, st.integers(0, 1 << 20), st.integers(1, 200))
def test_a_budget_is_kept_and_used(model: ModelSpec, budget: int, num_tokens: int) -> None:
    cache = KvCache(model, CacheSpec(), num_tokens=num_tokens, step_tokens=40)
    swap = SwapSpace(cache, budget)
    assert swap.num_bytes <= budget
    blocks = swap_blocks(cache.groups, num_tokens, 40, budget)
    if pool_bytes(model, CacheSpec(), num_tokens, 40) <= budget:
        room = budget - swap.num_bytes
        growing = [group for group in cache.groups if group.window is None] or cache.groups
        assert room < sum(group.block_bytes for group in growing)
    assert swap.num_bytes == sum(count * group.block_bytes for count, group in zip(blocks, cache.groups, strict=True))


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("model", [FULL, WINDOWS], ids=["full", "windows"])
def test_back_into_other_blocks(model: ModelSpec, is_shared: bool) -> None:
    cache = cache_of(model, num_sequences=3)
    swap = SwapSpace(cache, 1 << 20)
    found, text = run(cache, A[:70], is_shared=is_shared)
    before, held = found.allocated_bytes, [table.held for table in found.tables]
    swapped = swap.swap_out(found)
    assert swapped is not None
    assert swap.used_bytes == before
    assert found.num_tokens == found.allocated_bytes == 0
    cache.clear()
    others = [run(cache, B[:35], is_shared=False) for _ in range(2)]
    assert swap.blocks_missing(swapped) == 0
    assert swap.swap_in(swapped)
    assert swapped.sequence is found
    assert swap.used_bytes == 0
    assert [table.held for table in found.tables] != held
    assert_reads(found, text)
    assert step(found, text, A[70:])
    assert_reads(found, text)
    for other, written in others:
        assert_reads(other, written)
    cache.check()
    swap.check()


def test_what_is_still_in_the_cache_is_shared_and_not_copied() -> None:
    cache = cache_of(num_sequences=3)
    swap = SwapSpace(cache, 1 << 20)
    found, text = run(cache, A[:40])
    other, _ = run(cache, A[:36])
    swapped = swap.swap_out(found)
    assert swapped
    assert cache.pools[0].num_used == 3
    assert swap.swap_in(swapped)
    assert found.tables[0].held[:2] == other.tables[0].held[:2]
    assert cache.pools[0].num_used == 4
    assert_reads(found, text)


def test_no_room_in_the_swap_space() -> None:
    cache = cache_of()
    swap = SwapSpace(cache, 4 * cache.groups[0].block_bytes + 5)
    found, text = run(cache, A[:70])
    usage = cache.usage()
    assert swap.swap_out(found) is None
    assert cache.usage() == usage
    assert_reads(found, text)
    assert found.truncate(64) == 64
    text.cut(64)
    swapped = swap.swap_out(found)
    assert swapped
    assert swap.used_bytes == swap.num_bytes == 4 * cache.groups[0].block_bytes
    other, _ = run(cache, B[:3])
    assert swap.swap_out(other) is None
    swap.discard(swapped)
    assert swap.used_bytes == 0
    assert swap.swap_out(other)


def test_no_room_in_the_cache() -> None:
    cache = cache_of(num_sequences=1)
    swap = SwapSpace(cache, 1 << 20)
    found, text = run(cache, A[:40])
    swapped = swap.swap_out(found)
    assert swapped
    other, _ = run(cache, B[:50])
    usage = cache.usage()
    assert swap.blocks_missing(swapped) == 2
    assert not swap.swap_in(swapped)
    assert cache.usage() == usage
    assert swap.used_bytes == 3 * cache.groups[0].block_bytes
    other.release()
    assert swap.swap_in(swapped)
    assert_reads(found, text)


def test_blocks_to_share_are_not_counted_as_room() -> None:
    """Two of its blocks are cached and none is free: it lacks one, though two could be evicted."""
    cache = KvCache(FULL, CacheSpec(), num_tokens=48)
    swap = SwapSpace(cache, 1 << 20)
    found, _ = run(cache, A[:40])
    swapped = swap.swap_out(found)
    assert swapped
    begin(cache, B[:16], is_shared=False)[0].grow(16)
    assert (cache.pools[0].num_free, cache.pools[0].num_cached) == (0, 2)
    assert swap.blocks_missing(swapped) == 1
    assert not swap.swap_in(swapped)
    cache.check()


def test_no_swap_space_at_all() -> None:
    cache = cache_of()
    swap = SwapSpace(cache, 0)
    assert swap.num_bytes == 0
    assert swap.swap_out(run(cache, A[:3])[0]) is None


@pytest.mark.parametrize("retention", ["window:20", "sinks:4+20", "h2o:64", "snapkv:64"])
def test_what_a_retention_knows_waits_too(retention: str) -> None:
    kept = parse_retention(retention)
    cache = KvCache(FULL, CacheSpec(), num_tokens=200, num_sequences=3)
    swap = SwapSpace(cache, 1 << 20)
    found, twin = (filled(cache, kept, 150) for _ in range(2))
    swapped = swap.swap_out(found)
    assert swapped
    cache.clear()
    assert swap.swap_in(swapped)
    found.check()
    cache.check()
    for sequence in (found, twin):
        sequence.grow(3)
        sequence.drop_unseen()
    assert (found.num_tokens, found.num_slots) == (twin.num_tokens, twin.num_slots)
    for mine, other in zip(found.tables, twin.tables, strict=True):
        assert mine.gap == other.gap
        assert mine.numbers == other.numbers
    for one, another in zip(found.attended, twin.attended, strict=True):
        assert one.positions.tolist() == another.positions.tolist()
        assert one.tally.tolist() == another.tally.tolist()
    assert found.truncate(149) == twin.truncate(149)


def filled(cache: KvCache, retention: RetentionSpec, num_tokens: int) -> object:
    """A sequence whose tokens stop where its retention decides, each attended as much as its position says."""
    sequence, text = cache.new_sequence(retention=retention, prompt_tokens=100), Text()
    while sequence.num_tokens < num_tokens:
        before = sequence.num_tokens
        stop = retention.next_stop(before, 100) or num_tokens
        count = min(num_tokens, stop) - before
        sequence.grow(count)
        text.extend(range(before, before + count))
        if not retention.is_scored:
            write(sequence, text, before)
            sequence.record(text.ids[before:])
        else:
            sequence.add_tallies([np.arange(found.num_slots) for found in sequence.attended])
        sequence.drop_unseen()
    return sequence
