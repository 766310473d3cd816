"""The numbers that the first page rests on, computed by what it advertises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from markdown import ROOT
from typer.testing import CliRunner

from kvist.cli.main import app
from kvist.spec.cache import CacheSpec, logical_bytes
from kvist.spec.config import model_spec_from_config

PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
LLAMA_3_1_8B = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def test_one_user_at_full_context_takes_16_gib() -> None:
    assert "**The problem as one number: 16 GiB.**" in PAGE
    spec = model_spec_from_config(LLAMA_3_1_8B)
    assert logical_bytes(spec, CacheSpec("bf16"), spec.context_length) == 16 << 30


@pytest.mark.parametrize(("codec", "users"), [("bf16", 56), ("int8", 110)])
def test_users_of_an_80_gb_card(codec: str, users: int, tmp_path: Path) -> None:
    assert f"{users} in bf16" in PAGE if codec == "bf16" else f"{users} with int8" in PAGE
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_3_1_8B), encoding="utf-8")
    options = ["plan", str(config), "--gpu", "H100", "--context", "8192", "--kv", codec, "--json"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout.splitlines()[-1])
    assert plan["capacity"]["users"] == users
    assert plan["weights"]["parameters"] == 8_030_261_248
