"""Ctrl-C, by what is going on: while a model loads it ends the process, while an answer comes it ends the answer."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from kvist.cli.output import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from typing_extensions import Self


class EndsProcess:
    """While entered, Ctrl-C ends the process at once, even in the midst of compiling.

    Python would wait until LLVM returns, seconds later, and lose an exception raised inside one of LLVM's callbacks.
    So a thread waits for the signal's number on a pipe. Nothing is lost: no text is out yet.
    """

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._before)
        os.close(self._writer)
        self._watcher.join()
        os.close(self._reader)

    def _watch(self) -> None:
        while number := os.read(self._reader, 1):
            if number[0] == signal.SIGINT:
                os._exit(EXIT_INTERRUPTED)


class Interrupt:
    """While entered, the first Ctrl-C only sets ``is_set()``, so that an answer ends between two steps of the model.

    A second one raises KeyboardInterrupt as usual.
    """

    def __init__(self) -> None:
        self._count = 0
        self._before: signal._HANDLER = signal.SIG_DFL

    def is_set(self) -> bool:
        return self._count > 0

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:  # started in the background of a script: stays deaf
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
