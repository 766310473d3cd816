"""A few lines that Ctrl-C must not cut in two: what was computed is written down whole or not at all."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Unbroken:
    """While entered, in the main thread, Ctrl-C waits; it raises KeyboardInterrupt at the end.

    Where somebody else handles the signal already nothing is changed: only Python's own handler raises.
    """

    def __init__(self) -> None:
        self._is_on = self._is_noted = False

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        self._is_noted = False
        self._is_on = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._is_on:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_on:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self._is_noted and kind is None:
                raise KeyboardInterrupt

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._is_noted = True
