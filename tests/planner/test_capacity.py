"""Users, lengths and memory: the lesson's numbers, and that the formula runs both ways."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import BY_NAME

from kvist.errors import CapacityError, SpecError
from kvist.planner.advice import advice
from kvist.planner.capacity import require_room
from kvist.planner.devices import DEVICES
from kvist.planner.engine import Engine, KvistEngine
from kvist.planner.hardware import find_device
from kvist.planner.llama_cpp import LlamaCppEngine
from kvist.planner.plan import Plan, plan
from kvist.planner.vllm import VllmEngine
from kvist.planner.weight_types import BITS, weight_bytes
from kvist.spec.cache import CacheSpec
from kvist.spec.config import model_spec_from_config

GIB = 1 << 30
H100 = find_device("H100", DEVICES)
ENGINES: dict[str, Engine] = {"kvist": KvistEngine(), "vllm": VllmEngine(), "llama.cpp": LlamaCppEngine()}


def plan_of(name: str, **options: Any) -> Plan:
    return plan(model_spec_from_config(BY_NAME[name].config), **options)


def test_the_newcomers_question() -> None:
    """How many users of 8k context does an 80 GB card hold for Llama-3.1-8B in bf16, and with int8 KV?"""
    assert plan_of("Llama-3.1-8B", context=8192, device=H100).users == 56
    assert plan_of("Llama-3.1-8B", context=8192, device=H100, cache=CacheSpec("int8")).users == 110


def test_a_hundred_users_of_the_lesson() -> None:
    made = plan_of("24 layers of 2,048", context=8192, kv_memory_bytes=100 * 1610612736)
    assert made.users == 100
    assert made.charged_bytes == int(1.5 * GIB)


def test_budget_is_memory_less_weights_less_overhead() -> None:
    made = plan_of("Llama-3.1-8B", memory_bytes=24 * GIB, utilisation=0.5, overhead_bytes=GIB, weight_type="q4")
    assert made.budget is not None
    assert made.budget.weights_bytes == 8030261248 * 20 // 32
    assert made.budget.kv_bytes == 12 * GIB - GIB - made.budget.weights_bytes
    assert made.budget.missing_bytes == 0


def test_weights_that_do_not_fit() -> None:
    made = plan_of("Llama-3.1-8B", memory_bytes=8 * GIB)
    assert made.budget is not None
    assert (made.users, made.max_context, made.budget.kv_bytes) == (0, 0, 0)
    with pytest.raises(CapacityError, match=r"weights 14\.96 GiB and overhead 0 B exceed 7\.20 GiB by 7\.76 GiB"):
        require_room(made.budget)


def test_ranks_share_weights_and_heads() -> None:
    one = plan_of("Llama-3.1-8B", context=8192, device=H100)
    two = plan_of("Llama-3.1-8B", context=8192, device=H100, tensor_parallel=2)
    assert one.budget is not None
    assert two.budget is not None
    assert two.budget.weights_bytes * 2 == one.budget.weights_bytes
    assert two.charged_bytes * 2 == one.charged_bytes
    replicas = plan_of("Llama-3.1-8B", context=8192, device=H100, num_devices=2)
    assert replicas.users == 2 * (one.users or 0)


def test_a_window_ends_growth() -> None:
    made = plan_of("Mistral-7B", device=H100)
    assert made.max_context is None
    assert made.outgrows_weights_at is None
    capped = plan_of("Llama-3.1-8B", device=H100, window=4096)
    assert capped.footprint.window_bytes_per_token == {4096: 131072}
    assert capped.max_context is None


def test_where_the_cache_outgrows_the_weights() -> None:
    made = plan_of("Llama-3.1-8B")
    length = made.outgrows_weights_at
    assert length is not None
    assert made.footprint.reserved_bytes(length) > 2 * 8030261248 >= made.footprint.reserved_bytes(length - 1)


def test_unknown_weights_ask_for_their_size() -> None:
    config = {key: value for key, value in BY_NAME["Llama-3.1-8B"].config.items() if key != "vocab_size"}
    made = plan(model_spec_from_config(config), memory_bytes=24 * GIB)
    with pytest.raises(
        CapacityError, match="give --weight-bytes SIZE or --kv-memory SIZE: the config doesn't say vocab_size"
    ):
        _ = made.users
    assert plan(model_spec_from_config(config), memory_bytes=24 * GIB, weight_bytes=4 * GIB).users


plans = st.builds(
    lambda name, engine, codec, context, users, ranks: plan_of(
        name,
        engine=ENGINES[engine],
        cache=CacheSpec(codec),
        context=context,
        users=users,
        tensor_parallel=ranks,
        memory_bytes=64 * GIB,
        weight_bytes=8 * GIB,
    ),
    st.sampled_from([name for name in BY_NAME if name != "T5-base"]),
    st.sampled_from(sorted(ENGINES)),
    st.sampled_from(["f32", "bf16"]),
    st.integers(1, 200_000),
    st.integers(1, 300),
    st.sampled_from([1, 2, 4, 8]),
)


@given(plans)
def test_the_longest_context_fits_and_the_next_does_not(made: Plan) -> None:
    longest, wished = made.max_context, made.settings.users or 1
    assert made.budget is not None
    if longest is None:
        return
    room = made.budget.kv_bytes // wished
    assert longest == 0 or made.settings.engine.charged_bytes(made.rank, longest) <= room
    assert made.settings.engine.charged_bytes(made.rank, longest + 1) > room


@given(plans)
def test_memory_needed_is_the_inverse_of_users(made: Plan) -> None:
    wished, memory = made.settings.users or 1, made.memory_needed
    assert memory is not None

    def users_in(num_bytes: int) -> int | None:
        options = {name: getattr(made.settings, name) for name in ("engine", "cache", "context", "tensor_parallel")}
        return plan(made.source, memory_bytes=num_bytes, weight_bytes=8 * GIB, **options).users

    assert users_in(memory) is None or users_in(memory) >= wished  # type: ignore[operator]
    fewer = users_in(memory - 2)
    assert fewer is None or fewer < wished


@given(plans)
def test_advice_helps(made: Plan) -> None:
    for found in advice(made):
        assert made.users is not None
        assert found.users is None or found.users > made.users


def test_advice_is_ranked_gentlest_first() -> None:
    made = plan_of("Llama-3.1-8B", context=8192, device=H100, users=100)
    assert [found.options for found in advice(made)] == [
        "--kv int8",
        "--tp 2",
        "--context 4608",
        "--window 4096",
        "--kv int4",
        "--weights int4",
    ]
    assert [found.fits for found in advice(made)] == [True] * 5 + [False]
    assert advice(plan_of("Llama-3.1-8B")) == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "--context must be between 1"),
        ({"context": 1 << 60}, "--context must be between 1"),
        ({"users": -1}, "--users must be between 1"),
        ({"tensor_parallel": 0}, "--tp must be between 1"),
        ({"tensor_parallel": 2, "num_devices": 3}, "--devices 3 must be a multiple of --tp 2"),
        ({"utilisation": 0.0}, "--utilisation must be above 0 and at most 1"),
        ({"utilisation": float("nan")}, "--utilisation must be above 0"),
        ({"memory_bytes": -5}, "--memory must be between 1"),
        ({"weight_type": "int3"}, 'unknown weight type "int3" for --weights; known: f32, bf16'),
        ({"state_codec": "int8"}, 'unknown precision "int8" for --state-dtype; known: f32, bf16'),
        ({"encoder_tokens": -1}, "--encoder-tokens must be between 0"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        plan_of("Llama-3.1-8B", **options)


def test_weight_types() -> None:
    llama = model_spec_from_config(BY_NAME["Llama-3.1-8B"].config).parameters
    mixture = model_spec_from_config(BY_NAME["gpt-oss-20b"].config).parameters
    assert llama is not None
    assert mixture is not None
    assert weight_bytes(llama, "bf16") == 2 * llama.total
    assert weight_bytes(mixture, "mxfp4") == -(-mixture.experts * 17 // 32) + 2 * (mixture.total - mixture.experts)
    assert weight_bytes(llama, "int4") > weight_bytes(llama, "mxfp4")  # its tables stay in 16 bits
    sizes = [weight_bytes(llama, name) for name in ("f32", "bf16", "q8", "int8", "q4")]
    assert sizes == sorted(sizes, reverse=True)
    assert all(bits > 0 for bits in BITS.values())
