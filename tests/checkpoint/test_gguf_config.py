"""GGUF keys to config.json keys: each architecture, each kind of rope, what is refused and in which words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.checkpoint.files import TensorInfo
from kvist.checkpoint.gguf_config import ARCHITECTURES, config_from_gguf, generation_config_from_gguf
from kvist.checkpoint.gguf_keys import shortest_float
from kvist.errors import CheckpointError, UnsupportedError
from kvist.model.families import FAMILIES


def tensors(*names: str, rows: int = 100) -> dict[str, TensorInfo]:
    shapes = {name: (rows, 64) if name == "token_embd.weight" else (64,) for name in (*names, "token_embd.weight")}
    return {name: TensorInfo(name, "f32", shape, 4 * int(np.prod(shape))) for name, shape in shapes.items()}


def rotary(architecture: str, **more: object) -> dict[str, object]:
    """Keys of a llama-like model; ``more`` with ``__`` for a dot, None to leave one out."""
    keys: dict[str, object] = {
        "embedding_length": 64,
        "feed_forward_length": 192,
        "block_count": 3,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "context_length": 2048,
        "attention.layer_norm_rms_epsilon": float(np.float32(1e-6)),
        "rope.freq_base": 1000000.0,
    }
    keys.update({key.replace("__", "."): value for key, value in more.items()})
    found = {f"{architecture}.{key}": value for key, value in keys.items() if value is not None}
    return {"general.architecture": architecture, **found}


COMMON = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "vocab_size": 100,
    "tie_word_embeddings": True,
}


def test_llama() -> None:
    expected = {**COMMON, "model_type": "llama", "attention_bias": False, "mlp_bias": False}
    assert config_from_gguf(rotary("llama"), tensors()) == expected


def test_llama_with_biases_an_output_and_a_wide_head() -> None:
    names = ("blk.0.attn_q.bias", "blk.0.ffn_up.bias", "output.weight")
    metadata = rotary("llama", attention__key_length=16, attention__value_length=16, rope__dimension_count=16)
    config = config_from_gguf(metadata, tensors(*names))
    changed = {"head_dim": 16, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
    assert config == {**COMMON, "model_type": "llama", **changed}


def test_llama_with_a_window_is_mistral() -> None:
    config = config_from_gguf(rotary("llama", attention__sliding_window=4096), tensors())
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 4096)
    assert config_from_gguf(rotary("llama", attention__sliding_window=0), tensors())["model_type"] == "llama"


def test_llama_with_experts_is_mixtral() -> None:
    config = config_from_gguf(rotary("llama", expert_count=8, expert_used_count=2), tensors())
    assert config["model_type"] == "mixtral"
    assert (config["num_local_experts"], config["num_experts_per_tok"]) == (8, 2)


def test_qwen2_has_no_word_for_its_biases() -> None:
    config = config_from_gguf(rotary("qwen2"), tensors("blk.0.attn_q.bias", "output.weight"))
    assert config == {**COMMON, "model_type": "qwen2", "tie_word_embeddings": False}


def test_qwen3() -> None:
    config = config_from_gguf(rotary("qwen3", attention__key_length=128, attention__value_length=128), tensors())
    assert config == {**COMMON, "model_type": "qwen3", "head_dim": 128, "attention_bias": False}


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_a_window_of_qwen_holds_in_every_layer(architecture) -> None:
    config = config_from_gguf(rotary(architecture, attention__sliding_window=512), tensors())
    assert (config["sliding_window"], config["use_sliding_window"], config["max_window_layers"]) == (512, True, 0)


GPT2 = {
    "general.architecture": "gpt2",
    "gpt2.embedding_length": 64,
    "gpt2.feed_forward_length": 256,
    "gpt2.block_count": 3,
    "gpt2.attention.head_count": 4,
    "gpt2.context_length": 1024,
    "gpt2.attention.layer_norm_epsilon": float(np.float32(1e-5)),
}


def test_gpt2() -> None:
    assert config_from_gguf(GPT2, tensors()) == {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_inner": 256,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 1024,
        "n_ctx": 1024,
        "layer_norm_epsilon": 1e-05,
        "activation_function": "gelu_new",
        "vocab_size": 100,
        "tie_word_embeddings": True,
    }


def test_keys_that_may_be_missing() -> None:
    metadata = rotary("llama", attention__head_count_kv=None, rope__freq_base=None)
    config = config_from_gguf(metadata, tensors())
    assert (config["num_key_value_heads"], config["rope_theta"]) == (8, 10000.0)


def test_a_number_per_layer_is_read_where_all_agree() -> None:
    metadata = rotary("llama", attention__head_count_kv=np.array([4, 4, 4], dtype="<u4"))
    assert config_from_gguf(metadata, tensors())["num_key_value_heads"] == 4
    for numbers in ([4, 2, 4], []):
        metadata = rotary("llama", attention__head_count_kv=np.array(numbers, dtype="<u4"))
        with pytest.raises(UnsupportedError, match=r"attention\.head_count_kv differs from layer to layer"):
            config_from_gguf(metadata, tensors())


def test_rope_of_a_part_of_the_head() -> None:
    config = config_from_gguf(rotary("llama", rope__dimension_count=2), tensors())
    assert config["partial_rotary_factor"] == 0.25
    for count in (10, 3):
        with pytest.raises(CheckpointError, match=f"rotates {count} of 8 dimensions"):
            config_from_gguf(rotary("llama", rope__dimension_count=count), tensors())


ROPE = {
    "none": ({"type": "none"}, None),
    "none with a factor": ({"type": "none", "factor": 2.0}, None),
    "linear": ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "yarn": (
        {"type": "yarn", "factor": 4.0, "original_context_length": 32768},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    ),
    "yarn with all its numbers": (
        {"type": "yarn", "factor": 2.5, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0, "attn_factor": 1.0},
        {"rope_type": "yarn", "factor": 2.5, "beta_fast": 16.0, "beta_slow": 2.0},
    ),
}


@pytest.mark.parametrize("kind", ROPE)
def test_rope_scaling(kind) -> None:
    keys, expected = ROPE[kind]
    metadata = rotary("qwen2", **{f"rope.scaling.{key}": value for key, value in keys.items()})
    assert config_from_gguf(metadata, tensors())["rope_scaling"] == expected


def test_rope_scaling_as_the_files_of_2023_say_it() -> None:
    config = config_from_gguf(rotary("llama", rope__scale_linear=2.0), tensors())
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert config_from_gguf(rotary("llama", rope__scale_linear=1.0), tensors())["rope_scaling"] is None


def test_rope_factors_of_llama_3() -> None:
    factors = [1.0, 1.0, 4.0, 8.0]
    config = config_from_gguf(rotary("llama"), tensors(), rope_factors=factors)
    assert config["rope_scaling"] == {"rope_type": "factors", "factors": factors}
    for wrong in ([1.0], [1.0, 1.0, 0.0, 8.0], [1.0, float("nan"), 1.0, 1.0], [1.0, 1.0, 1.0, float("inf")]):
        with pytest.raises(CheckpointError, match="must hold 4 positive numbers"):
            config_from_gguf(rotary("llama"), tensors(), rope_factors=wrong)


REFUSED = {
    "an unknown architecture": (
        {"general.architecture": "wizard\n"},
        r'its architecture "wizard\\n" isn\'t supported; supported: llama, qwen2, qwen3, ',
    ),
    "longrope": (
        rotary("llama", rope__scaling__type="longrope"),
        'scaling "longrope" isn\'t supported; supported: none',
    ),
    "attention factor": (
        rotary("llama", rope__scaling__type="yarn", rope__scaling__attn_factor=1.5, rope__scaling__factor=2.0),
        "rope.scaling.attn_factor isn't 1",
    ),
    "unlike widths": (rotary("llama", attention__value_length=16), "keys are 8 wide and its values 16"),
    "experts of a dense kind": (rotary("qwen2", expert_count=4), "a qwen2 with 4 experts isn't supported"),
    "an adapter": ({"general.type": "adapter", "general.architecture": "llama"}, 'general.type is "adapter"'),
}
WRONG = {
    "no architecture": ({}, 'lacks the key "general.architecture"'),
    "an architecture that is a number": ({"general.architecture": 3}, "general.architecture must be a text"),
    "no width": (rotary("llama", embedding_length=None), 'lacks the key "llama.embedding_length"'),
    "no layers": (rotary("llama", block_count=0), "llama.block_count must be a whole number from 1"),
    "layers below none": (rotary("llama", block_count=-1), "llama.block_count must be a whole number from 1"),
    "layers without end": (rotary("llama", block_count=1 << 32), "llama.block_count must be a whole number"),
    "a width as a text": (rotary("llama", embedding_length="64\n"), r'must be a whole number .*, got "64\\n"'),
    "a width that is true": (rotary("llama", embedding_length=True), 'got "True"'),
    "a width with a fraction": (rotary("llama", embedding_length=64.0), 'got "64.0"'),
    "a norm of nothing": (rotary("llama", attention__layer_norm_rms_epsilon=0.0), "must be a positive number"),
    "a norm of NaN": (rotary("llama", attention__layer_norm_rms_epsilon=float("nan")), "must be a positive number"),
    "an infinite base": (rotary("llama", rope__freq_base=float("inf")), "must be a positive number"),
    "a base as a list": (rotary("llama", rope__freq_base=np.ones(2)), "must be a number"),
    "heads that don't share the width": (
        rotary("llama", attention__head_count=5),
        "64 isn't a multiple of its 5 heads",
    ),
    "linear scaling by nothing": (
        rotary("llama", rope__scaling__type="linear"),
        'lacks the key "llama.rope.scaling.factor"',
    ),
    "experts that nobody uses": (rotary("llama", expert_count=4), 'lacks the key "llama.expert_used_count"'),
    "more tokens than rows": (
        {**rotary("llama"), "tokenizer.ggml.tokens": ["x"] * 101},
        r"shape \(100, 64\) and the vocabulary 101 tokens",
    ),
    "a token that is a text": (
        {**rotary("llama"), "tokenizer.ggml.bos_token_id": "<s>"},
        "tokenizer.ggml.bos_token_id must be",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_sound_and_unsupported(case) -> None:
    metadata, message = REFUSED[case]
    with pytest.raises(UnsupportedError, match=message):
        config_from_gguf(metadata, tensors())


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong(case) -> None:
    metadata, message = WRONG[case]
    with pytest.raises(CheckpointError, match=message) as caught:
        config_from_gguf(metadata, tensors())
    assert not isinstance(caught.value, UnsupportedError)


@pytest.mark.parametrize("none", [-1, 2**32 - 1, 100])
def test_a_token_out_of_range_is_none(none: int) -> None:
    ids = {f"tokenizer.ggml.{role}_token_id": none for role in ("bos", "eos", "eot", "padding")}
    config = config_from_gguf({**rotary("llama"), **ids, "tokenizer.ggml.tokens": ["x"] * 100}, tensors())
    assert not [key for key in config if key.endswith("token_id")]


def test_a_rope_factor_that_is_no_number() -> None:
    with pytest.raises(CheckpointError, match="must hold 4 positive numbers, got nan as number 2"):
        config_from_gguf(rotary("llama"), tensors(), rope_factors=[1.0, 1.0, float("nan"), 1.0])


def test_factors_and_a_scaling_at_once() -> None:
    metadata = rotary("llama", rope__scaling__type="linear", rope__scaling__factor=2.0)
    with pytest.raises(UnsupportedError, match="both rope factors and rope scaling"):
        config_from_gguf(metadata, tensors(), rope_factors=[1.0] * 4)


def test_the_vocabulary_without_an_embedding() -> None:
    assert config_from_gguf({**rotary("llama", vocab_size=7)}, {})["vocab_size"] == 7
    assert config_from_gguf({**rotary("llama"), "tokenizer.ggml.tokens": ["a", "b"]}, {})["vocab_size"] == 2
    with pytest.raises(CheckpointError, match="neither a vocabulary nor an embedding"):
        config_from_gguf(rotary("llama"), {})


def test_rows_beyond_the_vocabulary_count_as_tokens() -> None:
    metadata = {**rotary("llama", vocab_size=98), "tokenizer.ggml.tokens": ["x"] * 98}
    assert config_from_gguf(metadata, tensors())["vocab_size"] == 100


def test_special_tokens_and_sampling_settings() -> None:
    metadata = {
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.eom_token_id": 2,
        "tokenizer.ggml.padding_token_id": 1,
        "general.sampling.temp": float(np.float32(0.6)),
        "general.sampling.top_k": 20,
        "general.sampling.top_p": float(np.float32(0.95)),
        "general.sampling.min_p": 0.0,
        "general.sampling.penalty_repeat": float(np.float32(1.1)),
    }
    assert generation_config_from_gguf(metadata) == {
        "bos_token_id": 0,
        "eos_token_id": [2, 7],
        "pad_token_id": 1,
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
        "repetition_penalty": 1.1,
    }
    config = config_from_gguf({**rotary("llama"), **metadata}, tensors())
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (0, 2, 1)
    assert generation_config_from_gguf({"general.sampling.temp": 0.0}) == {"do_sample": False, "temperature": 0.0}
    assert generation_config_from_gguf({}) == {}


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_shortest_decimal_means_the_same_32_bits(value) -> None:
    short = shortest_float(value)
    assert np.float32(short) == np.float32(value)
    assert len(repr(short)) <= len(repr(value))


def test_numbers_of_64_bits_stay_as_they_are() -> None:
    assert shortest_float(1e-5) == 1e-5
    assert shortest_float(0.1 + 0.2) == 0.1 + 0.2
    assert shortest_float(1e300) == 1e300


VALUES = st.one_of(
    st.integers(-(2**63), 2**64),
    st.floats(),
    st.booleans(),
    st.text(max_size=3),
    st.lists(st.integers(0, 9), max_size=3).map(np.array),
)
KEYS = sorted(
    {key.split(".", 1)[1] for key in rotary("llama")} | {"rope.scaling.type", "expert_count", "attention.key_length"}
)


@given(
    architecture=st.sampled_from(sorted(ARCHITECTURES)),
    changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
    special=st.dictionaries(st.sampled_from(["eos_token_id", "tokens", "padding_token_id"]), VALUES, max_size=2),
)
def test_any_value_gives_a_config_or_one_line(architecture, changes, special) -> None:
    metadata = {
        **rotary(architecture),
        **{f"{architecture}.{key}": value for key, value in changes.items()},
        **{f"tokenizer.ggml.{key}": value for key, value in special.items()},
    }
    refusals: list[CheckpointError] = []
    try:
        kind = config_from_gguf(metadata, tensors())["model_type"]
        assert kind in FAMILIES
    except CheckpointError as error:
        refusals.append(error)
    assert all(str(error).isprintable() for error in refusals)
