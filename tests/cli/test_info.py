"""``kvist info`` of files: each fact on the screen and in JSON, and nothing in a config that breaks it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint.gguf_bytes import F32, I32, SMALL_KEYS, STRING, U32, Tensor, array, gguf_bytes, scalar, string, text
from checkpoint.sentencepiece_bytes import model_bytes
from checkpoint.vocabularies import train_scored
from fakes.command import Command
from safetensors.numpy import save_file
from tiny.models import tiny_model
from tiny.tensors import write_directory
from tiny.wrapped import wrapped_config, write_wrapped

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def directory(path: Path, **changes: Any) -> str:
    (path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    save_file({"a": np.zeros((3, 4), "<f4"), "b": np.zeros(5, "<f2")}, path / "model.safetensors")
    return str(path)


def shown(kvist: Command, name: str, *more: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The lines by what stands before them, and the document."""
    done = kvist("info", name, *more, "--json")
    assert done.code == 0, done.err
    lines: dict[str, str] = {}
    for line in done.err.splitlines():
        key = line[:14].strip() or "more"
        lines[key] = f"{lines[key]}; {line[14:]}" if key in lines else line[14:]
    assert kvist("info", name, *more).out.splitlines() == done.err.splitlines()
    return lines, done.json


def test_a_directory_without_tokenizer(kvist: Command, tmp_path: Path) -> None:
    lines, found = shown(kvist, directory(tmp_path))
    assert lines["family"] == "llama, 4 layers, width 64, MLP 96, 17 parameters"
    assert lines["layers"] == "4 full, 4 heads over 2 KV heads of 16"
    assert lines["positions"] == "rotary, base 10000"
    assert lines["forward"] == "RMSNorm before each part, SiLU, gated"
    assert (lines["tokenizer"], lines["chat template"]) == ("none", "none")
    assert lines["weights"] == "58 B: f32 48 B, f16 10 B"
    assert found["weight_types"] == {"f32": 48, "f16": 10}
    assert found["num_parameters"] == 17
    assert found["tokenizer"] is None


def test_layers_of_several_kinds(kvist: Command, tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    config = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32, "layer_types": kinds}
    lines, found = shown(kvist, directory(tmp_path, **config), "--kv", "int8")
    assert lines["layers"] == (
        "2 window of 32 tokens, 4 heads over 2 KV heads of 16; 2 full, 4 heads over 2 KV heads of 16"
    )
    assert [layer["kind"] for layer in found["layers"]] == ["window", "full"]
    assert lines["KV cache"].startswith("K int8, V int8: ")
    assert found["kv"]["bytes_per_token"] > 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rotary, base 10000, scaling linear x 4"),
        (
            {
                "rope_theta": None,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 5e6,
                    "factor": 2,
                    "original_max_position_embeddings": 256,
                    "partial_rotary_factor": 0.5,
                },
            },
            "rotary, base 5e+06, scaling yarn x 2 from 256 tokens, 0.5 of each head",
        ),
        ({"rope_local_base_freq": 1e4, "rope_theta": 1e6}, "rotary, base 1e+06, 10000 in window layers"),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                }
            },
            "rotary, base 1e+06, 10000 in window layers, scaling linear x 8",
        ),
        ({"no_rope_layers": [1, 1, 1, 0]}, "rotary, base 10000, none in 1 layers"),
        ({"rope_theta": None}, "not rotary, or by the family's defaults"),
    ],
)
def test_positions(kvist: Command, tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    assert shown(kvist, directory(tmp_path, **changes))[0]["positions"] == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": float("inf")},
        {"rope_theta": "x", "rope_scaling": {"factor": [1, 2], "rope_type": 3}},
        {"rope_scaling": "x", "rope_local_base_freq": True},
        {"rope_parameters": {"full_attention": {}, "rope_theta": float("nan")}, "partial_rotary_factor": "half"},
        {"no_rope_layers": {"a": 1}},
        {"rope_scaling": {"rope_type": "a\nb", "factor": 1e400}},
    ],
)
def test_nothing_in_a_config_breaks_it(kvist: Command, tmp_path: Path, changes: dict[str, Any]) -> None:
    lines, found = shown(kvist, directory(tmp_path, **changes))
    json.dumps(found, allow_nan=False)
    assert set(lines) == {
        "model",
        "path",
        "family",
        "layers",
        "positions",
        "forward",
        "context",
        "vocabulary",
        "weights",
        "tokenizer",
        "chat template",
        "KV cache",
    }


def test_switches_of_a_family(kvist: Command, tmp_path: Path) -> None:
    changes = {"model_type": "gemma2", "head_dim": 16, "query_pre_attn_scalar": 64, "final_logit_softcapping": 20.0}
    lines, found = shown(kvist, directory(tmp_path, **changes))
    assert lines["layers"].startswith("2 window of 4096 tokens, 4 heads over 2 KV heads of 16; 2 full")
    assert lines["forward"] == (
        "RMSNorm before and after each part, GELU (tanh), gated, scores capped at 50, logits capped at 20, "
        "embeddings x 8, scores x 0.125"
    )
    assert (found["switches"]["score_cap"], found["switches"]["logit_cap"]) == (50, 20)


