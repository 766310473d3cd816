"""A cache's gauge: blocks by state, shared blocks once, waste; and users' memory as the formula says, to the byte."""

from __future__ import annotations

import pytest
from cache.caches import attention_layer, model_of, models
from cache.fake_tokens import begin, run, step
from hypothesis import given
from hypothesis import strategies as st

from kvist.cache.kv_cache import KvCache
from kvist.spec.cache import CacheSpec, allocated_bytes, bytes_per_token, logical_bytes, pool_bytes, users_bytes
from kvist.spec.model import ModelSpec

FULL = model_of([attention_layer(None)] * 3)
MIXED = model_of([attention_layer(None, kv_heads=2), attention_layer(200), attention_layer(40, dim=32)])
TOKENS = [7 * number % 1000 for number in range(1600)]
SPEC = CacheSpec()


def test_an_empty_cache() -> None:
    usage = KvCache(FULL, SPEC, num_tokens=64).usage()
    assert (usage.num_free_blocks, usage.num_cached_blocks, usage.num_used_blocks) == (4, 0, 0)
    assert usage.waste == 0.0
    assert usage.pool_bytes == pool_bytes(FULL, SPEC, 64, 256)


def test_blocks_by_state_and_bytes() -> None:
    cache = KvCache(FULL, SPEC, num_tokens=80, num_sequences=2)
    block = cache.groups[0].block_bytes
    run(cache, TOKENS[:40])[0].release()
    found, text = run(cache, TOKENS[:36])
    usage = cache.usage()
    assert (usage.num_free_blocks, usage.num_cached_blocks, usage.num_used_blocks) == (6, 1, 3)
    assert usage.cached_bytes == block
    assert usage.allocated_bytes == 3 * block
    assert usage.logical_bytes == usage.filled_bytes == 36 * bytes_per_token(FULL, SPEC)
    assert usage.waste == 12 / 48
    twin, _ = found.fork(), text
    assert cache.usage().allocated_bytes == 3 * block, "shared blocks count once"
    assert cache.usage().logical_bytes == 2 * usage.logical_bytes
    assert cache.usage().waste == usage.waste
    twin.grow(1)
    assert cache.usage().allocated_bytes == 4 * block
    assert cache.usage().waste == (12 + 11) / 64
    assert cache.usage().num_evicted_blocks == 0


def test_a_shared_block_is_filled_as_far_as_anybody_filled_it() -> None:
    cache = KvCache(FULL, SPEC, num_tokens=80, num_sequences=2)
    run(cache, TOKENS[:30])[0].release()
    found, _, num_cached = begin(cache, TOKENS[:21])
    assert num_cached == found.num_tokens == 20
    assert cache.usage().waste == 2 / 32


@pytest.mark.parametrize("model", [FULL, MIXED], ids=["full", "windows"])
def test_memory_is_linear_in_users(model: ModelSpec) -> None:
    """1, 8 and 64 users of 512 tokens, all distinct: predicted, reserved and used are one number and its multiples."""
    found = []
    for num_users in (1, 8, 64):
        cache = KvCache(model, SPEC, num_tokens=512, num_sequences=num_users)
        assert cache.pool_bytes == num_users * pool_bytes(model, SPEC, 512, 256)
        for user in range(num_users):
            fill(cache, [user + 1, *TOKENS[:511]])
        usage = cache.usage()
        predicted = users_bytes(model, SPEC, num_users, 512)
        assert usage.allocated_bytes == predicted == num_users * allocated_bytes(model, SPEC, 512)
        assert usage.logical_bytes == num_users * logical_bytes(model, SPEC, 512)
        assert usage.waste == 0.0
        found.append(usage.allocated_bytes)
    assert found == [found[0], 8 * found[0], 64 * found[0]]
    if model is FULL:
        assert found[0] == 512 * bytes_per_token(model, SPEC) == pool_bytes(model, SPEC, 512, 256)


@pytest.mark.parametrize("model", [FULL, MIXED], ids=["full", "windows"])
@pytest.mark.parametrize("num_users", [1, 8, 64])
def test_a_shared_system_prompt_is_counted_once(model: ModelSpec, num_users: int) -> None:
    cache = KvCache(model, SPEC, num_tokens=1512, num_sequences=num_users)
    for user in range(num_users):
        fill(cache, [*TOKENS[:1000], user + 1, *TOKENS[1000:1511]])
    usage = cache.usage()
    predicted = users_bytes(model, SPEC, num_users, 1512, shared_tokens=1000)
    assert usage.allocated_bytes == predicted
    if model is FULL:
        block = cache.groups[0].block_bytes
        assert predicted == block * (62 + num_users * (95 - 62))
        assert usage.logical_bytes == num_users * 1512 * bytes_per_token(model, SPEC)
    cache.check()


@given(models, st.integers(1, 5), st.integers(1, 120), st.integers(0, 120))
def test_users_as_the_formula_says(model: ModelSpec, num_users: int, num_tokens: int, shared: int) -> None:
    cache = KvCache(model, SPEC, num_tokens=130, num_sequences=num_users)
    shared = min(shared, num_tokens - 1)
    for user in range(num_users):
        own = [2000 + user] * (num_tokens - shared)
        fill(cache, [*TOKENS[:shared], *own])
    # Windows may end before the shared part does: what each drops stays cached, and isn't counted as used.
    assert cache.usage().allocated_bytes == users_bytes(model, SPEC, num_users, num_tokens, shared)


HELD = []


def fill(cache: KvCache, prompt: list[int]) -> None:
    """A running sequence of a prompt, in steps of 64."""
    sequence, text, num_cached = begin(cache, prompt)
    for start in range(num_cached, len(prompt), 64):
        assert step(sequence, text, prompt[start : start + 64])
    HELD.append(sequence)


@pytest.fixture(autouse=True)
def _let_go() -> object:
    HELD.clear()
    yield
    HELD.clear()


@given(models, st.integers(1, 400), st.integers(1, 4), st.integers(0, 200_000))
def test_a_budget_for_many(model: ModelSpec, num_tokens: int, num_sequences: int, more: int) -> None:
    least = num_sequences * pool_bytes(model, SPEC, num_tokens, 40)
    cache = KvCache(
        model, SPEC, num_tokens=num_tokens, num_sequences=num_sequences, step_tokens=40, budget=least + more
    )
    assert least <= cache.pool_bytes <= least + more
    room = least + more - cache.pool_bytes
    growing = [group for group in cache.groups if group.window is None] or cache.groups
    assert room < sum(group.block_bytes for group in growing)
    for group, pool in zip(cache.groups, cache.pools, strict=True):
        assert pool.num_blocks >= num_sequences * group.peak_blocks(num_tokens, 40)
