"""A team of threads that runs one program after another.

The caller is the first of them; the others are Python threads that wait on a lock each and call the same compiled
function, which holds no GIL. They start with the first program, and anew in a forked child, where the parent's don't
exist.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from kvist.kernels.interpreter import run
from kvist.kernels.jit import IS_JIT_OFF
from kvist.kernels.layout import ABORT


class Team:
    """``num_threads`` threads, the caller's included. One program at a time: callers take turns by their own lock."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = 1 if IS_JIT_OFF else num_threads
        self._process = -1
        self._locks: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._job: tuple[Any, ...] | None = None

    def run(self, kernels: Any, program: Any, control: Any, table: Any, weights: Any, cache: Any, work: Any) -> None:
        """Run ``program`` to its end, on all threads. ``control`` is this pass's own: nobody else may ever use it."""
        if self._process != os.getpid():
            self._start()
        self._job = job = (kernels, program, control, table, weights, cache, work)
        try:
            for lock in self._locks:
                if lock.locked():
                    lock.release()
            run(kernels, 0, *job[1:])
        except BaseException:
            control[ABORT] = 1
            raise

    def close(self) -> None:
        """End the threads; the next program starts new ones."""
        if self._process == os.getpid():
            self._job = None
            for lock in self._locks:
                if lock.locked():
                    lock.release()
            for thread in self._threads:
                thread.join()
        self._process = -1

    def _start(self) -> None:
        self._process = os.getpid()
        self._locks = [threading.Lock() for _ in range(self.num_threads - 1)]
        for lock in self._locks:
            lock.acquire()
        self._threads = [
            threading.Thread(target=self._work, args=(number, lock), name=f"kvist-{number}", daemon=True)
            for number, lock in enumerate(self._locks, start=1)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, number: int, lock: Any) -> None:
        while True:
            lock.acquire()
            job = self._job
            if job is None:
                return
            run(job[0], number, *job[1:])
