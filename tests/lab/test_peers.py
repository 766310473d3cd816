"""The comparison with other engines: its arguments, its rounds and its page, without any of the engines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PEERS = Path(__file__).resolve().parents[2] / "bench" / "peers"
NAMES = ("peer", "roster", "table", "compare", "install")


@pytest.fixture(scope="module")
def lab() -> Iterator[SimpleNamespace]:
    """The scripts' modules, imported as each other imports them."""
    sys.path.insert(0, str(PEERS))
    try:
        yield SimpleNamespace(**{name: import_module(name) for name in NAMES})
    finally:
        sys.path.remove(str(PEERS))
        for name in NAMES:
            sys.modules.pop(name)


def results(**peers: dict[str, Any]) -> dict[str, Any]:
    """Results of a machine with round numbers; each peer with what is given and nothing else."""
    empty: dict[str, Any] = {"about": {}, "install": {}, "samples": {}, "errors": {}}
    return {
        "peers": {name: empty | own for name, own in peers.items()},
        "machine": {
            "processor": "a processor",
            "processors": 2,
            "memory_bytes": 8 * 2**30,
            "system": "Linux",
            "versions": {"python": "3.11"},
        },
        "ceiling": {"read_bandwidth": 20e9, "int_dot_peak": 1e12},
        "threads": 2,
        "date": "2026-01-02",
        "decoded": 32,
    }


def lengths(*ttft_s: float, tpot_s: float = 0.01) -> dict[str, Any]:
    return {"samples": {"length 128": [{"ttft_s": ttft, "tpot_s": tpot_s} for ttft in ttft_s]}}


class Counter:
    """An engine that answers with the numbers from 0 on."""

    name, version, weights, kv, kv_bytes = "counter", "1", "none", "f16", 8.0

    def stream(self, _prompt: list[int], num_tokens: int) -> Iterator[int]:
        yield from range(num_tokens)

    def generate(self, prompts: Sequence[list[int]], num_tokens: int) -> list[list[int]]:
        return [list(range(num_tokens)) for _ in prompts]


class EndsEarly(Counter):
    def stream(self, _prompt: list[int], num_tokens: int) -> Iterator[int]:
        yield from range(num_tokens - 1)


def test_a_cell_is_the_median_its_ratio_and_bold_where_the_peer_wins(lab: SimpleNamespace) -> None:
    found = results(kvist=lengths(0.2), fast=lengths(0.1, 0.9, 0.05), slow=lengths(0.4))
    row = lab.table.speed_rows()[0]
    assert lab.table.cell(found, row, "kvist") == "200 ms"
    assert lab.table.cell(found, row, "fast") == "**100 ms (2.00)**"
    assert lab.table.cell(found, row, "slow") == "400 ms (0.50)"


def test_of_rates_the_larger_wins(lab: SimpleNamespace) -> None:
    users = {
        name: {"samples": {"users 4": [{"tokens_per_s": rate}]}} for name, rate in (("kvist", 200.0), ("peer", 50.0))
    }
    row = next(row for row in lab.table.speed_rows() if row.key == "users 4")
    assert lab.table.cell(results(**users), row, "peer") == "50/s (0.25)"


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"missing": ".venv-peer-x isn't there: make peers"}, ".venv-peer-x isn't there: make peers"),
        ({"errors": {"length 128": "ValueError: no"}}, "ValueError: no"),
        ({}, "not measured"),
    ],
)
def test_what_has_no_figure_says_why(lab: SimpleNamespace, own: dict[str, Any], said: str) -> None:
    assert lab.table.cell(results(kvist=lengths(1.0), peer=own), lab.table.speed_rows()[0], "peer") == said


def test_the_page_has_every_peer_and_says_where_it_wins(lab: SimpleNamespace) -> None:
    peers = lab.roster.roster()
    found = results(**{"kvist": lengths(0.2), "vLLM bf16": lengths(0.1, tpot_s=0.02)})
    page = lab.table.page(found, peers)
    for name in peers:
        assert f"| {name} |" in page
        assert name == "kvist" or f"* {name} w" in page
    assert "* vLLM bf16 wins 1 of 2 rows: TTFT, 128 tokens." in page
    assert "* llama.cpp Q4_0 wasn't measured: not asked." in page
    assert "20 GB/s read" in page


def test_the_page_in_the_repository_is_that_of_its_results(lab: SimpleNamespace) -> None:
    files = (lab.table.RESULTS, *lab.table.ELSEWHERE)
    found, *others = (json.loads(path.read_text(encoding="utf-8")) for path in files)
    assert lab.table.page(found, lab.roster.roster(), others) == lab.table.PAGE.read_text(encoding="utf-8")


