"""Sound weights beside a config that lies about them: one line, and no memory for sizes that only the config has."""

from __future__ import annotations

import json
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny.deepseek import deepseek_model
from tiny.dense import dense_model
from tiny.experts import expert_model
from tiny.gguf_file import write_gguf
from tiny.models import TinyModel, tiny_model
from tiny.tensors import write_directory

from kvist.checkpoint.catalog import open_checkpoint
from kvist.engine.files import open_model
from kvist.errors import CheckpointError, KvistError, SpecError, UnsupportedError
from kvist.model.convert import codes_to_q8, from_f32, to_f32
from kvist.model.decoder import Decoder, load_decoder

MILLIONS = 300_000_000
LLAMA = tiny_model("llama", 0)


def load(path: Path, weights: str | None = None) -> Decoder:
    checkpoint = open_checkpoint(path)
    try:
        return load_decoder(checkpoint, weights=weights, threads=2)
    finally:
        checkpoint.close()


def lying(model: TinyModel, path: Path, **changes: Any) -> Path:
    """The model's directory, with another config; of None a key is left out."""
    write_directory(model, path)
    config = {key: value for key, value in {**model.config, **changes}.items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))
    return path


SIZES = {
    "deepseek": (deepseek_model("deepseek_v2", 0), {"qk_nope_head_dim": MILLIONS}),
    "deepseek's latent": (deepseek_model("deepseek_v2", 0), {"kv_lora_rank": MILLIONS // 16 * 16}),
    "phi3": (dense_model("phi3", 0), {"intermediate_size": MILLIONS}),
    "gpt_oss": (expert_model("gpt_oss", 0), {"intermediate_size": MILLIONS}),
    "falcon": (dense_model("falcon", 1), {"num_kv_heads": 1, "num_attention_heads": MILLIONS, "head_dim": 16}),
    "stablelm": (dense_model("stablelm", 1), {"num_attention_heads": MILLIONS, "head_dim": 16}),
    "llama": (LLAMA, {"intermediate_size": MILLIONS, "num_attention_heads": MILLIONS, "head_dim": 16}),
    "vocabulary": (LLAMA, {"vocab_size": MILLIONS}),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_compared_before_anything_is_allocated(name: str, tmp_path: Path) -> None:
    model, changes = SIZES[name]
    path = lying(model, tmp_path, **changes)
    tracemalloc.start()
    try:
        with pytest.raises(KvistError, match=r"config says|no tensor|config's|needed"):
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_rows_of_a_gguf_file_are_compared_too(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(LLAMA, path)
    checkpoint = open_checkpoint(path)
    checkpoint.config["head_dim"] = 1 << 24
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="its config says"):
            load_decoder(checkpoint)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
        checkpoint.close()


@pytest.mark.parametrize(
    ("model", "changes", "expected"),
    [
        (LLAMA, {"partial_rotary_factor": 1000.0}, "partial_rotary_factor must be .* at most 1"),
        (LLAMA, {"vocab_size": None}, "doesn't say vocab_size"),
        (deepseek_model("deepseek_v2", 0), {"partial_rotary_factor": 0.5}, "must be 1 in .* got 0.5"),
        (expert_model("mixtral", 1), {"num_experts_per_tok": 99}, "num_experts_per_tok .* its 3 experts, got 99"),
        (expert_model("qwen3_moe", 0), {"num_experts_per_tok": 0}, "num_experts_per_tok in the config .* got 0"),
    ],
)  # fmt: skip
def test_a_value_is_named(model: TinyModel, changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=expected):
        load(lying(model, tmp_path, **changes))


def test_a_vocabulary_smaller_than_the_tokenizers(tmp_path: Path) -> None:
    from checkpoint.vocabularies import train_byte_level

    backend = train_byte_level("smollm")
    path, number = lying(LLAMA, tmp_path, vocab_size=20), backend.get_vocab_size()
    (path / "tokenizer.json").write_text(backend.to_str())
    with pytest.raises(CheckpointError, match=f"vocab_size of 20 and its tokenizer {number} tokens; a row per token"):
        open_model(path)
    lying(LLAMA, tmp_path, vocab_size=number - 1)
    backend.add_special_tokens(["<image>"])  # beyond the text model, as in Gemma 3
    (path / "tokenizer.json").write_text(backend.to_str())
    with pytest.raises(CheckpointError, match="a row per token"):
        open_model(path)
    with open_model(lying(LLAMA, tmp_path, vocab_size=number)) as files:
        assert files.tokenizer is not None
        assert files.tokenizer.vocab_size == number + 1


# ---- Tensors that nothing reads --------------------------------------------------------------------------------


def with_tensors(path: Path, **more: np.ndarray[Any, Any]) -> Path:
    file = path / "model.safetensors"
    save_file({**load_file(file), **more}, file)
    return path


@pytest.mark.parametrize("model", [LLAMA, tiny_model("gpt2", 0), dense_model("falcon", 1)])
def test_fewer_layers_than_the_file_has(model: TinyModel, tmp_path: Path) -> None:
    key = "n_layer" if model.family == "gpt2" else "num_hidden_layers"
    path = lying(model, tmp_path, **{key: 1})
    with pytest.raises(UnsupportedError, match=rf'tensors that {model.family}.* doesn\'t use, the first is ".*\.1\.'):
        load(path)


def test_one_tensor_more(tmp_path: Path) -> None:
    path = with_tensors(lying(LLAMA, tmp_path), **{"model.layers.0.self_attn.q_norm.weight": np.ones(16, "<f4")})
    with pytest.raises(UnsupportedError, match="has a tensor that llama's forward pass doesn't use") as error:
        load(path)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("name", ["attn_q_norm", "post_attention_norm", "attn_sinks"])
def test_one_more_in_a_gguf_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, path = gguf.GGUFWriter.write_header_to_file, tmp_path / "model.gguf"

    def also(writer: gguf.GGUFWriter, *arguments: Any) -> None:
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(16, np.float32))
        write(writer, *arguments)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", also)
    write_gguf(LLAMA, path)
    with pytest.raises(UnsupportedError, match=f'the first is "blk.0.{name}.weight"'):
        load(path)


def test_what_files_carry_along_is_no_harm(tmp_path: Path) -> None:
    ones = np.ones(16, "<f4")
    model = tiny_model("llama", 0)
    assert model.config["tie_word_embeddings"]
    names = (
        "lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.0.self_attn.q_proj.input_scale",
        "model.layers.1.self_attn.k_scale", "v_head.summary.weight", "model.layers.0.attn.masked_bias",
        "model.layers.0.attn.bias",
    )  # fmt: skip
    more = dict.fromkeys(names, ones) | {"model.layers.0.input_layernorm.bias": 0 * ones}  # as GPTQ's programs write it
    load(with_tensors(lying(model, tmp_path), **more)).close()


def test_layers_that_guess_ahead_are_no_harm(tmp_path: Path) -> None:
    model = deepseek_model("deepseek_v3", 0)
    path = lying(model, tmp_path, num_nextn_predict_layers=1)
    name = f"model.layers.{model.config['num_hidden_layers']}.eh_proj.weight"
    load(with_tensors(path, **{name: np.ones(16, "<f4")})).close()
    with pytest.raises(UnsupportedError, match=name):
        load(with_tensors(lying(model, tmp_path), **{name: np.ones(16, "<f4")}))


def test_biases_of_a_gguf_file_are_looked_for_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As llama.cpp does: with q's there may be k's and v's, and none of what attention gives."""
    model, add = tiny_model("llama", 1), gguf.GGUFWriter.add_tensor
    assert model.config["attention_bias"]

    def without(writer: gguf.GGUFWriter, name: str, *arguments: Any, **more: Any) -> None:
        if not name.endswith("attn_output.bias"):
            add(writer, name, *arguments, **more)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", without)
    write_gguf(model, tmp_path / "model.gguf")
    decoder = load(tmp_path / "model.gguf")
    assert decoder.weights.layers[0].qkv[0][0].bias >= 0
    assert decoder.weights.layers[0].attention_output[0][0].bias == -1
    decoder.close()


@pytest.mark.parametrize("form", ["q5_1", "q4_k", "iq3_s", "q8_0", "mxfp4"])
def test_scales_that_are_no_numbers_warn_of_nothing(form: str) -> None:
    """What they make of the model is found when it runs."""
    from kvist.checkpoint.ggml_types import BY_NAME

    kind, draw = BY_NAME[form], np.random.default_rng(0)
    raw = draw.integers(0, 256, (64, 256 // kind.block_elements * kind.block_bytes), np.uint8)
    raw[:, :4] = 0xFF, 0x7C, 0x00, 0x7C  # NaN and infinity
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers = to_f32(raw, form)
        from_f32(numbers, "q4_1")
        from_f32(np.full((1, 32), 1e30, np.float32), "f16")
        if form == "iq3_s":
            codes_to_q8(raw, form)
