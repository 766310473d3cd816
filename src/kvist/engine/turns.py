"""Threads that wait for answers of one engine take turns at stepping it: whoever waits steps, unless somebody does."""

from __future__ import annotations

import threading
from collections.abc import Callable


def _nothing() -> None:
    pass


class Turns:
    """``step`` is called by one thread at a time; all of those that wait look again after each."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step
        self._changed = threading.Condition()
        self._is_stepping = False

    def wait(self, is_over: Callable[[], bool], before_step: Callable[[], object] = _nothing) -> None:
        """Step, or wait while another thread does, until ``is_over``; ``before_step`` is called between two steps."""
        while not is_over():
            before_step()
            if is_over():
                return
            with self._changed:
                if self._is_stepping:
                    self._changed.wait()
                    continue
                self._is_stepping = True
            try:
                if not is_over():
                    self._step()
            finally:
                with self._changed:
                    self._is_stepping = False
                    self._changed.notify_all()
