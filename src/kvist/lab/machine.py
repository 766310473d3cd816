"""What a measurement was made on: processor, caches, memory and versions. A number without it means little."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from kvist.units import parse_bytes

_UNKNOWN_CACHE_BYTES = 32 << 20
_PACKAGES = ("kvist", "numpy", "numba", "llvmlite")


@dataclass(frozen=True)
class Machine:
    """``processors`` may run this process; ``last_level_cache_bytes`` is the biggest cache that one of them sees."""

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
    """Return the facts of this machine; ``root`` is where proc and sys are found (tests give a directory)."""
    return Machine(
        processor=_processor(root),
        processors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        last_level_cache_bytes=_last_level_cache(root),
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


def _last_level_cache(root: Path) -> int:
    """The largest cache of the first processor; 32 MiB where the system doesn't say."""
    sizes = [_text(path).strip() for path in root.glob("sys/devices/system/cpu/cpu0/cache/index*/size")]
    return max((parse_bytes(size + "iB") for size in sizes if size), default=_UNKNOWN_CACHE_BYTES)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
