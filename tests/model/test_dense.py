"""The dense families: logits as the oracle's, from a directory and from GGUF; the cache changes no byte of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from proof.ground import differing, logits_in
from tiny.compare import TOLERANCE, row_errors
from tiny.dense import DENSE, dense_model
from tiny.gguf_dense import write_dense_gguf
from tiny.models import TinyModel
from tiny.recorded_dense import (
    PROMPT_TOKENS,
    ROTATIONS,
    ROWS,
    recorded_logits,
    recorded_models,
    recorded_rotation,
)
from tiny.tensors import digest, write_directory

from kvist.cache.kv_cache import KvCache
from kvist.checkpoint.catalog import open_checkpoint
from kvist.errors import UnsupportedError
from kvist.model.decoder import Decoder, load_decoder
from kvist.model.families import FAMILIES, family_of
from kvist.model.rope import attention_factor, frequencies, rope_from_config
from kvist.spec.cache import CacheSpec

MODELS = recorded_models()
F32 = CacheSpec(codec="f32")
CHUNKS = ([1, 3, 16, 17, 5], [40])


def load(path: Path, threads: int = 2) -> Decoder:
    checkpoint = open_checkpoint(path)
    decoder = load_decoder(checkpoint, threads=threads)
    checkpoint.close()
    return decoder


def new_cache(decoder: Decoder, spec: CacheSpec = F32) -> KvCache:
    cache = KvCache(decoder.spec, spec, num_tokens=400)
    cache.store.arena[:] = 0xFF
    return cache


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.family)
def model(request) -> TinyModel:
    return request.param


@pytest.fixture(scope="module")
def decoder(model: TinyModel, tmp_path_factory: pytest.TempPathFactory):
    decoder = load(write_directory(model, tmp_path_factory.mktemp(model.name)))
    yield decoder
    decoder.close()


@pytest.fixture(scope="module")
def logits(model: TinyModel, decoder: Decoder):
    return logits_in(decoder, new_cache(decoder), model.prompt(PROMPT_TOKENS), [decoder.step_tokens])


def test_logits_are_the_oracles(model: TinyModel, logits) -> None:
    found, expected = recorded_logits(model)
    assert found == digest(model)
    assert row_errors(logits[list(ROWS)], expected).max() < TOLERANCE


def test_chunks_change_no_byte(model: TinyModel, decoder: Decoder, logits) -> None:
    for chunks in CHUNKS:
        again = logits_in(decoder, new_cache(decoder), model.prompt(PROMPT_TOKENS), chunks)
        assert differing(again, logits) == []


def test_threads_change_no_byte(model: TinyModel, logits, tmp_path: Path) -> None:
    decoder = load(write_directory(model, tmp_path), threads=3)
    again = logits_in(decoder, new_cache(decoder), model.prompt(PROMPT_TOKENS), [100, 1])
    decoder.close()
    assert differing(again, logits) == []


def test_capped_scores_of_integer_keys_change_no_byte(tmp_path: Path) -> None:
    model, spec = dense_model("gemma2", 0), CacheSpec(codec="int8")
    decoder = load(write_directory(model, tmp_path))
    ids = model.prompt(PROMPT_TOKENS)
    whole = logits_in(decoder, new_cache(decoder, spec), ids, [decoder.step_tokens])
    assert differing(logits_in(decoder, new_cache(decoder, spec), ids, CHUNKS[0]), whole) == []
    assert row_errors(whole[list(ROWS)], recorded_logits(model)[1]).max() < 0.2
    decoder.close()


AS_GGUF_SAYS = {
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {"query_pre_attn_scalar": 16, "tie_word_embeddings": True, "final_logit_softcapping": 3.0},
    "gemma3_text": {"query_pre_attn_scalar": 16},
    "phi": {"hidden_act": "gelu_new"},
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 4, "use_sliding_window": False},
}
"""What llama.cpp takes as given, so that a file doesn't say it."""


