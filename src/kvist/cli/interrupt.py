"""Ctrl-C that ends an answer between two steps of the model, so that nothing is left half done."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Interrupt:
    """While entered, the first Ctrl-C only sets ``is_set()``; a second one raises KeyboardInterrupt as usual."""

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
