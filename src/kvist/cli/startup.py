"""How long it took from the start of the process to its first token, in parts."""

from __future__ import annotations

import os
import time
from pathlib import Path

_LOADED_S = time.perf_counter()


class Startup:
    """A stopwatch that began with the process; ``parts_s`` are seconds by part, and ``total`` up to the last mark."""

    def __init__(self) -> None:
        self._last_s = 0.0
        self.parts_s: dict[str, float] = {}

    def mark(self, part: str) -> None:
        """Count the time since the last mark (or the start of the process) as ``part``."""
        now_s = process_age_s()
        self.parts_s[part] = now_s - self._last_s
        self._last_s = self.parts_s["total"] = now_s

    def move(self, seconds: float, origin: str, part: str) -> None:
        """Count ``seconds`` of ``origin`` as ``part`` instead."""
        moved_s = min(seconds, self.parts_s[origin])
        self.parts_s[origin] -= moved_s
        self.parts_s[part] = self.parts_s.get(part, 0.0) + moved_s


def process_age_s() -> float:
    """Return the seconds since this process was started; since this module was loaded where the system doesn't say.

    Linux notes the start in hundredths of a second.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    except (OSError, AttributeError, ValueError, IndexError):
        return time.perf_counter() - _LOADED_S
