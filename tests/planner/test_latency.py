"""The roofline: what a step reads and multiplies, and what follows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import BY_NAME

from kvist.planner.devices import DEVICES
from kvist.planner.hardware import Device, Figure, find_device
from kvist.planner.latency import MAX_BATCH, Roofline
from kvist.planner.plan import plan
from kvist.planner.weight_types import step_bytes
from kvist.spec.config import model_spec_from_config

H100 = find_device("h100", DEVICES)


def roofline_of(name: str, device: Device = H100, **options: Any) -> Roofline:
    found = plan(model_spec_from_config(BY_NAME[name].config), device=device, **options).roofline
    assert found is not None
    return found


def test_a_decode_step_reads_weights_once_and_every_cache() -> None:
    found = roofline_of("Llama-3.1-8B")
    looked_up = 2 * 128256 * 4096
    assert found.decode_bytes(1, 8192) == 2 * 8030261248 - looked_up + 8192 * 131072
    assert found.decode_bytes(10, 8192) - found.decode_bytes(1, 8192) == 9 * 8192 * 131072
    assert found.tpot_s(1, 8192) == found.decode_bytes(1, 8192) / 3350e9


def test_a_tied_table_is_read_as_the_output() -> None:
    assert roofline_of("SmolLM2-135M").decode_bytes(1, 1) == 2 * 134515008 + 23040


def test_real_sizes_scale_what_is_read() -> None:
    half = roofline_of("SmolLM2-135M", weight_bytes=134515008)
    assert half.decode_bytes(1, 1) == 134515008 + 23040


def test_prefill_multiplies_the_output_once() -> None:
    found = roofline_of("Llama-3.1-8B")
    table = 128256 * 4096
    attention = 32 * (1000 * 1001 // 2) * 2 * 32 * 256
    assert found.prefill_operations(1000) == 2 * (8030261248 - 2 * table) * 1000 + 2 * table + attention
    assert found.ttft_s(1000) == found.prefill_operations(1000) / 989e12


def test_a_mixture_reads_the_experts_that_its_tokens_choose() -> None:
    parameters = roofline_of("gpt-oss-20b").parameters
    one, all_of_them = step_bytes(parameters, "bf16", 1), step_bytes(parameters, "bf16", 10_000)
    assert one == pytest.approx(2 * (parameters.active - parameters.embedding))
    assert all_of_them == pytest.approx(2 * (parameters.total - parameters.embedding))


def test_ranks_read_together_and_replicated_heads_twice() -> None:
    one, sixteen = roofline_of("Llama-3.1-8B"), roofline_of("Llama-3.1-8B", tensor_parallel=16)
    assert sixteen.cache_read_bytes(1000) == 2 * one.cache_read_bytes(1000)
    assert sixteen.bandwidth == 16 * one.bandwidth


def test_a_recurrent_state_is_read_and_written() -> None:
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 64, "vocab_size": 1000}
    found = plan(model_spec_from_config({"model_type": "mamba2", **sizes}), device=H100).roofline
    assert found is not None
    assert found.cache_read_bytes(1) == found.cache_read_bytes(1000) == 2 * found.footprint.state_bytes


def test_the_knee_and_where_arithmetic_begins_to_limit() -> None:
    long, short = roofline_of("Llama-3.1-8B"), roofline_of("Llama-3.1-8B")
    assert long.knee(8192) == 14
    assert long.compute_bound_at(8192) is None  # every user brings more to read than to multiply
    bound = short.compute_bound_at(16)
    assert bound is not None
    reading = short.decode_bytes(bound, 16) / short.bandwidth
    assert short.tpot_s(bound, 16) >= reading
    assert short.tpot_s(bound - 1, 16) == short.decode_bytes(bound - 1, 16) / short.bandwidth


def test_a_device_without_a_peak_has_no_time_to_the_first_token() -> None:
    device = Device("x", Figure(1 << 34, "C"), Figure(4e10, "C"), {"int8": Figure(1e12, "C")})
    assert roofline_of("Llama-3.1-8B", device).peak is None
    assert roofline_of("Llama-3.1-8B", device, weight_type="q4").peak == 1e12


@given(st.sampled_from(["SmolLM2-135M", "Mistral-7B", "gpt-oss-20b"]), st.integers(1, 500), st.integers(1, 20_000))
def test_more_users_and_longer_contexts_never_make_a_step_shorter(name: str, users: int, num_tokens: int) -> None:
    found = roofline_of(name)
    assert 0 < found.tpot_s(users, num_tokens) <= found.tpot_s(users + 1, num_tokens)
    assert found.tpot_s(users, num_tokens) <= found.tpot_s(users, num_tokens + 100)
    assert 1 <= found.knee(num_tokens) <= MAX_BATCH
