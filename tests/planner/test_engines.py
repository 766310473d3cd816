"""Other engines' own counts: lines of public logs, to the digit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import BY_NAME, transformer

from kvist.errors import SpecError
from kvist.planner.engine import Engine, KvistEngine
from kvist.planner.llama_cpp import LlamaCppEngine, num_cells
from kvist.planner.plan import plan
from kvist.planner.vllm import VllmEngine, layout
from kvist.spec.cache import CacheSpec
from kvist.spec.config import model_spec_from_config
from kvist.spec.footprint import Footprint

GIB = 1 << 30
MIB = 1 << 20
BATCHED = 8192

MISTRAL_SMALL = transformer("mistral", 5120, 40, 32, 8, head_dim=128, sliding_window=None, vocab_size=131072)
QWEN35_27B = transformer(
    "qwen3_5_text",
    5120,
    64,
    24,
    4,
    head_dim=256,
    linear_num_value_heads=48,
    linear_num_key_heads=16,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
)
GEMMA4_31B = transformer(
    "gemma4_text",
    5376,
    60,
    32,
    16,
    head_dim=256,
    global_head_dim=512,
    num_global_key_value_heads=4,
    attention_k_eq_v=True,
    sliding_window=1024,
)
GPT_OSS_120B = transformer("gpt_oss", 2880, 36, 64, 8, sliding_window=128, vocab_size=201088)


def at_prices_of(engine: Engine, config: dict[str, Any], codec: str = "bf16") -> Footprint:
    return Footprint(model_spec_from_config(config), CacheSpec(codec), price=engine.price)


def test_vllm_llama() -> None:
    """Available KV cache 3.81 GiB, 1,952 blocks; concurrency for 20,000 tokens: 1.56x."""
    pool = layout(at_prices_of(VllmEngine(), BY_NAME["Llama-3.1-8B"].config))
    assert f"{1952 * pool.block_bytes / GIB:.2f}" == "3.81"
    assert f"{1952 / pool.blocks_needed(20000, BATCHED, 0):.2f}" == "1.56"


def test_vllm_mistral_small() -> None:
    """28.20 GiB, 184,832 tokens."""
    pool = layout(at_prices_of(VllmEngine(), MISTRAL_SMALL))
    assert pool.block_bytes == 16 * 163840
    assert f"{184832 // 16 * pool.block_bytes / GIB:.2f}" == "28.20"
    assert pool.tokens_before_020(184832 // 16) == 184832


def test_vllm_gated_delta_net() -> None:
    """The attention block grows to 784 tokens; 1,487 blocks of which a request of 32,768 takes 45; 290,864 tokens."""
    pool = layout(at_prices_of(VllmEngine(), QWEN35_27B))
    assert {group.block_tokens for group in pool.groups} == {784}
    assert pool.num_groups == 4
    needed = pool.blocks_needed(32768, BATCHED, 0)
    assert needed == 45
    assert f"{1487 / needed:.2f}" == "33.04"
    assert pool.tokens_before_020(1487) == 290864


def test_vllm_windows_and_wider_heads() -> None:
    """64.68 GiB in 26,492 blocks, a request of 262,144 takes 11,077; 626,949 tokens."""
    pool = layout(at_prices_of(VllmEngine(), GEMMA4_31B))
    assert f"{26492 * pool.block_bytes / GIB:.2f}" == "64.68"
    assert pool.blocks_needed(262144, BATCHED, 0) == 11077
    assert pool.tokens_logged(26492, 262144, BATCHED, 0) == 626949
    assert {group.kind.name: group.block_tokens for group in pool.groups} == {"window": 16, "full": 32}


def test_vllm_half_windows() -> None:
    """5.38 GiB, 9,798 blocks, 78,384 tokens in versions before 0.20."""
    pool = layout(at_prices_of(VllmEngine(), GPT_OSS_120B))
    assert f"{9798 * pool.block_bytes / GIB:.2f}" == "5.38"
    assert pool.tokens_before_020(9798) == 78384


def test_llama_cpp_hybrid() -> None:
    """262,144 cells: 16,384 MiB; recurrent states of 4 sequences: 598.5 MiB."""
    engine = LlamaCppEngine()
    footprint = at_prices_of(engine, QWEN35_27B)
    assert engine.cache_bytes(footprint, 262144) == 16384 * MIB
    assert 4 * footprint.state_bytes == 598.5 * MIB


@pytest.mark.parametrize(
    ("model", "measured_gib"),
    [
        ({"vocab_size": 128256}, 4.76 + 0.13),
        ({"vocab_size": 151936}, 5.56 + 0.13),
        ({"vocab_size": 201088}, 7.38 + 0.13),
    ],
)
def test_vllm_overhead_as_measured_on_an_h100(model: dict[str, Any], measured_gib: float) -> None:
    spec = model_spec_from_config(transformer("llama", 1024, 4, 8, 8) | model)
    assert VllmEngine().overhead_bytes(spec) / GIB == pytest.approx(measured_gib, rel=0.02)


def test_vllm_keeps_one_scale_for_all_and_index_keys_in_fp8() -> None:
    engine = VllmEngine()
    assert at_prices_of(engine, BY_NAME["Llama-3.1-8B"].config, "int8").full_bytes_per_token == 131072 // 2
    assert at_prices_of(engine, BY_NAME["DeepSeek-V3.2"].config).full_bytes_per_token == 61 * (576 * 2 + 132)


def test_three_numbers_apart() -> None:
    """What a sequence has in use, what admission counts, and what the log says."""
    made = plan(model_spec_from_config(GEMMA4_31B), context=262144, engine=VllmEngine(pool_blocks=26492))
    report = made.settings.engine.report(made.rank, made.context, None)
    assert report["logged_tokens"] == 626949
    assert report["charged_bytes"] == 11077 * report["block_bytes"]
    assert report["resident_bytes"] == made.footprint.sequence_bytes(262144) < report["charged_bytes"]
    assert (report["blocks"], report["pool_blocks"]) == (11077, 26492)


@pytest.mark.parametrize(
    ("engine", "cache", "message"),
    [
        (VllmEngine(), CacheSpec("int4"), 'vllm keeps no "int4" cache'),
        (VllmEngine(), CacheSpec("bf16", v="int8"), "keeps keys and values alike"),
    ],
)
def test_what_vllm_lacks(engine: Engine, cache: CacheSpec, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        plan(model_spec_from_config(MISTRAL_SMALL), engine=engine, cache=cache)


def test_llama_cpp_types_and_cells() -> None:
    engine = LlamaCppEngine()
    config = BY_NAME["gpt-oss-20b"].config
    window, full = at_prices_of(engine, config).groups
    assert (num_cells(full, 8192), num_cells(full, 8193)) == (8192, 8448)
    assert (num_cells(window, 8192), num_cells(window, 200)) == (768, 256)  # 128 + 512, padded to 256
    assert at_prices_of(engine, config, "int8").full_bytes_per_token == 12 * 8 * 2 * 64 // 32 * 34
    narrow = transformer("llama", 80, 2, 4, 4)
    with pytest.raises(SpecError, match="q8_0 cache needs heads of a multiple of 32, this model has 20"):
        _ = at_prices_of(engine, narrow, "int8").full_bytes_per_token
    with pytest.raises(SpecError, match=r"llama\.cpp keeps recurrent states in f32 only"):
        plan(model_spec_from_config(QWEN35_27B), engine=engine, state_codec="bf16")


@given(st.sampled_from(sorted(BY_NAME)), st.sampled_from(["kvist", "vllm", "llama.cpp"]), st.integers(1, 200_000))
def test_every_engine_charges_what_a_sequence_holds_and_more_for_more(name: str, kind: str, num_tokens: int) -> None:
    engine: Engine = {"kvist": KvistEngine(), "vllm": VllmEngine(), "llama.cpp": LlamaCppEngine()}[kind]
    footprint = at_prices_of(engine, BY_NAME[name].config)
    charged = engine.charged_bytes(footprint, num_tokens)
    assert footprint.sequence_bytes(num_tokens) <= charged <= engine.charged_bytes(footprint, num_tokens + 1000)
