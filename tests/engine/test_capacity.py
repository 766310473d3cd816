"""How many tokens the cache is laid out for, and what is said where none fit."""

from __future__ import annotations

import pytest
from fakes.model import fake_spec
from hypothesis import given
from hypothesis import strategies as st

from kvist.engine.capacity import Capacity, most_tokens, plan_capacity
from kvist.errors import CapacityError
from kvist.spec.cache import CacheSpec, pool_bytes
from kvist.spec.model import ModelSpec

BF16 = CacheSpec()
STEP = 64
models = st.sampled_from([fake_spec(), fake_spec(window=40)])


def plan(model: ModelSpec, *, budget: int | None = None, available: int | None = None, context: int = 256) -> Capacity:
    return plan_capacity(model, BF16, context=context, step_tokens=STEP, budget=budget, available=available)


def test_the_default_is_the_context() -> None:
    assert plan(fake_spec()) == Capacity(256, is_cut=False)
    assert plan(fake_spec(), context=100, available=1 << 30) == Capacity(100, is_cut=False)


def test_the_default_is_at_most_half_of_the_free_memory() -> None:
    model = fake_spec()
    block = pool_bytes(model, BF16, 16, STEP)
    assert plan(model, available=2 * 5 * block + 2) == Capacity(80, is_cut=True)
    with pytest.raises(CapacityError, match=f"at least {block} bytes.*set kv_budget"):
        plan(model, available=2 * block - 2)


@given(models, st.integers(1, 1 << 20))
def test_a_budget_is_used_to_the_last_block(model: ModelSpec, budget: int) -> None:
    if budget < pool_bytes(model, BF16, 1, STEP):
        with pytest.raises(CapacityError, match=f"a KV budget of {budget} bytes holds no block"):
            plan(model, budget=budget)
        return
    capacity = plan(model, budget=budget)
    assert pool_bytes(model, BF16, capacity.num_tokens, STEP) <= budget
    assert capacity.is_cut == (capacity.num_tokens < 256)
    more = pool_bytes(model, BF16, capacity.num_tokens + 16, STEP)
    assert more > budget or more == pool_bytes(model, BF16, 1 << 40, STEP)


def test_a_budget_may_be_more_than_the_context() -> None:
    model = fake_spec()
    assert plan(model, budget=pool_bytes(model, BF16, 1600, STEP)) == Capacity(1600, is_cut=False)


def test_a_budget_beyond_the_free_memory_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"1.00 GiB \(1073741824 bytes\) is more than the 512.00 MiB of free"):
        plan(fake_spec(), budget=1 << 30, available=1 << 29)


@given(models, st.integers(0, 1 << 20), st.integers(1, 5000))
def test_most_tokens_is_monotone_and_limited(model: ModelSpec, budget: int, limit: int) -> None:
    few, more = (most_tokens(model, BF16, size, STEP, limit) for size in (budget, budget + 4096))
    assert 0 <= few <= more <= limit
