"""The bytes of published models, to the byte, and the laws that any model's bytes obey."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import BY_NAME, PUBLISHED, Facts, transformer

from kvist.errors import SpecError
from kvist.spec.cache import (
    CODECS,
    CacheSpec,
    allocated_bytes,
    head_key_bytes,
    head_value_bytes,
    layer_groups,
)
from kvist.spec.config import model_spec_from_config
from kvist.spec.footprint import Footprint
from kvist.spec.model import LayerSpec, ModelSpec
from kvist.spec.state import RecurrentState

LENGTHS = (8192, 32768, 131072)
EVERY = pytest.mark.parametrize("facts", PUBLISHED, ids=lambda facts: facts.name)


def footprint_of(config: dict[str, Any], codec: str = "bf16", state: str = "f32", **more: Any) -> Footprint:
    return Footprint(model_spec_from_config(config), CacheSpec(codec), state, **more)


@EVERY
def test_published_bytes(facts: Facts) -> None:
    footprint = footprint_of(facts.config)
    assert footprint.full_bytes_per_token == facts.full
    assert footprint.window_bytes_per_token == facts.windows
    assert footprint.constant_bytes == facts.constant_f32
    assert footprint_of(facts.config, state="bf16").constant_bytes == facts.constant_bf16
    for length in LENGTHS:
        assert footprint.sequence_bytes(length) == facts.sequence_bytes(length)
        assert footprint.sequence_bytes(length) <= footprint.allocated_bytes(length) <= footprint.reserved_bytes(length)


@pytest.mark.parametrize(
    ("name", "num_tokens", "expected"),
    [
        ("Mistral-7B", 131072, 536870912),
        ("Phi-3-mini", 131072, 804913152),
        ("Gemma-3-27B", 32768, 3120562176),
        ("Gemma-4-26B-A4B", 131072, 2894069760),
        ("Llama-4-Scout", 131072, 7650410496),
        ("DeepSeek-V3.2", 131072, 11257511936),
        ("Qwen3-Next-80B-A3B", 8192, 278593536),
        ("Kimi-K3", 131072, 4073250816),
        ("Whisper-large-v3", 8192, 1587937280),
    ],
)
def test_whole_sequences_as_published(name: str, num_tokens: int, expected: int) -> None:
    assert footprint_of(BY_NAME[name].config).sequence_bytes(num_tokens) == expected


@pytest.mark.parametrize(
    ("layers", "width", "num_tokens", "kv_share", "expected"),
    [(32, 4096, 4096, 1, 2147483648), (24, 2048, 8192, 1, 1610612736), (32, 4096, 4096, 4, 536870912)],
)
def test_the_lessons_numbers(layers: int, width: int, num_tokens: int, kv_share: int, expected: int) -> None:
    heads = width // 128
    footprint = footprint_of(transformer("llama", width, layers, heads, heads // kv_share))
    assert footprint.sequence_bytes(num_tokens) == expected
    assert 64 * expected == 64 * footprint.allocated_bytes(num_tokens)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@EVERY
def test_a_rank_has_its_heads_and_at_least_one(facts: Facts, ranks: int) -> None:
    footprint = footprint_of(facts.config)
    rank = footprint.on_rank(ranks)
    for whole, part in zip(footprint.model.layers, rank.model.layers, strict=True):
        if whole.kind == "mla":
            assert part == whole
        elif whole.has_tokens:
            assert part.num_kv_heads == max(1, -(-whole.num_kv_heads // ranks))
            assert (part.k_dim, part.v_dim) == (whole.k_dim, whole.v_dim)
        if whole.state and part.state:
            assert part.state.num_heads == -(-whole.state.num_heads // ranks)
            assert bool(part.state.num_groups) == bool(whole.state.num_groups)
    assert rank.sequence_bytes(8192) * ranks >= footprint.sequence_bytes(8192)
    assert rank.sequence_bytes(8192) <= footprint.sequence_bytes(8192)


@pytest.mark.parametrize(
    ("name", "ranks", "expected"),
    [
        ("Llama-3.1-8B", 8, 131072 // 8),
        ("Llama-3.1-8B", 16, 131072 // 8),  # past eight KV heads they replicate
        ("SmolLM2-135M", 2, 23040 * 2 // 3),  # two of three
        ("DeepSeek-V3.2", 16, 85888),
        ("Falcon-7B", 4, 8192),
    ],
)
def test_bytes_of_a_token_on_a_rank(name: str, ranks: int, expected: int) -> None:
    assert footprint_of(BY_NAME[name].config).on_rank(ranks).full_bytes_per_token == expected


def test_a_states_groups_are_at_least_one_on_a_rank() -> None:
    state = RecurrentState(128, 64 * 128, 3, head_channels=64, num_groups=1, group_channels=256)
    rank = state.on_rank(4)
    assert (rank.num_heads, rank.num_groups) == (32, 1)
    assert rank.num_bytes("bf16") == 32 * 64 * 128 * 2 + 3 * (32 * 64 + 256) * 2


def test_cross_attention_costs_what_the_encoder_gives() -> None:
    config = BY_NAME["T5-base"].config
    assert footprint_of(config, encoder_tokens=512).constant_bytes == 512 * 2 * 12 * 12 * 64 * 2
    assert footprint_of(BY_NAME["Whisper-large-v3"].config, encoder_tokens=0).constant_bytes == 0


def test_quantised_codecs_hold_their_scales() -> None:
    assert [head_value_bytes(codec, 64) for codec in CODECS] == [256, 128, 66, 34]
    assert [head_key_bytes(codec, 64) for codec in CODECS] == [256, 128, 66, 42]
    assert [head_key_bytes("int4", dim) for dim in (0, 16, 48, 80)] == [0, 14, 34, 54]
    config = transformer("llama", 2048, 4, 32, 8)  # head width 64
    bf16, int8, int4 = (footprint_of(config, codec).allocated_bytes(4096) for codec in ("bf16", "int8", "int4"))
    assert int8 / bf16 == 66 / 128 < 0.53
    assert int4 / bf16 == 76 / 256 < 0.30


def test_kept_layers_stay_in_bf16() -> None:
    model = ModelSpec("llama", 100, 64, 128, 4096, (LayerSpec("full", 4, 2, 64, 64),) * 5)
    groups = layer_groups(model, CacheSpec("int4", keep_layers=(0, 1, -1)))
    assert [(group.layers, group.spec.k_codec, group.spec.v_codec) for group in groups] == [
        ((0, 1, 4), "bf16", "bf16"),
        ((2, 3), "int4", "int4"),
    ]
    assert [group.token_bytes for group in groups] == [3 * 2 * 256, 2 * 2 * 76]
    groups = layer_groups(model, CacheSpec(k="int8", v="f32", keep_layers=(2,)))
    assert [(group.layers, group.spec.k_codec, group.spec.v_codec) for group in groups] == [
        ((0, 1, 3, 4), "int8", "f32"),
        ((2,), "bf16", "f32"),
    ]
    for codec in ("f32", "bf16"):  # nothing to keep them out of
        assert len(layer_groups(model, CacheSpec(codec, keep_layers=(0,)))) == 1
    with pytest.raises(SpecError, match=r"no layer 5 to keep in bf16: the model has layers 0 to 4 \(or -5 to -1"):
        layer_groups(model, CacheSpec("int8", keep_layers=(5,)))


def test_an_index_key_and_a_latent_have_a_scale_each() -> None:
    int8 = footprint_of(BY_NAME["DeepSeek-V3.2"].config, "int8")
    assert int8.full_bytes_per_token == 61 * (576 + 2 + 128 + 2)


layer_specs = st.builds(
    lambda heads, share, dim, window: LayerSpec(
        "full" if window is None else "window", heads * share, heads, dim, dim, window
    ),
    st.integers(1, 8),
    st.integers(1, 4),
    st.sampled_from([16, 64, 80, 128]),
    st.none() | st.integers(1, 300),
)
models = st.lists(layer_specs, min_size=1, max_size=5).map(
    lambda layers: ModelSpec("llama", 100, 64, 128, 4096, tuple(layers))
)
tokens = st.integers(0, 3000)


@given(models, st.sampled_from(CODECS), tokens, tokens)
def test_bytes_never_shrink_with_length_and_are_never_negative(
    model: ModelSpec, codec: str, one: int, other: int
) -> None:
    footprint = Footprint(model, CacheSpec(codec))
    short, long = sorted((one, other))
    assert 0 <= footprint.sequence_bytes(short) <= footprint.sequence_bytes(long)
    assert 0 <= footprint.reserved_bytes(short) <= footprint.reserved_bytes(long)
    assert footprint.sequence_bytes(long) <= footprint.allocated_bytes(long) <= footprint.reserved_bytes(long)


@given(models, st.sampled_from(CODECS), tokens)
def test_what_a_sequence_holds_between_steps_is_within_what_is_planned(
    model: ModelSpec, codec: str, num_tokens: int
) -> None:
    held = allocated_bytes(model, CacheSpec(codec), num_tokens)
    assert (
        held <= Footprint(model, CacheSpec(codec)).allocated_bytes(num_tokens) <= held + _one_block_each(model, codec)
    )


def _one_block_each(model: ModelSpec, codec: str) -> int:
    return sum(group.block_bytes for group in layer_groups(model, CacheSpec(codec)) if group.window is not None)


@given(models, tokens)
def test_a_finer_codec_never_takes_more(model: ModelSpec, num_tokens: int) -> None:
    sizes = [Footprint(model, CacheSpec(codec)).sequence_bytes(num_tokens) for codec in CODECS]
    assert sizes == sorted(sizes, reverse=True)


@given(models, st.integers(300, 2000), st.integers(0, 500))
def test_beyond_its_windows_a_cache_is_linear_in_tokens(model: ModelSpec, num_tokens: int, more: int) -> None:
    footprint = Footprint(model, CacheSpec())
    grown = footprint.sequence_bytes(num_tokens + more) - footprint.sequence_bytes(num_tokens)
    assert grown == more * footprint.full_bytes_per_token


@given(models, st.integers(1, 4), tokens)
def test_a_cache_is_linear_in_layers(model: ModelSpec, times: int, num_tokens: int) -> None:
    many = ModelSpec("llama", 100, 64, 128, 4096, model.layers * times)
    one, all_together = Footprint(model, CacheSpec()), Footprint(many, CacheSpec())
    assert all_together.sequence_bytes(num_tokens) == times * one.sequence_bytes(num_tokens)
