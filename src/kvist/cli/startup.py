"""How long it took from the start of the process to its first token, in parts."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvist.cli.interrupt import EndsProcess

_LOADED_S = time.perf_counter()
_PATIENCE_S = 1.0


class Startup:
    """A stopwatch that began with the process; ``parts_s`` are seconds by part, and ``total`` up to the last mark."""

    def __init__(self) -> None:
        self._last_s = 0.0
        self.parts_s: dict[str, float] = {}
        self._notice = threading.Timer(_PATIENCE_S, _say_that_it_compiles)
        self._notice.daemon = True

    def mark(self, part: str) -> None:
        """Count the time since the last mark (or the start of the process) as ``part``."""
        now_s = process_age_s()
        self.parts_s[part] = now_s - self._last_s
        self._last_s = self.parts_s["total"] = now_s

    def progress(self, begins: str) -> None:
        """Take what ``LLM`` says of its loading: parts ``load`` and ``compile``, and a word where that takes long."""
        if begins == "kernels":
            self.mark("load")
            self._notice.start()
        elif begins == "ready":
            self._notice.cancel()
            self.mark("compile")


def _say_that_it_compiles() -> None:
    sys.stderr.write("compiling kernels for this model and this processor, once; it takes some seconds ...\n")


@contextmanager
def loading() -> Iterator[None]:
    """While entered, Ctrl-C ends the process; afterwards what was loaded is no longer searched for reference cycles.

    It stays, and with all of Numba in it a search takes 60 ms: so long would everybody wait for a token, now and then.
    """
    with EndsProcess():
        yield
    gc.freeze()


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
