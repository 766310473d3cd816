"""What each key of a config does, as the reference implementation has it, and what a bad config is answered."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import PUBLISHED, Facts, transformer

from kvist.errors import SpecError
from kvist.spec.config import model_spec_from_config
from kvist.spec.model import ModelSpec
from kvist.spec.model_types import MODEL_TYPES, TEXT_PARTS, class_defaults
from kvist.spec.weight_rules import WEIGHT_RULES


def spec(model_type: str, **keys: Any) -> ModelSpec:
    return model_spec_from_config(transformer(model_type, 256, 8, 4, 2) | keys)


def kinds(model: ModelSpec) -> str:
    """One letter a layer."""
    letters = {"full": "f", "window": "w", "chunked": "c", "mla": "l", "recurrent": "r", "none": "n"}
    return "".join(letters[layer.kind] for layer in model.layers)


@pytest.mark.parametrize("facts", [facts for facts in PUBLISHED if facts.parameters], ids=lambda facts: facts.name)
def test_parameters_of_published_models(facts: Facts) -> None:
    parameters = model_spec_from_config(facts.config).parameters
    assert parameters is not None
    assert parameters.total == facts.parameters


def test_active_parameters_of_a_mixture() -> None:
    found = next(facts for facts in PUBLISHED if facts.name == "Qwen3-30B-A3B")
    parameters = model_spec_from_config(found.config).parameters
    assert parameters is not None
    assert parameters.total - parameters.active == 48 * (128 - 8) * 3 * 2048 * 768
    assert parameters.active == 3353032704


@pytest.mark.parametrize("key", ["vocab_size", "intermediate_size"])
def test_a_missing_size_makes_the_number_of_parameters_unknown_not_guessed(key: str) -> None:
    keys = {"vocab_size": 1000, "intermediate_size": 512}
    del keys[key]
    found = spec("llama", **keys)
    assert found.parameters is None
    assert found.missing == f"the config doesn't say {key}; without it the model's size is unknown"


def test_a_text_part_may_leave_everything_to_its_class() -> None:
    found = model_spec_from_config({"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}})
    assert (found.num_layers, found.width, found.vocab_size) == (32, 4096, 32064)
    assert "hidden_size 4096" in found.notes[0]


@pytest.mark.parametrize(
    ("model_type", "keys", "expected"),
    [
        ("llama", {"sliding_window": 64}, "ffffffff"),  # Llama's code has no window
        ("mistral", {}, "wwwwwwww"),  # the class's own 4,096
        ("mistral", {"sliding_window": None}, "ffffffff"),
        ("mixtral", {}, "ffffffff"),
        ("qwen2", {"sliding_window": 64, "max_window_layers": 5}, "ffffffff"),
        ("qwen2", {"sliding_window": 64, "max_window_layers": 5, "use_sliding_window": True}, "fffffwww"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": None}, "ffffffff"),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 64}, "wwwwwwww"),
        ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 5}, "wfwfwfff"),
        ("gemma2", {}, "wfwfwfwf"),
        ("gemma3_text", {}, "wwwwwfww"),
        ("gemma3_text", {"sliding_window_pattern": 4}, "wwwfwwwf"),
        ("gemma3_text", {"layer_types": ["full_attention"] * 8}, "ffffffff"),
        ("cohere2", {"sliding_window_pattern": 2}, "wfwfwfwf"),
        ("exaone4", {"sliding_window_pattern": "LLLG"}, "wwwfwwwf"),
        ("exaone4", {"sliding_window": None}, "ffffffff"),
        ("olmo3", {}, "wwwfwwwf"),
        ("cwm", {}, "fwwwfwww"),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 64}, "fffwfffw"),
        ("gpt_oss", {}, "wfwfwfwf"),
        ("gpt_neo", {}, "fwfwfwfw"),
        ("llama4_text", {}, "cccfcccf"),
        ("llama4_text", {"no_rope_layers": [1, 0] * 4}, "cfcfcfcf"),
        ("llama4_text", {"no_rope_layers": []}, "cccfcccf"),
        ("llama4_text", {"attention_chunk_size": None}, "ffffffff"),
        ("mimo_v2_flash", {}, "fwwwwfww"),
        ("qwen3_next", {}, "rrrfrrrf"),
        ("qwen3_next", {"full_attention_interval": 2}, "rfrfrfrf"),
        ("jamba", {"attn_layer_period": 4, "attn_layer_offset": 1}, "rfrrrfrr"),
        ("bamba", {"attn_layer_indices": [2]}, "rrfrrrrr"),
        ("granitemoehybrid", {}, "rrrrrrrr"),
        ("nemotron_h", {"hybrid_override_pattern": "M-M*ME-*"}, "rnrfrnnf"),
        ("lfm2", {}, "ffffffff"),
        ("lfm2", {"full_attn_idxs": [0, 7]}, "frrrrrrf"),
        ("lfm2", {"layer_types": ["conv"] * 7 + ["full_attention"]}, "rrrrrrrf"),
        ("minimax", {}, "frfrfrfr"),
        ("recurrent_gemma", {}, "rrwrrwrr"),
        ("kimi_linear", {}, "rrrrlrrr"),
        ("zamba2", {"layers_block_type": ["mamba", "hybrid"] * 4}, "rfrfrfrf"),
        ("falcon_h1", {}, "ffffffff"),
        ("mamba2", {"num_heads": 8, "head_dim": 64}, "rrrrrrrr"),
        ("mllama_text_model", {"cross_attention_layers": [3]}, "fffnffff"),
    ],
)
def test_the_kind_of_each_layer(model_type: str, keys: dict[str, Any], expected: str) -> None:
    assert kinds(spec(model_type, **keys)) == expected


@pytest.mark.parametrize(
    ("model_type", "keys", "heads", "kv_heads", "k_dim"),
    [
        ("llama", {}, 4, 2, 64),
        ("llama", {"head_dim": 80}, 4, 2, 80),
        ("llama", {"head_dim": None, "num_key_value_heads": None}, 4, 4, 64),
        ("qwen3", {}, 4, 2, 128),  # the class's own width
        ("qwen3", {"head_dim": 32}, 4, 2, 32),
        ("gemma2", {}, 4, 2, 256),
        ("cohere2", {"head_dim": 80}, 4, 2, 64),
        ("falcon", {"num_kv_heads": 2}, 4, 1, 64),
        ("falcon", {"num_kv_heads": 2, "new_decoder_architecture": True}, 4, 2, 64),
        ("falcon", {"multi_query": False, "num_key_value_heads": None}, 4, 4, 64),
        ("gpt_bigcode", {}, 4, 1, 64),
        ("gpt_bigcode", {"multi_query": False}, 4, 4, 64),
        ("gpt_neox", {}, 4, 4, 64),
        ("dbrx", {"attn_config": {"kv_n_heads": 2}}, 4, 2, 64),
        ("jetmoe", {"kv_channels": 96, "num_experts_per_tok": 2}, 4, 2, 96),
        ("gemma4_text", {"layer_types": ["full_attention"] * 8}, 4, 2, 512),
        ("gemma4_text", {"layer_types": ["full_attention"] * 8, "num_global_key_value_heads": 1}, 4, 2, 512),
        (
            "gemma4_text",
            {"layer_types": ["full_attention"] * 8, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
            4,
            1,
            512,
        ),
        ("zamba2", {"layers_block_type": ["hybrid"] * 8}, 4, 2, 128),
    ],
)
def test_heads_and_their_width(model_type: str, keys: dict[str, Any], heads: int, kv_heads: int, k_dim: int) -> None:
    layer = spec(model_type, **keys).layers[0]
    assert (layer.num_heads, layer.num_kv_heads, layer.k_dim) == (heads, kv_heads, k_dim)


def test_keys_may_be_wider_than_values() -> None:
    layers = spec("mimo_v2_flash", head_dim=192, v_head_dim=128).layers
    assert {(layer.kind, layer.num_kv_heads, layer.k_dim, layer.v_dim) for layer in layers} == {
        ("full", 2, 192, 128),
        ("window", 4, 192, 128),
    }


def test_the_last_layers_may_share_a_cache() -> None:
    layers = spec("gemma3n_text", num_kv_shared_layers=3).layers
    assert [layer.shares_cache for layer in layers] == [False] * 5 + [True] * 3
    assert sum(layer.has_tokens for layer in layers) == 5


def test_a_bidirectional_window_is_the_half_behind() -> None:
    assert spec("gemma3_text", sliding_window=512, use_bidirectional_attention=True).layers[0].window == 257


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [16] * 8),
        ({"indexer_types": ["full", "shared"] * 4}, [16, 0] * 4),
        ({"index_topk_pattern": "FSSSFSSS"}, [16, 0, 0, 0] * 2),
        ({"index_topk_freq": 4}, [16, 16, 0, 0, 0, 16, 0, 0]),
    ],
)
def test_layers_that_reuse_an_index_keep_no_key(keys: dict[str, Any], expected: list[int]) -> None:
    assert [layer.index_dim for layer in spec("glm_moe_dsa", index_head_dim=16, **keys).layers] == expected


def test_tied_output() -> None:
    assert spec("gpt2").is_tied
    assert not spec("llama").is_tied
    assert spec("llama", tie_word_embeddings=True).is_tied
    outer = {"model_type": "llava", "tie_word_embeddings": True, "text_config": transformer("llama", 256, 8, 4, 2)}
    assert model_spec_from_config(outer).is_tied


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "bf16"),
        ({"torch_dtype": "float16"}, "f16"),
        ({"dtype": "torch.float32"}, "f32"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}, "int4"),
    ],
)
def test_the_type_of_the_weights(keys: dict[str, Any], expected: str) -> None:
    assert spec("llama", **keys).weight_type == expected


def test_an_unknown_type_is_assumed_uniform_and_says_so() -> None:
    found = spec("brandnew", sliding_window=64, max_position_embeddings=512)
    assert kinds(found) == "ffffffff"
    assert found.notes[0].startswith('model_type "brandnew" isn\'t known: assumed attention of one width')
    assert "sliding_window 64 not used" in found.notes[0]
    assert found.parameters is None
    assert spec("brandnew", multi_query=True, max_position_embeddings=512).layers[0].num_kv_heads == 2
    one = {"num_key_value_heads": None, "multi_query": True, "max_position_embeddings": 512}
    keys = {key: value for key, value in (transformer("brandnew", 256, 8, 4, None) | one).items() if value is not None}
    assert model_spec_from_config(keys).layers[0].num_kv_heads == 1
    latent = spec("brandnew", kv_lora_rank=32, qk_rope_head_dim=8, max_position_embeddings=512)
    assert {(layer.kind, layer.k_dim) for layer in latent.layers} == {("mla", 40)}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "not a model's config: no model_type and no hidden_size in it"),
        ({"model_type": "llama"}, "the config doesn't say num_hidden_layers"),
        ({"model_type": "llama", "num_hidden_layers": 2}, "the config doesn't say num_attention_heads"),
        (transformer("llama", 256, 8, 4, 3), "4 query heads can't share 3 KV heads evenly"),
        (transformer("llama", 256, 8, 4, 2, head_dim=-1), "head_dim in the config must be between 1 and"),
        (transformer("llama", 256, 8, 4, 2, head_dim="64"), "head_dim in the config must be a whole number, got '64'"),
        (transformer("llama", 256, 8, 4, 2, head_dim=1.5), "must be a whole number, got 1.5"),
        (transformer("llama", 256, 8, 4, 2, head_dim=float("inf")), "must be a whole number, got inf"),
        (transformer("llama", 256, 8, 4, 2, head_dim=True), "must be a whole number, got True"),
        (transformer("llama", 256, 8, 4, 2, tie_word_embeddings="yes"), "must be true or false, got 'yes'"),
        (transformer("llama", 256, 8, 4, 2, num_hidden_layers=10**30), "must be between 1 and"),
        (transformer("llama", 256, 10**9, 4, 2), "num_hidden_layers in the config must be at most 10000"),
        ({"model_type": ["llama"]}, "model_type in the config must be a string"),
        (
            transformer("gemma2", 256, 8, 4, 2, layer_types="full"),
            "layer_types in the config must be a list of strings",
        ),
        (
            transformer("gemma2", 256, 8, 4, 2, layer_types=["full_attention"]),
            "names 1 layers, the number of layers is 8",
        ),
        (transformer("gemma2", 256, 1, 4, 2, layer_types=["magic"]), 'has the kind "magic", which can\'t be priced'),
        (transformer("gemma2", 256, 8, 4, 2, sliding_window=0), "sliding_window in the config must be between 1"),
        (
            transformer("nemotron_h", 256, 3, 4, 2, hybrid_override_pattern="MX*"),
            'has the letter "X"; known: M \\* - E',
        ),
        (transformer("brandnew", 256, 8, 4, 2, mamba_d_state=16), "its mamba_d_state means a kind of cache"),
        (transformer("llama", 256, 8, 4, 2, layer_types=["linear_attention"] * 8), ""),
        (
            transformer("brandnew", 256, 1, 4, 2, layer_types=["linear_attention"]),
            "how large their state is isn't known",
        ),
        (
            transformer("kimi_linear", 256, 2, 4, 2, linear_attn_config=[1]),
            "linear_attn_config in the config must be an object",
        ),
    ],
)
def test_a_bad_config_is_answered_in_one_line(config: dict[str, Any], message: str) -> None:
    if not message:
        assert kinds(model_spec_from_config(config)) == "f" * 8  # Llama's code doesn't look at the list
        return
    with pytest.raises(SpecError, match=message) as caught:
        model_spec_from_config(config)
    assert "\n" not in str(caught.value)


values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)
keys = st.sampled_from(sorted({key for table in class_defaults().values() for key in table} | {"layer_types"}))


@given(st.sampled_from(sorted(MODEL_TYPES)), st.dictionaries(keys, values, max_size=4))
def test_nothing_but_a_spec_error_comes_of_a_strange_config(model_type: str, changes: dict[str, Any]) -> None:
    try:
        found = model_spec_from_config(transformer(model_type, 64, 4, 4, 2) | changes)
    except SpecError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is sound
    else:
        assert found.num_layers >= 1


def test_the_tables_know_each_other() -> None:
    assert set(WEIGHT_RULES) <= set(MODEL_TYPES)
    assert set(class_defaults()) <= set(MODEL_TYPES)
    assert set(TEXT_PARTS.values()) <= set(MODEL_TYPES)
    assert not set(TEXT_PARTS) & set(MODEL_TYPES)
    assert Counter(len(table) > 0 for table in class_defaults().values()) == {True: len(class_defaults())}
