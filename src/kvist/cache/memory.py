"""How much memory this process has and may still take: the system's free memory, and its container's limit.

Reads Linux's /proc and control groups (version 1 and 2); elsewhere it asks for the physical memory, and says None
where even that isn't told. Nothing is reserved here.
"""

from __future__ import annotations

import os
from pathlib import Path

_UNLIMITED = 1 << 60  # version 1 writes a number near 2**63 where there is no limit


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be taken without swapping or being killed; None where the system doesn't say.

    ``root`` is where proc and sys are found (tests give a directory of their own).
    """
    limits = [_system_available(root), *_control_group_available(root)]
    known = [limit for limit in limits if limit is not None]
    return max(0, min(known)) if known else None


def resident_memory() -> int | None:
    """Return the bytes of memory that this process has in use; None where the system doesn't say."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError, IndexError):
        return None


def _system_available(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _control_group_available(root: Path) -> list[int | None]:
    """One number for each group that holds this process, from its own up to the root of what is mounted."""
    found: list[int | None] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit, usage, inactive = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount, limit = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            usage, inactive = "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        group = mount / path.strip("/")
        for directory in [group, *group.parents]:
            found.append(_group_available(directory, limit, usage, inactive))
            if directory == mount:
                break
    return found


def _group_available(directory: Path, limit: str, usage: str, inactive: str) -> int | None:
    """Limit less usage, where file pages that haven't been used lately don't count: they are dropped when needed."""
    limit_bytes, used_bytes = _number(directory / limit), _number(directory / usage)
    if limit_bytes is None or used_bytes is None or limit_bytes >= _UNLIMITED:
        return None
    droppable = 0
    for line in _lines(directory / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == inactive:
            droppable = int(value)
    return limit_bytes - max(0, used_bytes - droppable)


def _number(path: Path) -> int | None:
    """The number in a one-line file; None where there is no such file or it says "max"."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
