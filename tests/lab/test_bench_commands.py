"""``kvist bench`` on the real model, as short as it goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab.schemas import check
from typer.testing import CliRunner

from kvist.cli.main import app


def test_bench_cache_ends_with_its_document_and_draws(tmp_path: Path) -> None:
    plot = tmp_path / "curve.svg"
    result = CliRunner().invoke(app, ["bench", "cache", "-n", "6", "--context", "64", "--plot", str(plot), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["identical"] is True
    check(document)
    assert "identical" in result.stderr
    assert plot.stat().st_size > 1000


def test_bench_speed_ends_with_its_document() -> None:
    result = CliRunner().invoke(app, ["bench", "speed", "--length", "64", "--repeats", "1", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    check(document)
    (length,) = document["lengths"]
    assert 0 < length["share_of_bandwidth"] <= 1
    assert 0 < length["share_of_int_dot"] <= 1
    assert "of ceiling" in result.stderr


def test_bench_codec_ends_with_its_document() -> None:
    sizes = ["--length", "64", "--repeats", "1"]
    result = CliRunner().invoke(app, ["bench", "codec", "--kv", "bf16,int8", *sizes, "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    check(document)
    assert [codec["bytes_per_token"] for codec in document["codecs"]] == [23040, 11880]
    assert [codec["lengths"][0]["kv_bytes"] for codec in document["codecs"]] == [64 * 23040, 64 * 11880]
    assert "scaled" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cache", "--plot", "curve.gif"], "can't draw into"),
        (["cache", "-n", "9000"], "don't fit the context"),
        (["speed", "--length", "3"], "context of 3 tokens"),
        (["speed", "--weights", "q5"], 'unknown weights "q5"'),
        (["codec", "--length", "3"], "context of 3 tokens"),
        (["codec", "--kv", "int3"], 'unknown codec "int3"'),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 1
    assert said in result.stderr.splitlines()[-1]


def test_bench_long_ends_with_its_document() -> None:
    """As short as it shows: past a small window the stream goes on as if computed anew; without sinks it doesn't."""
    sizes = ["--tokens", "1400", "--segment", "1400", "--probes", "8", "--generate", "40"]
    result = CliRunner().invoke(app, ["bench", "long", *sizes, "--retention", "sinks:4+124", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    check(document)
    (segment,) = document["segments"]
    assert 0.9 < segment["ratio"] < 1.1  # 7 probes of 64 tokens each; over 100,000 tokens it is within 0.05
    assert segment["perplexity_without_sinks"] > 1.3 * segment["perplexity"]
    assert len({mark["allocated_bytes"] for mark in document["generated"]}) <= 2
    assert "recomputed" in result.stderr


def test_bench_long_compares_sinks_alone() -> None:
    result = CliRunner().invoke(app, ["bench", "long", "--retention", "window:100"])
    assert result.exit_code == 1
    assert "kvist bench long compares sinks:S+N" in result.stderr.splitlines()[-1]


def test_bench_memory_ends_with_its_document() -> None:
    result = CliRunner().invoke(app, ["bench", "memory", "--quick", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    check(document)
    assert document["exact"] is True
    assert document["linear"] is True
