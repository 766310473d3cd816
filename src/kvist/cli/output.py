"""What all commands have in common: where text and JSON go, and how they end.

With ``--json`` the last line of stdout is one JSON document and everything for people goes to stderr.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec

from kvist.errors import KvistError

EXIT_USER_ERROR = 1
EXIT_INTERRUPTED = 130
P = ParamSpec("P")


class Output:
    """A command's two streams: ``write`` text for people, ``notice`` about it, and ``finish`` with the document."""

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._text = sys.stderr if is_json else sys.stdout
        _replace_unprintable()

    def write(self, text: str) -> None:
        """Show ``text`` at once."""
        self._text.write(text)
        self._text.flush()

    def line(self, text: str = "") -> None:
        """Show ``text`` as a line."""
        self.write(text + "\n")

    def notice(self, text: str) -> None:
        """Show a line beside the text: what was cut, what took how long."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def finish(self, document: dict[str, Any]) -> None:
        """Print ``document`` as the last line, if JSON was asked for."""
        if self._is_json:
            sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
        sys.stdout.flush()


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Make a command end as promised: 1 and a line for the user's error, 130 for Ctrl-C, silence for a closed pipe."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except KvistError as error:
            fail(error)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            _forget_stdout()
            sys.exit(0)
        except MemoryError:
            fail("out of memory; take a smaller model, --context or --kv-budget")
        except OSError as error:
            if error.errno == errno.ENOSPC:
                _forget_stdout()
            fail(f"the system refused: {error}")

    return run


def fail(error: object) -> NoReturn:
    """End the program with one line on stderr and exit code 1."""
    _replace_unprintable()
    sys.stderr.write(error_line(error) + "\n")
    sys.exit(EXIT_USER_ERROR)


def error_line(error: object) -> str:
    """Return what is said about an error, on one line whatever is in it."""
    return f"error: {' '.join(str(error).split())}"


def _forget_stdout() -> None:
    """Point stdout at nothing, so that what is still buffered complains to nobody at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace_unprintable() -> None:
    """Characters that the terminal's encoding lacks become question marks instead of an exception."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
