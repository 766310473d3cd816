"""Models with latent attention: the recorded oracle's logits, the cache's bytes, and what isn't run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny.compare import TOLERANCE, row_errors
from tiny.deepseek import deepseek_model
from tiny.deepseek_gguf import write_deepseek_gguf
from tiny.latent_recorded import FILE, MODELS, PROMPT_TOKENS, ROWS, recorded_logits
from tiny.models import TinyModel
from tiny.tensors import digest, write_directory

from kvist.cache.kv_cache import KvCache
from kvist.checkpoint.catalog import open_checkpoint
from kvist.errors import SpecError, UnsupportedError
from kvist.model.decoder import Decoder, Part, load_decoder
from kvist.spec.cache import CacheSpec, bytes_per_token, pool_bytes
from kvist.spec.model import LayerSpec, ModelSpec


def loaded(model: TinyModel, path: Path, weights: str | None = None) -> Decoder:
    write_directory(model, path)
    with_files = open_checkpoint(path)
    decoder = load_decoder(with_files, weights=weights, threads=2)
    with_files.close()
    return decoder


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_oracles_logits(model: TinyModel, tmp_path: Path) -> None:
    assert digest(model) == recorded_logits(model)[0]
    decoder = loaded(model, tmp_path)
    cache = KvCache(decoder.spec, CacheSpec("f32"), num_tokens=PROMPT_TOKENS)
    cache.store.arena[:] = 0xFF
    sequence, rows, start, ids = cache.new_sequence(), [], 0, model.prompt(PROMPT_TOKENS)
    for size in (200, 1, 3, 75, 1):
        rows.append(decoder.forward([Part(sequence, ids[start : start + size], "all")]))
        start += size
    assert row_errors(np.concatenate(rows)[list(ROWS)], recorded_logits(model)[1]).max() < TOLERANCE
    decoder.close()


def test_recordings_stay_small() -> None:
    assert FILE.stat().st_size < 60_000


@pytest.mark.parametrize("codec", ["f32", "bf16"])
def test_a_latent_is_stored_once(codec: str) -> None:
    """DeepSeek-V2-Lite's shape: 576 numbers a layer and token, and the arena has room for nothing else."""
    layer = LayerSpec("mla", 16, 1, 576, 0)
    model = ModelSpec("deepseek_v2", 100, 64, 64, 1000, (layer,) * 27)
    assert bytes_per_token(model, CacheSpec(codec)) == 27 * 576 * {"f32": 4, "bf16": 2}[codec]
    cache = KvCache(model, CacheSpec(codec), num_tokens=100)
    assert cache.store.arena.nbytes == pool_bytes(model, CacheSpec(codec), 100, 256)
    assert cache.store.arena.nbytes == 7 * 16 * bytes_per_token(model, CacheSpec(codec))


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_latents_are_kept_in_floats(codec: str) -> None:
    model = ModelSpec("deepseek_v2", 100, 64, 64, 1000, (LayerSpec("mla", 16, 1, 576, 0),))
    with pytest.raises(SpecError, match=rf"latents.*{codec}.*f32 or bf16"):
        KvCache(model, CacheSpec(codec), num_tokens=100)


def test_quantised_weights_expand_latents_in_f16(tmp_path: Path) -> None:
    decoder = loaded(deepseek_model("deepseek_v2", 0), tmp_path, "q8")
    layers = decoder.weights.layers
    assert {layer.latent.keys.form for layer in layers if layer.latent} == {"f16"}
    cache = KvCache(decoder.spec, CacheSpec(), num_tokens=40)
    assert np.isfinite(decoder.forward([Part(cache.new_sequence(), [1, 2, 3], "all")])).all()
    decoder.close()


@pytest.mark.parametrize(("key", "value"), [("kv_lora_rank", 40), ("v_head_dim", 20), ("qk_rope_head_dim", 24)])
def test_widths_that_kernels_lack(key: str, value: int, tmp_path: Path) -> None:
    model = deepseek_model("deepseek_v2", 0)
    write_directory(TinyModel(model.name, {**model.config, key: value}, 1), tmp_path)
    with pytest.raises(UnsupportedError, match="multiple"):
        load_decoder(open_checkpoint(tmp_path))


def logits_of(decoder: Decoder, token_ids: list[int]) -> np.ndarray:
    cache = KvCache(decoder.spec, CacheSpec("f32"), num_tokens=64)
    logits = decoder.forward([Part(cache.new_sequence(), token_ids, "all")])
    decoder.close()
    return logits


@pytest.mark.parametrize(
    ("family", "number", "is_whole"),
    [
        ("deepseek_v2", 0, False),
        ("deepseek_v2", 1, True),
        ("deepseek_v2", 2, False),
        ("deepseek_v2", 5, False),
        ("deepseek_v3", 5, True),
    ],
)
def test_gguf_gives_the_directorys_bytes(family: str, number: int, is_whole: bool, tmp_path: Path) -> None:
    """Where files can say it: latents are normed with the others' epsilon, and both scales of a yarn are one number."""
    model = deepseek_model(family, number)
    ids = model.prompt(20)
    config = {**model.config, "rms_norm_eps": 1e-6}
    if family == "deepseek_v3":
        config["rope_interleave"] = True
    if "rope_scaling" in config:
        config["rope_scaling"] = {**config["rope_scaling"], "mscale": config["rope_scaling"]["mscale_all_dim"]}
    model = TinyModel(model.name, config, model.seed)
    expected = logits_of(loaded(model, tmp_path / "directory"), ids)
    file = open_checkpoint(write_deepseek_gguf(model, tmp_path / "model.gguf", is_whole=is_whole))
    assert logits_of(load_decoder(file, threads=1), ids).tobytes() == expected.tobytes()


def test_quantised_gguf_is_what_its_numbers_say(tmp_path: Path) -> None:
    """q8_0 in the file; f16 expands latents, within f16's rounding of the same numbers as f32."""
    model = deepseek_model("deepseek_v2", 1)
    ids = model.prompt(20)
    file = open_checkpoint(write_deepseek_gguf(model, tmp_path / "model.gguf", "q8_0", is_whole=True))
    found, wide = (logits_of(load_decoder(file, weights=weights, threads=1), ids) for weights in (None, "f32"))
    assert row_errors(found, wide).max() < 0.03
