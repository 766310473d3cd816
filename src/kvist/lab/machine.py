"""What a measurement was made on: processor, caches, memory and versions. A number without it means little."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from kvist.kernels.ceiling import last_level_cache_bytes

_PACKAGES = ("kvist", "numpy", "numba", "llvmlite")


@dataclass(frozen=True)
class Machine:
    """``processors`` may run this process; ``last_level_cache_bytes`` is the biggest cache that a core sees."""

    processor: str
    processors: int
    last_level_cache_bytes: int
    memory_bytes: int
    system: str
    versions: dict[str, str]

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{self.processor}, {self.processors} processors, {self.system}; {versions}"


def this_machine(root: Path = Path("/")) -> Machine:
    """Return the facts of this machine; ``root`` is where proc is found (tests give a directory)."""
    return Machine(
        processor=_processor(root),
        processors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        last_level_cache_bytes=last_level_cache_bytes(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions={"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
    )


def _processor(root: Path) -> str:
    for line in _text(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return " ".join(value.split())
    return platform.processor() or platform.machine()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