def test_what_is_not_run_is_said(kvist: Command, tmp_path: Path) -> None:
    lines, found = shown(kvist, directory(tmp_path, model_type="falcon", alibi=True))
    assert lines["forward"].startswith("not run: a falcon with alibi positions isn't supported")
    assert found["switches"]["not_run"].startswith("a falcon")


def test_images_that_are_not_read_are_said(kvist: Command, tmp_path: Path) -> None:
    model = tiny_model("llama", 0)
    path = write_wrapped(model, tmp_path / "whole", "transformers 4", wrapped_config("llava", model.config))
    lines, whole = shown(kvist, str(path))
    assert lines["left out"] == f"images aren't read: {path} runs as its text model; tensors left out: 1"
    assert whole["left_out"] == lines["left out"]
    lines, alone = shown(kvist, str(write_directory(model, tmp_path / "alone")))
    assert "left out" not in lines
    own = ("path", "model", "left_out")
    assert {key: whole[key] for key in whole if key not in own} == {key: alone[key] for key in alone if key not in own}


def test_a_gguf_file_with_a_sentencepiece_vocabulary(kvist: Command, tmp_path: Path) -> None:
    made = train_scored()
    keys = [pair for pair in SMALL_KEYS if not str(pair[0]).startswith("tokenizer")]
    keys += [
        ("tokenizer.ggml.model", text("llama")),
        ("tokenizer.ggml.tokens", array(STRING, [string(token) for token in made.tokens])),
        ("tokenizer.ggml.scores", array(F32, [struct.pack("<f", score) for score in made.scores])),
        ("tokenizer.ggml.token_type", array(I32, [struct.pack("<i", kind) for kind in made.types])),
        ("tokenizer.ggml.eot_token_id", scalar(U32, 3)),
        ("tokenizer.chat_template", text("{{ messages }}")),
    ]
    path = tmp_path / "model.gguf"
    num_tokens = len(made.tokens)
    path.write_bytes(gguf_bytes(keys, [Tensor("token_embd.weight", (32, num_tokens), 0, 0)], bytes(128 * num_tokens)))
    lines, found = shown(kvist, str(path))
    assert lines["tokenizer"] == f"SentencePiece BPE, {num_tokens} tokens, 4 special"
    assert lines["more"] == 'BOS 1 "<s>"; ends 2 "</s>", 3 "<|im_end|>"; a text gets BOS before'
    assert lines["chat template"] == "default (14 characters)"
    assert found["tokenizer"]["bos"] == {"id": 1, "text": "<s>"}
    assert (found["tokenizer"]["adds_bos"], found["tokenizer"]["adds_eos"]) == (True, False)


def test_a_directory_with_a_sentencepiece_model(kvist: Command, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model_bytes(train_scored()))
    (tmp_path / "tokenizer_config.json").write_text('{"add_eos_token": true, "add_bos_token": false}')
    lines, found = shown(kvist, directory(tmp_path, vocab_size=len(train_scored().tokens)))
    assert lines["tokenizer"].startswith("SentencePiece BPE, ")
    assert lines["more"].endswith("a text gets EOS behind")
    assert found["tokenizer"]["pre_tokenizer"] is None


def test_the_real_model(kvist: Command) -> None:
    lines, found = shown(kvist, "smollm2-135m")
    assert lines["tokenizer"] == "byte-level BPE, pre-tokenizer smollm, 49152 tokens, 17 special"
    assert lines["layers"] == "30 full, 9 heads over 3 KV heads of 64"
    assert found["num_parameters"] == 134_515_008
    assert found["rope"]["base"] == 100_000


def test_types_that_become_others(kvist: Command, tmp_path: Path) -> None:
    """What the weights take in memory is said where it isn't what they take in the file."""
    tensors = [Tensor("token_embd.weight", (256, 3), 14, 0), Tensor("output_norm.weight", (4,), 0, 640)]
    keys = [*SMALL_KEYS, ("tokenizer.ggml.model", text("none"))]
    (tmp_path / "model.gguf").write_bytes(gguf_bytes(keys, tensors, bytes(640 + 16)))
    lines, found = shown(kvist, str(tmp_path / "model.gguf"))
    assert lines["weights"] == "646 B, in memory 4.38 KiB: q6_k 630 B (loaded as q8_0, 4.25 KiB), f32 16 B"
    assert found["kept_as"][0] == {"type": "q6_k", "form": "q8_0", "file_bytes": 630, "kept_bytes": 16 * 8 * 34}
    assert found["loaded_bytes"] == 16 * 8 * 34 + 128
