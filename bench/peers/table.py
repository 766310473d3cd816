"""Write docs/benchmarks.md from the results: medians, and in brackets how many times as good as kvist each one is.

    python bench/peers/table.py [--results FILE] [--into FILE]

Needs the standard library only, and no peer. A cell says what was measured, "no" where a peer lacks the thing, and why
where it couldn't be measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roster import KVIST, ROOT, Peer, roster

RESULTS = Path(__file__).with_name("results.json")
ELSEWHERE = sorted(RESULTS.parent.glob("results-*.json"))
"""Results of other machines, each with a table of its own."""
PAGE = ROOT / "docs" / "benchmarks.md"
LENGTHS, USERS = (128, 512, 2_048, 7_000), (1, 4, 16, 32)

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One figure of all peers: ``key`` of the results, ``field`` of its samples; ``is_rate``: more is better."""

    title: str
    key: str
    field: str
    show: Callable[[float], str]
    is_rate: bool = False


def milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:,.0f} ms" if value >= 99.5 else f"{value:.1f} ms"


def seconds(value: float) -> str:
    return f"{value:.1f} s"


def rate(value: float) -> str:
    return f"{value:,.0f}/s"


def speed_rows() -> list[Row]:
    """Return the rows that are medians of samples, in the order of the table."""
    return [
        *(Row(f"TTFT, {n:,} tokens", f"length {n}", "ttft_s", milliseconds) for n in LENGTHS),
        *(Row(f"TPOT after {n:,} tokens", f"length {n}", "tpot_s", milliseconds) for n in LENGTHS),
        *(Row(f"{n} user{'s' * (n > 1)}, tokens", f"users {n}", "tokens_per_s", rate, is_rate=True) for n in USERS),
        Row("TTFT, 2,000 tokens cached + 32", "prefix 0", "cached_ttft_s", milliseconds),
        Row("the same, nothing cached", "prefix 0", "cold_ttft_s", milliseconds),
        Row("process to first token", "cold 0", "s", seconds),
    ]


def median(results: Results, name: str, key: str, field: str) -> float | None:
    """Return the median of a peer's samples; None where there are none."""
    samples = results["peers"].get(name, {}).get("samples", {}).get(key, [])
    return statistics.median(sample[field] for sample in samples) if samples else None


def ratio(value: float, of_kvist: float | None, *, is_rate: bool) -> str:
    """Say how many times as good as kvist's a value is, in brackets; above 1 the peer wins."""
    if not of_kvist or not value:
        return ""
    times = value / of_kvist if is_rate else of_kvist / value
    return f" ({times:.2f})"


def cell(results: Results, row: Row, name: str) -> str:
    """Return a peer's cell: its median with the ratio, in bold where it beats kvist; or why there is none."""
    value = median(results, name, row.key, row.field)
    own = results["peers"].get(name, {})
    if value is None:
        return own.get("missing") or own.get("errors", {}).get(row.key) or "not measured"
    text = row.show(value)
    if name == KVIST:
        return text
    of_kvist = median(results, KVIST, row.key, row.field)
    text += ratio(value, of_kvist, is_rate=row.is_rate)
    is_won = of_kvist is not None and (value > of_kvist if row.is_rate else value < of_kvist)
    return f"**{text}**" if is_won else text


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; its first column is text, the others are numbers."""
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def speed_table(results: Results, peers: Mapping[str, Peer]) -> str:
    rows = [[row.title, *(cell(results, row, name) for name in peers)] for row in speed_rows()]
    return markdown(["", *peers], rows)


def cache_table(results: Results, peers: Mapping[str, Peer]) -> str:
    """Bytes of a token and the TPOT at 7,000 tokens, in the cache of the table above and in smaller ones."""
    rows = []
    for name, peer in peers.items():
        own = results["peers"].get(name, {})
        for kv in ("default", *peer.quantised):
            about = own.get("about", {}).get(kv, {})
            if not about.get("kv"):
                rows.append([name, kv, "", own.get("missing") or about.get("error") or "not measured"])
                continue
            suffix = "" if kv == "default" else f" {kv}"
            row = Row("", f"length 7000{suffix}", "tpot_s", milliseconds)
            value = median(results, name, row.key, row.field)
            speed = row.show(value) if value is not None else own.get("errors", {}).get(row.key, "not measured")
            rows.append([name, about["kv"], f"{about['kv_bytes']:,.0f}", speed])
        if not peer.quantised:
            rows.append([name, peer.no_quantised, "", "no"])
    return markdown(["", "cache", "bytes a token", "TPOT after 7,000 tokens"], rows)


def install_table(results: Results, peers: Mapping[str, Peer]) -> str:
    """What each is, how large, how long it takes to install, and what it does with prefixes and users."""
    rows = []
    for name, peer in peers.items():
        own = results["peers"].get(name, {})
        about, install = own.get("about", {}).get("default", {}), own.get("install", {})
        size = f"{install['bytes'] / 1e6:,.0f} MB" if "bytes" in install else own.get("missing") or "not measured"
        time = install.get("note") or (f"{install['seconds']:,.0f} s" if "seconds" in install else "not measured")
        version = about.get("version", "")
        rows.append([name, version, peer.weights, size, time, peer.prefix, peer.users])
    return markdown(["", "version", "weights", "installed", "install time", "a prefix's reuse", "many users"], rows)


def wins(results: Results, peers: Mapping[str, Peer]) -> str:
    """Say in one sentence a peer where it beats kvist, and that it doesn't where it doesn't."""
    lines = []
    for name in peers:
        if name == KVIST:
            continue
        won = [row.title for row in speed_rows() if cell(results, row, name).startswith("**")]
        measured = sum(median(results, name, row.key, row.field) is not None for row in speed_rows())
        if measured:
            what = "; ".join(won) if won else "nowhere"
            lines.append(f"* {name} wins {len(won)} of {measured} rows: {what}.")
        else:
            lines.append(f"* {name} wasn't measured: {results['peers'].get(name, {}).get('missing') or 'not asked'}.")
    return "\n".join(lines)


PAGE_TEXT = """# Beside other engines

