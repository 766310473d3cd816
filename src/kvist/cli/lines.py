"""Lines that a person types, with editing and a history that lasts, or that a pipe delivers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from kvist.cli.prompt import decode_utf8

_HISTORY_LINES = 1000


def typed_lines(prompt: str) -> Iterator[str]:
    """Yield lines from the terminal until Ctrl-D, or from stdin until its end."""
    if not sys.stdin.isatty():
        for number, line in enumerate(sys.stdin.buffer, start=1):
            yield decode_utf8(line, f"line {number} of stdin").rstrip("\r\n")
        return
    readline = _readline()
    while True:
        try:
            line = input(prompt)
        except EOFError:
            sys.stdout.write("\n")
            return
        yield line
        if readline is not None:
            _write_history(readline)


def history_file() -> Path:
    """Where the lines typed so far are kept: below ``$XDG_STATE_HOME``."""
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(state) / "kvist" / "chat_history"


def _readline() -> ModuleType | None:
    """The line editor with the history of earlier chats; None where Python has none."""
    try:
        import readline
    except ImportError:
        return None
    try:
        readline.read_history_file(history_file())
    except (OSError, RuntimeError):  # none yet, unreadable, or no home
        return readline
    return readline


def _write_history(readline: ModuleType) -> None:
    """Keep the history for its owner's eyes; where it can't be written it ends with this chat."""
    try:
        file = history_file()
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.touch(mode=0o600)
        readline.set_history_length(_HISTORY_LINES)
        readline.write_history_file(file)
    except (OSError, RuntimeError):
        return
