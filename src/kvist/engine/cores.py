"""How many cores this process may use: the default for ``--threads``.

Two hardware threads of one core share its vector units, so a second thread on a core helps little and delays the
first. Reads Linux's /proc and control groups; elsewhere takes the number of processors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kvist.engine.values import whole_number
from kvist.errors import SpecError

MAX_THREADS = 1024


@dataclass(frozen=True)
class Cores:
    """``num_processors`` may run this process, on ``num_physical`` cores; ``quota`` is a container's limit in cores."""

    num_processors: int
    num_physical: int
    quota: float | None = None

    @property
    def num_usable(self) -> int:
        """Physical cores, fewer where the quota is smaller (rounded up)."""
        if self.quota is None:
            return self.num_physical
        return max(1, min(self.num_physical, -int(-self.quota // 1)))


def usable_cores(root: Path = Path("/"), processors: frozenset[int] | None = None) -> Cores:
    """Return this process's cores. ``root`` and ``processors`` stand in for the machine's own in tests."""
    allowed = _allowed_processors() if processors is None else processors
    cores = {_core_of(blocks, number) for blocks in [_cpuinfo(root)] for number in allowed}
    return Cores(len(allowed), max(1, len(cores)), _quota(root))


def threads_to_use(asked: int | None) -> int:
    """Return the threads to run on: ``asked``, by default this process's cores. Raises SpecError for what can't be."""
    if asked is None:
        return usable_cores().num_usable
    return whole_number("threads", asked, f"from 1 to {MAX_THREADS}", least=1, most=MAX_THREADS, error=SpecError)


def _allowed_processors() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _cpuinfo(root: Path) -> dict[int, dict[str, str]]:
    """The blocks of /proc/cpuinfo by processor number."""
    blocks: dict[int, dict[str, str]] = {}
    for block in _text(root / "proc/cpuinfo").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        facts = {name.strip(): value.strip() for name, _, value in pairs}
        if facts.get("processor", "").isdigit():
            blocks[int(facts["processor"])] = facts
    return blocks


def _core_of(blocks: dict[int, dict[str, str]], processor: int) -> tuple[str, str]:
    """What two hardware threads of one core share; the processor's own number where the system doesn't say."""
    facts = blocks.get(processor, {})
    if "core id" not in facts:
        return ("processor", str(processor))
    return (facts.get("physical id", "0"), facts["core id"])


def _quota(root: Path) -> float | None:
    """Cores' worth of time that the innermost control group grants (cpu.max, or version 1's two files)."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quota, _, period = _text(root / "sys/fs/cgroup" / path.strip("/") / "cpu.max").strip().partition(" ")
        elif "cpu" in controllers.split(","):
            directory = root / "sys/fs/cgroup/cpu" / path.strip("/")
            quota, period = (_text(directory / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        else:
            continue
        if quota.isdigit() and period.isdigit() and int(period):
            return int(quota) / int(period)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