The same model, SmolLM2-135M-Instruct, on the same machine with the same threads, by what people would use instead.
Each peer is measured by a small script in an environment of its own (`bench/peers/`), in turns: a round asks everybody
for the same figure before the next one begins. All get the same made-up token ids, answer greedily and ignore end
tokens; the clock stands outside. This page is written by `bench/peers/table.py` from `bench/peers/results.json`.

{machine}

A cell is the median of {rounds}; in brackets stands how many times as good as kvist it is, and where that is above 1,
the peer wins and the cell is **bold**. TTFT is the time to the first token behind a prompt that nobody has seen before,
TPOT the mean time of each of the {decoded} tokens after it. Users bring 128 tokens of prompt each and get 128; counted
are generated tokens a second of the whole run, prompts included. A cold start is from the start of a process to one
token behind a prompt of 8, with files in memory and, for kvist, its kernels compiled in an earlier run. *Not measured*
stands where a sample's turn didn't come.
{note}

{speed}

## Where a peer wins

{wins}
{elsewhere}
## The cache

{cache}

The tables above are measured with the first line of each. Bytes are what the
engine says its blocks take, or values times bits where it says nothing.

## What each is

{install}

The weights all come from one file, a GGUF in Q4_1 with its embedding in 8 bits, which kvist, llama.cpp and OpenVINO
read. For the others it is converted by `bench/peers/export.py`: to bf16 by transformers, and from there to int4 by
OpenVINO's and onnxruntime's own tools. So everybody computes about the same, but what was quantised twice is no
measure of quality. transformers and vLLM run in bf16, for which PyTorch has to convert where a processor has neither
avx512_bf16 nor amx_bf16: on a Xeon without them (Ice Lake) they took two to four times as long as on an EPYC with the
former (Zen 4). kvist uses no AMX (docs/log.md says why). vLLM runs without its compiler (`enforce_eager`). Its
environment is what its package asks for, less three packages for pictures and sound. Install times were taken on a
machine with other work on it, over a network: read them as small, middling or large. llama.cpp's is that of a wheel
which pip had compiled before; that takes minutes to an hour.

## Do it yourself

```console
$ make peers
$ .venv/bin/python bench/peers/compare.py
$ .venv/bin/python bench/peers/table.py
```

`make peers` needs room for the environments and some minutes of network; it compiles llama.cpp. A peer that can't be
installed is told, and its cells say so. `compare.py --peers kvist --again` measures one column anew.
"""


ELSEWHERE_TEXT = """
## {title}

{machine}
{note}

{speed}

{wins}
"""


def elsewhere(results: Results, peers: Mapping[str, Peer]) -> str:
    """Return the section about another machine, with those who were measured there."""
    here = {name: peer for name, peer in peers.items() if results["peers"].get(name, {}).get("samples")}
    return ELSEWHERE_TEXT.format(
        title=results["title"],
        machine=f"{machine(results)} A cell is the median of {rounds(results)}.",
        note="\n" + results["note"] if results.get("note") else "",
        speed=speed_table(results, here),
        wins=wins(results, here),
    )


def machine(results: Results) -> str:
    """Return the sentence about the machine."""
    facts, ceiling = results["machine"], results["ceiling"]
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return (
        f"{facts['processor']}, {facts['processors']} processors, {facts['memory_bytes'] / 2**30:.0f} GiB, "
        f"{facts['system']}; {results['threads']} threads; {versions}; {results['date']}. Best ceiling of the runs: "
        f"{ceiling['read_bandwidth'] / 1e9:.0f} GB/s read, {ceiling['int_dot_peak'] / 1e12:.2f} TOP/s of integer dots."
    )


def rounds(results: Results) -> str:
    """Say how many samples a cell has: one number, or from the fewest to the most."""
    counts = {len(samples) for own in results["peers"].values() for samples in own.get("samples", {}).values()}
    if not counts:
        return "no rounds"
    low, high = min(counts), max(counts)
    return f"{low} to {high} rounds (`bench/peers` has each)" if low < high else f"{low} round{'s' * (low > 1)}"


def page(results: Results, peers: Mapping[str, Peer], others: Sequence[Results] = ()) -> str:
    """Return the whole page; ``others`` are results of other machines."""
    return PAGE_TEXT.format(
        machine=machine(results),
        rounds=rounds(results),
        decoded=results["decoded"],
        note="\n" + results["note"] + "\n" if results.get("note") else "",
        speed=speed_table(results, peers),
        wins=wins(results, peers),
        elsewhere="".join(elsewhere(other, peers) for other in others),
        cache=cache_table(results, peers),
        install=install_table(results, peers),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--into", type=Path, default=PAGE)
    asked = parser.parse_args()
    results, *others = (json.loads(path.read_text(encoding="utf-8")) for path in (asked.results, *ELSEWHERE))
    text = page(results, roster(), others)
    asked.into.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
