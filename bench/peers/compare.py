"""Measure the peers in turns: each round asks every peer for the same figure before the next round begins.

    python bench/peers/compare.py                         all that isn't in the results yet
    python bench/peers/compare.py --peers kvist --again   kvist's column anew

What is measured is written after each sample, so that a run may be broken off and taken up: it does the rounds that are
missing. Run it with kvist's own Python. ``table.py`` makes docs/benchmarks.md of the results.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer import DECODED
from roster import ROOT, Peer, roster

from kvist.lab.ceiling import Ceiling, MachineProbe
from kvist.lab.machine import this_machine

RESULTS = Path(__file__).with_name("results.json")
LENGTHS, USERS = (128, 512, 2_048, 7_000), (1, 4, 16, 32)
LONGEST = 7_000
SECTIONS = ("lengths", "users", "prefix", "quantised", "cold")

Results = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One row's measurement: ``measure`` and ``value`` go to the peer's script, which is loaded with ``kv``."""

    measure: str
    value: int = 0
    kv: str = "default"

    @property
    def key(self) -> str:
        """What the results call it."""
        return f"{self.measure} {self.value}" if self.kv == "default" else f"{self.measure} {self.value} {self.kv}"


def figures(peer: Peer, sections: list[str], lengths: list[int], users: list[int]) -> list[Figure]:
    """Return what ``sections`` measure of a peer, short things first."""
    by_section = {
        "lengths": [Figure("length", length) for length in lengths],
        "users": [Figure("users", count) for count in users],
        "prefix": [Figure("prefix")],
        "quantised": [Figure("length", LONGEST, kv) for kv in peer.quantised],
        "cold": [Figure("cold")],
    }
    return [figure for section in sections for figure in by_section[section]]


