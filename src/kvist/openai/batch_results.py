"""A batch's results, one a line, appended whole: what a run wrote before it was broken off counts for the next one."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

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
        """Note what is done, and cut off a last line that was torn."""
        size = 0
        with os.fdopen(os.dup(self._file), "rb") as stream:
            stream.seek(0)
            number = 0
            while data := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                name = _id_of(data)
                if name is None and len(data) <= MAX_LINE_BYTES and not data.endswith(b"\n"):
                    os.ftruncate(self._file, size)
                    self.num_repaired = 1
                    return
                if name is None:
                    raise RequestError(
                        f'line {number} of "{self.path}" is no result of a batch; give another file to -o'
                    )
                self._done.add(short_hash(name))
                size += len(data)
        if size and not _ends_with_line(self._file, size):
            os.write(self._file, b"\n")


def _ends_with_line(file: int, size: int) -> bool:
    return os.pread(file, 1, size - 1) == b"\n"


def _id_of(data: bytes) -> str | None:
    """Return the id of a result; None where the line is none."""
    try:
        name = json.loads(data)["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return name if isinstance(name, str) else None