def in_gguf() -> list[tuple[str, int]]:
    """Models 0 and 1 of each family, but gemma2's without a cap, which its file can't say."""
    found = [(family, number) for family in DENSE for number in (0, 1)]
    return [
        (family, number)
        for family, number in found
        if family != "gemma2" or dense_model(family, number).config["attn_logit_softcapping"] is not None
    ]


def test_every_family_has_a_model_that_gguf_can_say() -> None:
    assert {family for family, _ in in_gguf()} == set(DENSE)


@pytest.mark.parametrize(("family", "number"), in_gguf())
def test_gguf_is_the_same_model(family: str, number: int, tmp_path: Path) -> None:
    model = dense_model(family, number)
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}} if number and family != "phi3" else {}
    if "partial_rotary_factor" in model.config.get("rope_parameters", {}) and plain:
        plain["rope_parameters"]["partial_rotary_factor"] = model.config["rope_parameters"]["partial_rotary_factor"]
    if family == "gemma3_text":
        plain = {"rope_parameters": ..., "rope_theta": 5_000.0, "rope_local_base_freq": 300.0}
    changes = plain | AS_GGUF_SAYS.get(family, {})
    if number and "query_pre_attn_scalar" in changes:
        changes["query_pre_attn_scalar"] = 32
    config = {key: value for key, value in {**model.config, **changes}.items() if value is not ...}
    model = replace(model, config=config)
    ids = model.prompt(40)
    found = []
    for path in (write_directory(model, tmp_path / "directory"), write_dense_gguf(model, tmp_path / "model.gguf")):
        decoder = load(path)
        found.append(logits_in(decoder, new_cache(decoder), ids, [40]))
        decoder.close()
    assert row_errors(found[1], found[0]).max() < 1e-6


@pytest.mark.parametrize("name", ROTATIONS)
def test_rotations_are_the_oracles(name: str) -> None:
    rope = rope_from_config({**ROTATIONS[name], "max_position_embeddings": 640}, 32)
    expected, factor = recorded_rotation(name)
    assert np.allclose(frequencies(rope), expected, rtol=2e-6, atol=0)
    assert attention_factor(rope) == pytest.approx(factor, rel=1e-6)


def test_dynamic_scaling_takes_the_context_that_it_was_stretched_to() -> None:
    """Within the trained context nothing changes; for a context of four times that, all pairs turn slower."""
    config = {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 640}
    plain = frequencies(rope_from_config({"max_position_embeddings": 640}, 32))
    assert np.array_equal(frequencies(rope_from_config(config, 32)), plain)
    config["original_max_position_embeddings"] = 160
    base = 10_000.0 * (4.0 * 4 - 3) ** (32 / 30)
    expected = base ** (-np.arange(0, 32, 2) / 32)
    assert np.allclose(frequencies(rope_from_config(config, 32)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("family", "settings", "said"),
    [
        ("falcon", {"alibi": True}, "a falcon with alibi positions isn't supported"),
        ("olmo", {"clip_qkv": 8.0}, "an olmo with clip_qkv 8.0 isn't supported"),
        ("phi", {"qk_layernorm": True}, "a phi with qk_layernorm isn't supported"),
        ("gemma2", {"use_bidirectional_attention": True}, "a gemma whose attention looks ahead isn't supported"),
        ("starcoder2", {"hidden_act": "relu"}, 'activation "relu" isn\'t supported; supported: silu'),
        ("llama", {"rope_scaling": {"type": "xpos"}}, 'rope scaling "xpos" isn\'t supported; supported: default'),
    ],
)
def test_what_is_not_supported_is_said_in_a_line(family: str, settings: dict[str, object], said: str) -> None:
    config = {"model_type": family, "hidden_size": 64, "max_position_embeddings": 64, **settings}
    with pytest.raises(UnsupportedError) as caught:
        family_of(config).switches(config, 16)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_family_is_tested() -> None:
    assert set(FAMILIES) >= set(DENSE)