class Worker:
    """A peer's script under way, loaded once for all that is asked of it."""

    def __init__(self, peer: Peer, kv: str, threads: int) -> None:
        self.process = subprocess.Popen(
            [*command(peer, kv, threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, **request: object) -> dict[str, Any]:
        """Return the answer to one request; ``{"error": WHY}`` where the script has died."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else {"error": f"its script ended with {self.process.wait()}"}

    @property
    def cpu_s(self) -> float:
        """Processor seconds that the script has taken so far; 0 of one that has died."""
        with suppress(FileNotFoundError):
            fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()


def busy_s() -> float:
    """Return the processor seconds that everybody has taken since the machine started."""
    fields = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()
    user, nice, system, _idle, _waiting, *more = map(int, fields[1:9])
    return (user + nice + system + sum(more)) / os.sysconf("SC_CLK_TCK")


def command(peer: Peer, kv: str, threads: int) -> list[str]:
    script = Path(__file__).with_name(peer.script)
    return [str(peer.python), str(script), str(peer.model), "--threads", str(threads), "--kv", kv]


def cold_start(peer: Peer, threads: int) -> dict[str, Any]:
    """Return the seconds from the start of a process to its first token; all of its files have been read before."""
    start = time.perf_counter()
    done = subprocess.run([*command(peer, "default", threads), "--once"], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    return {"s": seconds} if done.returncode == 0 else {"error": f"its script ended with {done.returncode}"}


@contextmanager
def edited(path: Path) -> Iterator[Results]:
    """Yield the results to be changed, while nobody else writes them."""
    with path.with_suffix(".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = load(path)
        yield results
        path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load(path: Path) -> Results:
    if not path.exists():
        return {"peers": {}}
    return dict(json.loads(path.read_text(encoding="utf-8")))


def of_peer(results: Results, peer: Peer) -> Results:
    """Return what is known of a peer, made where nothing is."""
    return results["peers"].setdefault(peer.name, {"about": {}, "install": {}, "samples": {}, "errors": {}})


def missing(peer: Peer) -> str:
    """Say why a peer can't be measured here, or nothing."""
    if not peer.python.exists():
        return f"{peer.environment} isn't there: make peers"
    if not peer.model.exists():
        return f"{peer.model} isn't there: make peers"
    return ""


class Run:
    """One run over peers and figures, which keeps the scripts loaded until it ends."""

    def __init__(self, options: argparse.Namespace, peers: list[Peer]) -> None:
        self.options, self.peers = options, peers
        self.started = time.perf_counter()
        self._stack = ExitStack()
        self._workers: dict[tuple[str, str], Worker] = {}

    def measure(self) -> None:
        """Do all rounds, then end the scripts."""
        with self._stack:
            for figure in self._figures():
                for number in range(self.options.rounds):
                    for peer in self.peers:
                        if figure in self._of(peer):
                            self._sample(peer, figure, number)

    def _of(self, peer: Peer) -> list[Figure]:
        return figures(peer, self.options.sections, self.options.lengths, self.options.users)

    def _figures(self) -> list[Figure]:
        return list(dict.fromkeys(figure for peer in self.peers for figure in self._of(peer)))

    def _sample(self, peer: Peer, figure: Figure, number: int) -> None:
        known = of_peer(load(self.options.results), peer)
        if figure.key in known["errors"] or len(known["samples"].get(figure.key, [])) > number:
            return
        if time.perf_counter() - self.started > self.options.for_s:
            return
        start = time.perf_counter()
        sample = self._ask(peer, figure, number)
        print(f"{peer.name}: {figure.key}, round {number}: {sample} ({time.perf_counter() - start:.1f} s)", flush=True)
        if sample.get("others", 0) > self.options.others:
            return  # the next run does this round again
        with edited(self.options.results) as results:
            own = of_peer(results, peer)
            if "error" in sample:
                own["errors"][figure.key] = sample["error"]
            else:
                own["samples"].setdefault(figure.key, []).append(sample)

    def _ask(self, peer: Peer, figure: Figure, number: int) -> dict[str, Any]:
        if figure.measure == "cold":
            return cold_start(peer, self.options.threads)
        worker, seed = self._worker(peer, figure.kv), 1 + 10 * number + 1_000 * figure.value
        start, busy, own = time.perf_counter(), busy_s(), worker.cpu_s
        sample = worker.ask(measure=figure.measure, value=figure.value, seed=seed)
        if "error" in sample:
            return sample
        others = (busy_s() - busy - (worker.cpu_s - own)) / (time.perf_counter() - start) / self.options.threads
        return sample | {"others": round(max(others, 0.0), 3)}

    def _worker(self, peer: Peer, kv: str) -> Worker:
        if (peer.name, kv) not in self._workers:
            worker = Worker(peer, kv, self.options.threads)
            self._stack.callback(worker.close)
            self._workers[peer.name, kv] = worker
            about = worker.ask(measure="about")
            with edited(self.options.results) as results:
                of_peer(results, peer)["about"][kv] = about
        return self._workers[peer.name, kv]


def forget(path: Path, peers: list[Peer], keep: Callable[[str], bool]) -> None:
    """Drop the samples and errors of some peers whose keys aren't to be kept."""
    with edited(path) as results:
        for peer in peers:
            own = of_peer(results, peer)
            for kind in ("samples", "errors"):
                own[kind] = {key: value for key, value in own[kind].items() if keep(key)}


def note_machine(path: Path, peers: list[Peer], threads: int) -> None:
    """Write down the machine, its ceiling, how large each environment is and who can't be measured."""
    ceiling = MachineProbe(threads).measure()
    with edited(path) as results:
        machine = this_machine().as_json()
        if results.get("machine", {}).get("processor") == machine["processor"]:  # what disturbs only ever lowers it
            before = results["ceiling"]
            ceiling = ceiling.best_of(
                Ceiling(*(before[key] for key in ("read_bandwidth", "int_dot_peak", "matmul_rate")))
            )
        results |= {"machine": machine, "ceiling": ceiling.as_json(), "threads": threads}
        results |= {"date": time.strftime("%Y-%m-%d", time.gmtime()), "decoded": DECODED}
        for peer in peers:
            own = of_peer(results, peer)
            own["missing"] = missing(peer)
            if not own["missing"]:
                own["install"] = installed(peer)
    print(f"{this_machine()}\n{ceiling}", flush=True)


def installed(peer: Peer) -> dict[str, Any]:
    """Return an environment's bytes and how long it took, where ``install.py`` wrote that down."""
    root = ROOT / peer.environment
    sizes = (path.lstat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    stamp = root / "peer.json"
    return {"bytes": sum(sizes)} | (json.loads(stamp.read_text(encoding="utf-8")) if stamp.exists() else {})


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--peers", type=names, help="names of roster.py, comma between; by default all")
    made.add_argument("--sections", type=names, default=list(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    made.add_argument("--lengths", type=numbers, default=list(LENGTHS))
    made.add_argument("--users", type=numbers, default=list(USERS))
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--for-s", type=float, default=float("inf"), help="begin no sample after so many seconds")
    made.add_argument(
        "--others", type=float, default=0.15, help="drop samples in which others took more of the threads"
    )
    made.add_argument("--again", action="store_true", help="forget what these peers and sections had")
    made.add_argument("--gguf", type=Path, help="the weights, where kvist's .venv doesn't have them")
    made.add_argument("--results", type=Path, default=RESULTS)
    return made


def chosen(options: argparse.Namespace) -> list[Peer]:
    """Return the peers that were asked for; SystemExit names the known ones where one isn't."""
    known = roster(options.gguf)
    unknown = [name for name in options.peers or () if name not in known]
    if unknown:
        raise SystemExit(f"unknown peer {unknown[0]!r}; known: {', '.join(known)}")
    wrong = [name for name in options.sections if name not in SECTIONS]
    if wrong:
        raise SystemExit(f"unknown section {wrong[0]!r}; known: {', '.join(SECTIONS)}")
    return [known[name] for name in options.peers or known]


def main() -> None:
    options = parser().parse_args()
    peers = chosen(options)
    if options.again:
        asked = {
            figure.key for peer in peers for figure in figures(peer, options.sections, options.lengths, options.users)
        }
        forget(options.results, peers, lambda key: key not in asked)
    note_machine(options.results, peers, options.threads)
    here = [peer for peer in peers if not missing(peer)]
    for peer in peers:
        if missing(peer):
            print(f"{peer.name}: {missing(peer)}", file=sys.stderr)
    Run(options, here).measure()


if __name__ == "__main__":
    main()
