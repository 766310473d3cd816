"""``kvist plan``: the JSON contract, text with units, other engines, files, and one line for what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fakes.command import Command
from fakes.model import install
from published import BY_NAME, transformer
from safetensors.numpy import save_file

from kvist.cli import calibration
from kvist.spec.config import model_spec_from_config

LLAMA = BY_NAME["Llama-3.1-8B"].config
TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 264,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    return written(tmp_path, LLAMA)


def written(directory: Path, config: dict[str, Any], name: str = "config.json") -> str:
    path = directory / name
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def test_the_contract(kvist: Command, config: str) -> None:
    done = kvist("plan", config, "--context", "8192", "--kv", "bf16", "--gpu", "H100", "--users", "20", "--json")
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    found = done.json
    kv = found["kv"]
    assert {
        "full_bytes_per_token": 131072,
        "window_bytes_per_token": {},
        "constant_bytes": 0,
        "sequence_bytes": 1 << 30,
        "allocated_bytes": 1 << 30,
        "per_rank_sequence_bytes": 1 << 30,
    }.items() <= kv.items()
    assert found["weights"]["parameters"] == found["weights"]["active_parameters"] == 8030261248
    assert found["weights"]["bytes"] == 2 * 8030261248
    assert found["capacity"]["users"] == 56
    assert found["capacity"]["kv_budget_bytes"] // kv["charged_bytes"] == 56
    assert found["capacity"]["fits"] is True
    assert found["capacity"]["max_context"] == 23056
    assert 0 < found["latency"]["tpot_s"] < found["latency"]["ttft_s"] < 1


def test_numbers_of_every_kind_of_layer(kvist: Command, tmp_path: Path) -> None:
    facts = BY_NAME["Gemma-3-27B"]
    found = kvist("plan", written(tmp_path, facts.config), "--context", "32768", "--tp", "16", "--json").json["kv"]
    assert found["window_bytes_per_token"] == {"1024": 425984}
    assert found["sequence_bytes"] == facts.sequence_bytes(32768)
    assert found["per_rank_sequence_bytes"] * 16 == facts.sequence_bytes(32768)
    facts = BY_NAME["Qwen3-Next-80B-A3B"]
    for state, expected in (("f32", facts.constant_f32), ("bf16", facts.constant_bf16)):
        done = kvist("plan", written(tmp_path, facts.config), "--state-dtype", state, "--json")
        assert done.json["kv"]["constant_bytes"] == expected
    done = kvist("plan", written(tmp_path, BY_NAME["T5-base"].config), "--encoder-tokens", "512", "--json")
    assert done.json["kv"]["constant_bytes"] == 512 * 36864


@pytest.mark.parametrize(("codec", "expected"), [("f32", 262144), ("bf16", 131072), ("int8", 66560), ("int4", 37888)])
def test_codecs(kvist: Command, config: str, codec: str, expected: int) -> None:
    assert kvist("plan", config, "--kv", codec, "--json").json["kv"]["full_bytes_per_token"] == expected


def test_keys_and_values_apart(kvist: Command, config: str) -> None:
    found = kvist("plan", config, "--kv-k", "int8", "--kv-v", "int4", "--json").json["kv"]
    assert (found["k"], found["v"], found["full_bytes_per_token"]) == ("int8", "int4", 33280 + 16896)


def test_another_engine(kvist: Command, config: str) -> None:
    found = kvist("plan", config, "--context", "20000", "--engine", "vllm", "--pool-blocks", "1952", "--json").json
    engine = found["engine"]
    assert (engine["blocks"], engine["pool_blocks"]) == (1250, 1952)
    assert engine["charged_bytes"] == 1250 * 16 * 131072
    assert engine["logged_tokens"] == 1952 * 16
    assert f"{engine['concurrency']:.2f}" == "1.56"
    done = kvist("plan", config, "--context", "20000", "--engine", "vllm", "--pool-blocks", "1952")
    for part in (
        "resident 2.44 GiB; charged at admission 2.44 GiB = 1,250 blocks",
        "logs 3.81 GiB",
        "1.56x concurrency",
    ):
        assert part in done.out


def test_every_number_on_screen_has_a_unit(kvist: Command, config: str) -> None:
    done = kvist("plan", config, "--gpu", "4090", "--context", "8192", "--users", "8", "--explain")
    assert done.code == 0
    for part in (
        "8,030,261,248 parameters, 14.96 GiB",
        "128.00 KiB a token",
        "1.00 GiB for one sequence of 8,192 tokens",
        "23.99 GiB, 90% usable: 21.59 GiB",
        "6 of 8,192 tokens",
        "8 of 8,192 tokens need 25.51 GiB a device",
        "--kv int8",
        "unverified for RTX 4090 24GB: memory",
        "32 layers x (8 KV heads x (K 128 in bf16 + V 128 in bf16)) = 131,072 B a token",
        "x 8,192 tokens = 1,073,741,824 B (1.00 GiB)",
    ):
        assert part in done.out
    assert not re.search(r"\b0x|None|nan\b", done.out)


def test_side_by_side(kvist: Command, tmp_path: Path) -> None:
    names = ["Llama-3.1-8B", "Gemma-3-27B", "DeepSeek-V3"]
    paths = [written(tmp_path, BY_NAME[name].config, f"{name}.json") for name in names]
    done = kvist("plan", *paths, "--context", "8192")
    lines = done.out.splitlines()
    assert [name in lines[0] for name in names] == [True] * 3
    assert len({len(line) for line in lines}) == 1
    assert "a token of the last 1,024" in done.out
    assert len(kvist("plan", *paths, "--json").json["plans"]) == 3


def test_lengths_that_differ(kvist: Command, config: str) -> None:
    options = ("--context-mean", "3000", "--context-p99", "12000", "--shared-prefix", "1500", "--users", "100")
    found = kvist("plan", config, "--gpu", "h100", "--context", "16384", *options, "--json").json
    demand = found["demand"]
    assert demand["users"] > found["capacity"]["users"]
    assert demand["shared_bytes"] == 1488 * 131072
    assert demand["mean_bytes"] * 100 < demand["bytes_for_wished"] < found["capacity"]["kv_budget_bytes"]
    less = kvist("plan", config, "--gpu", "h100", "--context", "16384", *options, "--preemption", "0.0001", "--json")
    assert less.json["demand"]["users"] < demand["users"]


def test_flags_for_other_engines(kvist: Command, config: str) -> None:
    done = kvist(
        "plan", config, "--gpu", "h100", "--context", "8192", "--kv", "int8", "--vllm-flags", "--llamacpp-flags"
    )
    assert "--max-model-len 8192 --gpu-memory-utilization 0.9 --kv-cache-dtype fp8 --max-num-seqs 110" in done.out
    assert "-c 901120 -np 110 -ctk q8_0 -ctv q8_0 -ngl 999 -fa on" in done.out


def test_a_window_or_a_policy_caps_every_layer(kvist: Command, config: str) -> None:
    for option in (("--window", "4096"), ("--retention", "window:4096"), ("--retention", "sinks:4+4092")):
        found = kvist("plan", config, *option, "--context", "8192", "--json").json["kv"]
        assert found["window_bytes_per_token"] == {"4096": 131072}
    h2o = kvist("plan", config, "--retention", "h2o:1024", "--context", "8192", "--json").json["kv"]
    assert h2o["sequence_bytes"] == (1024 + 64) * 131072
    prompt = ("--context", "8192", "--prompt", "4096")
    snapkv = kvist("plan", config, "--retention", "snapkv:1024", *prompt, "--json").json["kv"]
    assert snapkv["sequence_bytes"] == (1024 + 4096) * 131072
    assert kvist("plan", config, "--retention", "all", "--json").json["kv"]["full_bytes_per_token"] == 131072


def test_a_directory_with_weights_is_counted(kvist: Command, tmp_path: Path) -> None:
    sizes = {"model.embed_tokens.weight": (264, 32), "model.norm.weight": (32,), "something.else": (1000,)}
    save_file({name: np.zeros(shape, np.float32) for name, shape in sizes.items()}, tmp_path / "model.safetensors")
    written(tmp_path, TINY)
    found = kvist("plan", str(tmp_path), "--json").json
    assert found["model"] == tmp_path.name
    assert found["weights"]["parameters"] == 264 * 32 + 32 + 1000
    assert found["weights"]["bytes"] == 4 * found["weights"]["parameters"]
    assert found["weights"]["type"] == "f32"
    assert "the files hold 9,480 parameters, by the config they would be" in found["notes"][-1]


def test_a_directory_without_weights_is_its_config(kvist: Command, tmp_path: Path) -> None:
    written(tmp_path, TINY)
    found = kvist("plan", str(tmp_path), "--json").json
    parameters = model_spec_from_config(TINY).parameters
    assert parameters is not None
    assert found["weights"]["parameters"] == parameters.total


@pytest.mark.parametrize("kept", ["all", "window:40", "sinks:4+100"])
def test_check_compares_with_the_engine(
    kvist: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    monkeypatch.setenv("KVIST_CACHE_DIR", str(tmp_path / "empty"))
    install(monkeypatch, model_spec_from_config(TINY))
    done = kvist("plan", written(tmp_path, TINY), "--check", "--kv", "f32", "--retention", kept, "--json")
    assert done.code == 0
    found = done.json["check"]
    assert found["equal"] is True
    assert {row["what"] for row in found["rows"]} == {"pool", "logical", "allocated"}
    assert {row["tokens"] for row in found["rows"]} >= {1, 15, 16, 17, 255}
    assert found["resident"]["allocated"] == found["resident"]["predicted"]
    done = kvist("plan", written(tmp_path, TINY), "--check", "--engine", "vllm")
    assert (done.code, done.err) == (
        1,
        "error: --check compares with kvist itself; leave out --engine, --tp and --window\n",
    )


def test_a_calibrated_machine_is_a_device(kvist: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVIST_CACHE_DIR", str(tmp_path))
    path = written(tmp_path, LLAMA)
    assert "this machine isn't calibrated yet; kvist plan --calibrate" in kvist("plan", path, "--gpu", "local").err
    measured = {"memory_bytes": 1 << 36, "read_bandwidth": 4e10, "int_dot_peak": 1e12, "machine": "a test"}
    (tmp_path / "calibration.json").write_text(json.dumps(measured))
    found = kvist("plan", path, "--gpu", "local", "--weights", "q4", "--context", "100", "--json").json
    assert found["device"]["bandwidth"]["value"] == 4e10
    assert found["latency"]["tpot_s"] == pytest.approx(
        ((8030261248 - 128256 * 4096) * 0.625 + 100 * 131072) / 4e10, rel=1e-9
    )
    assert calibration.local_device().peak("q4") == calibration.local_device().peak("q8")
    (tmp_path / "calibration.json").write_text("{")
    assert "can't be read; kvist plan --calibrate" in kvist("plan", path, "--gpu", "local").err


def test_the_list_of_devices(kvist: Command) -> None:
    done = kvist("plan", "--list-gpus", "--json")
    assert "H100 SXM 80GB" in done.json["devices"]
    assert "MI300X 192GB" in done.err
    assert "5,300 GB/s?" in done.err


@pytest.mark.parametrize("ending", ["png", "svg", "html"])
def test_a_picture(kvist: Command, config: str, tmp_path: Path, ending: str) -> None:
    picture = tmp_path / f"plan.{ending}"
    done = kvist("plan", config, "--gpu", "h100", "--plot", str(picture))
    assert done.code == 0
    start = picture.read_bytes()[:400]
    assert {"png": b"PNG", "svg": b"<svg", "html": b"<svg"}[ending] in start
    if ending == "html":
        assert start.startswith(b"<!doctype html>")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpu", "h10"), 'no device is called "h10"; did you mean H100'),
        (("--kv", "int3"), 'unknown codec "int3" for --kv; known: f32, bf16, int8, int4'),
        (("--kv-v", "x"), 'unknown codec "x" for --kv-v'),
        (("--engine", "tgi"), 'unknown engine "tgi" for --engine; known: kvist, vllm, llama.cpp'),
        (("--memory", "much"), 'not a size: "much"'),
        (("--memory", "80"), "--memory must be at least 1 MiB, got 80 B; write a unit"),
        (("--memory", "24GiB", "--utilisation", "1.5"), "--utilisation must be above 0 and at most 1, got 1.5"),
        (("--context", "-1"), "--context must be between 1"),
        (("--users", "0"), "--users must be between 1"),
        (("--tp", "0"), "--tp must be between 1"),
        (("--retention", "some:4"), 'unknown policy "some:4" for --retention'),
        (("--retention", "window:x"), '--retention: window must keep between 1 and 1099511627776 tokens, got "x"'),
        (("--context-mean", "100"), "lengths that differ need both --context-mean and --context-p99"),
        (("--shared-prefix", "-3"), "--shared-prefix must be between 0"),
        (("--preemption", "2"), "--preemption must be between 0 and 1, got 2"),
        (("--plot", "x.bmp"), 'can\'t draw into "x.bmp"'),
        (("--engine", "vllm", "--kv", "int4"), 'vllm keeps no "int4" cache'),
        (("--engine", "vllm", "--retention", "window:9"), "vllm keeps all tokens of a layer, got --retention window:9"),
        (("--engine", "llama.cpp", "--retention", "h2o:64"), "llama.cpp keeps all tokens of a layer"),
        (
            ("--kv", "int4", "--kv-keep-layers", "0,99"),
            "there is no layer 99 to keep in bf16: the model has layers 0 to",
        ),
        (("--kv-keep-layers", "first"), 'takes layer numbers, such as 0,1,-1, got "first"'),
        (("--batched-tokens", "0", "--engine", "vllm"), "--batched-tokens and --pool-blocks must be at least 1"),
    ],
)
def test_a_bad_option_is_one_line(kvist: Command, config: str, options: tuple[str, ...], message: str) -> None:
    done = kvist("plan", config, *options)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "is not valid JSON"),
        ("[1, 2]", "must hold a JSON object, got list"),
        ("{}", "not a model's config: no model_type and no hidden_size in it"),
        (
            '{"model_type": "llama", "num_hidden_layers": "two"}',
            "num_hidden_layers in the config must be a whole number",
        ),
        ('{"model_type": "llama", "num_hidden_layers": -2}', "num_hidden_layers in the config must be between 1"),
        ('{"model_type": "llama", "num_hidden_layers": 1e300}', "num_hidden_layers in the config must be between 1"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "is not valid JSON"),
    ],
)
def test_a_bad_file_is_one_line(kvist: Command, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    done = kvist("plan", str(tmp_path / "config.json"), "--json")
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_no_file_and_no_config(kvist: Command, tmp_path: Path) -> None:
    assert "no such file" in kvist("plan", str(tmp_path / "x.json")).err
    assert "has neither a config.json nor a .gguf file" in kvist("plan", str(tmp_path)).err
    assert "kvist plan needs a model" in kvist("plan").err
    assert "known: smollm2-135m" in kvist("plan", "nothing").err


def test_a_plan_is_light(config: str) -> None:
    """No NumPy, no compiler, no drawing: what would keep it from answering in under half a second."""
    code = (
        "import sys\nfrom kvist.cli.main import app\n"
        f"try:\n    app(['plan', {config!r}, '--gpu', 'h100', '--json'], prog_name='kvist')\n"
        "except SystemExit:\n    pass\n"
        "print([name for name in ('numpy', 'numba', 'matplotlib', 'gguf', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_unknown_architectures_say_that_they_are_assumed(kvist: Command, tmp_path: Path) -> None:
    strange = transformer("brandnew", 64, 2, 4, 2, max_position_embeddings=128)
    done = kvist("plan", written(tmp_path, strange))
    assert 'note         model_type "brandnew" isn\'t known: assumed attention of one width in every layer' in done.out
    assert "number of parameters unknown: how the weights of model_type" in done.out


def header(path: Path, architecture: str, keys: dict[str, Any]) -> str:
    """Write a GGUF file with one tensor."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(f"{architecture}.{key}", value)
    writer.add_tensor("token_embd.weight", np.zeros((100, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


SIZES = {
    "block_count": 12,
    "context_length": 4096,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "vocab_size": 100,
}
STATE = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 2,
}


@pytest.mark.parametrize(
    ("architecture", "keys", "full", "windows", "constant"),
    [
        ("cohere2", {"attention.sliding_window": 512}, 3 * 128, {"512": 9 * 128}, 0),
        ("minicpm3", {"attention.kv_lora_rank": 512, "rope.dimension_count": 64}, 12 * 1152, {}, 0),
        ("granitehybrid", {"attention.head_count_kv": [0, 2] * 6} | STATE, 6 * 256, {}, 6 * (8192 + 3 * 192 * 2)),
        ("lfm2", {"attention.head_count_kv": [0, 2] * 6, "shortconv.l_cache": 3}, 6 * 256, {}, 6 * 64 * 2 * 2),
    ],
)
def test_a_header_of_an_architecture_that_the_engine_lacks(
    kvist: Command,
    tmp_path: Path,
    architecture: str,
    keys: dict[str, Any],
    full: int,
    windows: dict[str, int],
    constant: int,
) -> None:
    found = kvist("plan", header(tmp_path / "x.gguf", architecture, SIZES | keys), "--json").json
    kv = found["kv"]
    assert (kv["full_bytes_per_token"], kv["window_bytes_per_token"], kv["constant_bytes"]) == (full, windows, constant)
    assert found["weights"]["parameters"] == 6400


def test_a_header_without_rules_names_those_that_have(kvist: Command, tmp_path: Path) -> None:
    done = kvist("plan", header(tmp_path / "x.gguf", "strange", SIZES))
    assert 'no rules for GGUF\'s architecture "strange"; known: afmoe, ' in done.err


@pytest.mark.parametrize(("ending", "expected"), [("", "no model or file"), (".json", "can't read")])
def test_a_name_too_long_for_a_path(kvist: Command, ending: str, expected: str) -> None:
    done = kvist("plan", "x" * 5000 + ending)
    assert done.code == 1
    assert expected in done.err
    assert len(done.err.splitlines()) == 1


def test_one_user_is_not_called_users(kvist: Command, config: str) -> None:
    done = kvist("plan", config, "--gpu", "h100", "--context", "131072")
    assert "from 1 user on the caches are read longer than the weights" in done.out