def test_another_machine_has_a_table_of_those_who_were_measured_there(lab: SimpleNamespace) -> None:
    other = results(**{"kvist": lengths(0.2), "vLLM bf16": lengths(0.1)}) | {
        "title": "Elsewhere",
        "note": "A slow one.",
    }
    page = lab.table.page(results(kvist=lengths(1.0)), lab.roster.roster(), [other])
    section = page.partition("## Elsewhere\n")[2].partition("## The cache")[0]
    assert "|  | kvist | vLLM bf16 |" in section and "**100 ms (2.00)**" in section and "A slow one." in section
    assert "* vLLM bf16 wins 1 of 2 rows: TTFT, 128 tokens." in section


def test_a_script_that_has_died_is_asked_in_vain(lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.compare, "command", lambda *_: [sys.executable, "-c", "raise SystemExit(3)"])
    worker = lab.compare.Worker(lab.roster.roster()["kvist"], "default", 1)
    for _ in range(2):
        assert worker.ask(measure="about") == {"error": "its script ended with 3"}
        assert worker.cpu_s == 0
    worker.close()


def test_all_engines_get_the_same_prompts_and_no_two_of_them_begin_alike(lab: SimpleNamespace) -> None:
    assert lab.peer.prompt(1, 64) == lab.peer.prompt(1, 64)
    first = {tuple(lab.peer.prompt(seed, size)[:4]) for seed in range(50) for size in (128, 512)}
    assert len(first) == 100


def test_a_script_measures_what_it_is_asked_for(lab: SimpleNamespace) -> None:
    meter = lab.peer.Meter(Counter())
    assert set(lab.peer.answer(meter, {"measure": "length", "value": 16})) == {"ttft_s", "tpot_s"}
    assert set(lab.peer.answer(meter, {"measure": "users", "value": 3})) == {"tokens_per_s"}
    assert set(lab.peer.answer(meter, {"measure": "prefix"})) == {"cached_ttft_s", "cold_ttft_s"}
    assert lab.peer.answer(meter, {"measure": "about"})["kv_bytes"] == 8.0


def test_an_engine_that_ends_early_is_told_and_not_measured(lab: SimpleNamespace) -> None:
    answer = lab.peer.answer(lab.peer.Meter(EndsEarly()), {"measure": "length", "value": 16})
    assert answer == {"error": "AssertionError: 3 tokens came of 4"}


def test_arguments(lab: SimpleNamespace) -> None:
    options = lab.compare.parser().parse_args(
        ["--peers", "kvist, vLLM bf16", "--lengths", "16,32", "--sections", "lengths"]
    )
    assert [peer.name for peer in lab.compare.chosen(options)] == ["kvist", "vLLM bf16"]
    assert options.lengths == [16, 32]
    everybody = lab.compare.chosen(lab.compare.parser().parse_args([]))
    assert [peer.name for peer in everybody] == list(lab.roster.roster())
    for wrong, known in (["--peers", "llamacpp"], "llama.cpp Q4_1"), (["--sections", "speed"], "lengths"):
        with pytest.raises(SystemExit, match=known):
            lab.compare.chosen(lab.compare.parser().parse_args(wrong))


def test_rounds_go_over_the_peers_in_turns_and_are_taken_up_where_they_ended(
    lab: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def ask(_run: object, peer: Any, figure: Any, number: int) -> dict[str, Any]:
        asked.append((peer.name, f"{figure.key}/{number}"))
        return {"ttft_s": 1.0, "tpot_s": 1.0} if figure.value < 32 else {"error": "too long"}

    monkeypatch.setattr(lab.compare.Run, "_ask", ask)
    arguments = ["--peers", "kvist,vLLM bf16", "--sections", "lengths", "--lengths", "16,32", "--rounds"]
    for rounds in ("1", "2"):
        options = lab.compare.parser().parse_args([*arguments, rounds, "--results", str(tmp_path / "results.json")])
        lab.compare.Run(options, lab.compare.chosen(options)).measure()
    both = ("kvist", "vLLM bf16")
    expected = [*((name, f"length {size} /0".replace(" /", "/")) for size in (16, 32) for name in both)]
    assert asked == [*expected, *((name, "length 16/1") for name in both)]
    found = lab.compare.load(tmp_path / "results.json")["peers"]["kvist"]
    assert len(found["samples"]["length 16"]) == 2
    assert found["errors"] == {"length 32": "too long"}


def test_a_peer_that_is_not_there_says_what_to_do(lab: SimpleNamespace, tmp_path: Path) -> None:
    peer = lab.roster.roster(tmp_path / "no.gguf")["llama.cpp Q4_1"]
    assert "make peers" in lab.compare.missing(peer)


def test_what_is_converted_is_what_the_roster_asks_for(lab: SimpleNamespace) -> None:
    wanted = {peer.model.name for peer in lab.roster.roster().values() if peer.model.parent == lab.roster.MODELS}
    assert wanted == set(lab.install.EXPORTS)
