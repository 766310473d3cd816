"""A batch's requests, one a line: read as they are needed, since a file may have millions.

A line is ``{"custom_id": ..., "method": "POST", "url": "/v1/chat/completions", "body": {...}}``. What is wrong with one
is kept with it, for its line among the results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from kvist.errors import KvistError, RequestError
from kvist.openai.fields import Fields

MAX_LINE_BYTES = 64 << 20
_MAX_DIGITS = 100


@dataclass(frozen=True)
class BatchLine:
    """``id`` names the line's content: a line that was changed is another one. ``error`` is what is wrong with it."""

    number: int
    id: str
    custom_id: str | None
    url: str
    body: dict[str, Any]
    error: KvistError | None = None


def read_lines(path: Path) -> Iterator[BatchLine]:
    """Yield the lines that aren't blank. Raises RequestError where the file can't be read, and read again."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise RequestError(
                f'"{path}" is no regular file, and requests are read twice; write them into a file first'
            )
        with path.open("rb") as stream:
            number = 0
            while data := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(data) > MAX_LINE_BYTES:
                    yield _too_long(number, data, stream)
                elif data.strip():
                    yield _line(number, data.strip())
    except OSError as error:
        raise RequestError(f'can\'t read the requests in "{path}": {error.strerror}') from None


def _too_long(number: int, data: bytes, stream: BinaryIO) -> BatchLine:
    digest = blake2b(data, digest_size=12)
    while data and not data.endswith(b"\n"):
        data = stream.readline(MAX_LINE_BYTES + 1)
        digest.update(data)
    error = RequestError(f"the line is longer than {MAX_LINE_BYTES} bytes; shorten it")
    return BatchLine(number, f"batch_req_{digest.hexdigest()}", None, "", {}, error)


def _line(number: int, data: bytes) -> BatchLine:
    name = f"batch_req_{blake2b(data, digest_size=12).hexdigest()}"
    custom_id: str | None = None
    try:
        found = _object(data)
        given = found.get("custom_id")
        custom_id = given if isinstance(given, str) else None
        url, body = _checked(found)
    except KvistError as error:
        return BatchLine(number, name, custom_id, "", {}, error)
    return BatchLine(number, name, custom_id, url, body)


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data, parse_int=_whole_number)
    except RecursionError:
        raise RequestError("the line is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the line is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise RequestError(f"the line must hold an object, got {type(found).__name__}")
    return found


def _whole_number(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _checked(found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return url and body. Raises RequestError for a line that isn't of a batch."""
    fields = Fields(found, "the line")
    fields.check_known(("custom_id", "method", "url", "body"))
    if not fields.text("custom_id"):
        raise RequestError('the line has no "custom_id"')
    method = fields.text("method")
    if method not in (None, "POST"):
        raise RequestError(f'"method" in the line must be "POST", got "{method}"')
    url, body = fields.text("url"), fields.needed("body")
    if url is None:
        raise RequestError('the line has no "url"')
    if not isinstance(body, dict):
        raise RequestError('"body" in the line must be an object')
    return url, body


def count_lines(path: Path) -> int:
    """Return how many lines there are. Raises RequestError where two have the same custom_id."""
    seen: set[int] = set()  # 8 bytes each, so that a million names don't stay in memory
    count = 0
    for line in read_lines(path):
        count += 1
        if line.custom_id is not None:
            key = short_hash(line.custom_id)
            if key in seen:
                raise _duplicate(path, line)
            seen.add(key)
    return count


def _duplicate(path: Path, line: BatchLine) -> RequestError:
    first = next((other.number for other in read_lines(path) if other.custom_id == line.custom_id), line.number)
    return RequestError(
        f'custom_id "{line.custom_id}" stands in lines {first} and {line.number} of "{path}"; each line needs its own'
    )


def short_hash(text: str) -> int:
    """Return 64 bits of a text's hash."""
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
