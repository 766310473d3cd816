"""``kvist bench cache``, ``throughput``, ``prefix``, ``speculation``, ``schedule`` and ``memory`` on the fake model."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.command import Command
from fakes.model import fake_spec, install
from lab.schemas import check

from kvist.lab import ceiling
from kvist.lab.ceiling import Ceiling


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_spec(2048), answer=list(b"That is all."))
    monkeypatch.setattr(ceiling.MachineProbe, "measure", lambda _: Ceiling(1e10, 1e12, 1.3e12))


def test_cache(kvist: Command) -> None:
    done = kvist("bench", "cache", "--quick", "-n", "12", "--json")
    assert done.code == 0, done.err
    check(done.json)
    assert done.json["generated_tokens"] == 12
    assert done.err.index("ceiling: 10.0 GB/s read") < done.err.index("with cache")


def test_throughput(kvist: Command) -> None:
    done = kvist("bench", "throughput", "--users", "2", "--quick", "--json")
    assert done.code == 0, done.err
    check(done.json)
    assert {"users", "generated_tokens_per_s", "wall_s", "ttft_s", "itl_s", "waste"} <= set(done.json)
    assert done.json["matmul_factor"] == 1.0
    several = kvist("bench", "throughput", "--users", "1", "--users", "3", "--quick", "--json")
    check(several.json)
    assert [run["users"] for run in several.json["runs"]] == [1, 3]
    assert "waste" in several.err


def test_prefix(kvist: Command) -> None:
    done = kvist("bench", "prefix", "--users", "2", "--prefix", "64", "--quick", "--json")
    assert done.code == 0, done.err
    check(done.json)
    assert done.json["hit_tokens"] == 64
    assert "times sooner" in done.err


def test_speculation(kvist: Command) -> None:
    done = kvist("bench", "speculation", "--repeats", "1", "--json")
    assert done.code == 0, done.err
    check(done.json)
    assert done.json["identical"] is True
    assert done.json["samples"][0]["text"].startswith("That is all.")
    assert "tokens and logits are identical" in done.err


def test_schedule(kvist: Command, tmp_path: Path) -> None:
    plot = tmp_path / "schedule.png"
    done = kvist("bench", "schedule", "--users", "2", "--prompt", "500", "--quick", "--plot", str(plot), "--json")
    assert done.code == 0, done.err
    check(done.json)
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("schedule", "--prompt", "6000"), "sequences of 6001 tokens, and smollm2-135m was trained on 2048"),
        (("schedule", "--plot", "x.gif"), "can't draw into"),
        (("prefix", "--kv", "int3"), 'unknown codec "int3" for --kv'),
        (("memory", "--tokens", "2000", "--shared", "60"), "takes sequences of 2060 tokens"),
        (("speculation", "--draft", "0"), "draft_tokens must be at least 1"),
        (("speculation", "--draft", "99"), "speculation must be from 0 (none) to 32"),
    ],
)
def test_what_cannot_be_measured_is_one_line(kvist: Command, options: tuple[str, ...], said: str) -> None:
    done = kvist("bench", *options)
    assert (done.code, done.out) == (1, "")
    assert said in done.err.splitlines()[-1]


def test_memory(kvist: Command) -> None:
    done = kvist("bench", "memory", "--users", "1", "--users", "3", "--tokens", "40", "--shared", "70", "--json")
    assert done.code == 0, done.err
    check(done.json)
    assert done.json["exact"] is True
    assert done.json["linear"] is True
    one, three = done.json["apart"]
    assert three["allocated_bytes"] == 3 * one["allocated_bytes"] == three["reserved_bytes"]
    block = one["allocated_bytes"] // 3  # 40 tokens are 3 blocks, 110 are 7, of which 4 are whole ones of the prompt
    assert [row["allocated_bytes"] // block for row in done.json["shared"]] == [7, 4 + 3 * 3]
    assert "the same to the byte" in done.err
