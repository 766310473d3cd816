"""Where a prompt or another text comes from: ``-p``, a file, or stdin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import typer

from kvist.errors import RequestError

MAX_PROMPT_BYTES = 64 * 2**20


def read_prompt(text: str | None, file: str | None) -> str:
    """Return the prompt. From a file (``-``: stdin) or stdin, one newline at its end is left out.

    Raises RequestError where it can't be read or isn't UTF-8.
    """
    if text is not None and file is not None:
        raise typer.BadParameter("give either -p or --prompt-file, not both")
    if text is not None:
        return text
    if file is None and sys.stdin.isatty():
        raise typer.BadParameter("no prompt; give -p TEXT, --prompt-file FILE, or pipe one in")
    return read_text(file or "-", "prompt")


def read_text(file: str, what: str = "text") -> str:
    """Return the file's text (``-``: stdin) without one newline at its end; ``what`` it is says an error.

    Raises RequestError where it can't be read or isn't UTF-8.
    """
    if file == "-":
        return _decoded(sys.stdin.buffer, f"the {what} on stdin")
    try:
        with Path(file).open("rb") as stream:
            return _decoded(stream, f'the {what} file "{file}"')
    except OSError as error:
        raise RequestError(f'can\'t read the {what} file "{file}": {error.strerror}') from None


def _decoded(stream: BinaryIO, what: str) -> str:
    data = stream.read(MAX_PROMPT_BYTES + 1)
    if len(data) > MAX_PROMPT_BYTES:
        raise RequestError(f"{what} is longer than {MAX_PROMPT_BYTES} bytes, more than any context holds; shorten it")
    return decode_utf8(data, what).removesuffix("\n").removesuffix("\r")


def decode_utf8(data: bytes, what: str) -> str:
    """Return ``data`` as text. Raises RequestError naming the first byte that isn't UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02X} at offset {error.start}"
        raise RequestError(f"{what} isn't valid UTF-8 ({found}); convert it to UTF-8 first") from None
