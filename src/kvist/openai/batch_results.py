"""A batch's results, one a line, appended whole: what a run wrote before it was broken off counts for the next one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from kvist.errors import KvistError, RequestError
from kvist.openai.batch_lines import MAX_LINE_BYTES, short_hash

if TYPE_CHECKING:
    from typing_extensions import Self


class ResultFile:
    """The file while one run has it open.

    ``num_repaired`` is 1 where the last line was torn and has been cut off. Raises RequestError where it can't be
    written, is no file of results, or another run has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_repaired = 0
        self._done: set[int] = set()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise RequestError(f'can\'t write the results into "{path}": {error.strerror}') from None
        try:
            _check_file(self._file, path)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError:
            os.close(self._file)
            raise RequestError(f'another run is writing into "{path}"; give another file to -o') from None
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._file)

    def has(self, line_id: str) -> bool:
        """Whether a line of requests has a result."""
        return short_hash(line_id) in self._done

    def append(self, result: dict[str, Any]) -> None:
        """Write a line, all of it or, where the disk is full, none."""
        data = json.dumps(result, allow_nan=False).encode() + b"\n"
        size = os.lseek(self._file, 0, os.SEEK_END)
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            os.ftruncate(self._file, size)
            raise KvistError(f'can\'t write into "{self.path}": {error.strerror}') from None

    def _read(self) -> None:
        """Note what is done, and cut off a last line that was torn; nothing is touched in a file of something else."""
        size = number = 0
        with os.fdopen(os.dup(self._file), "rb") as stream:
            stream.seek(0)
            while data := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                num_bytes, is_whole = _skip_line(stream, data)
                name = _id_of(data, is_whole=is_whole)
                if name is None and not is_whole and _begins_like_a_result(data):
                    os.ftruncate(self._file, size)
                    self.num_repaired = 1
                    return
                if name is None:
                    raise RequestError(
                        f'line {number} of "{self.path}" is no result of a batch; give another file to -o'
                    )
                self._done.add(short_hash(name))
                size += num_bytes
        if size and not _ends_with_line(self._file, size):
            os.write(self._file, b"\n")


def _check_file(file: int, path: Path) -> None:
    """Raise RequestError where results can't be appended one by one, and read again."""
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise RequestError(f'"{path}" is no regular file; results are appended to one, which -o names')
    with contextlib.suppress(OSError):
        if os.path.samestat(status, os.fstat(1)):
            raise RequestError(f'"{path}" is where this command prints; give -o a file of its own')


def _skip_line(stream: BinaryIO, data: bytes) -> tuple[int, bool]:
    """Read on to the end of the line that begins with ``data``; return its bytes, and whether it has an end."""
    num_bytes = len(data)
    while len(data) > MAX_LINE_BYTES and not data.endswith(b"\n"):
        data = stream.readline(MAX_LINE_BYTES + 1)
        num_bytes += len(data)
    return num_bytes, data.endswith(b"\n")


def _ends_with_line(file: int, size: int) -> bool:
    return os.pread(file, 1, size - 1) == b"\n"


_BEGINNING = b'{"id": "batch_req_'
_RESULT = re.compile(re.escape(_BEGINNING) + rb'[0-9a-f]+", "custom_id": ')


def _begins_like_a_result(data: bytes) -> bool:
    return data.startswith(_BEGINNING) or _BEGINNING.startswith(data)


def _id_of(data: bytes, *, is_whole: bool) -> str | None:
    """Return the id of a result; None where the line is none. Of one that is too long to be read its beginning says."""
    if len(data) > MAX_LINE_BYTES:
        found = _RESULT.match(data) if is_whole else None
        return found[0].decode().split('"')[3] if found else None
    try:
        result = json.loads(data)
        name, response = result["id"], result["response"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_result = isinstance(name, str) and name.startswith("batch_req_") and isinstance(response, dict)
    return name if is_result and "custom_id" in result else None
