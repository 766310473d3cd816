"""The key-value part of a GGUF header: located when the file is opened, decoded when asked for.

A vocabulary is a hundred thousand strings; making an object of each takes longer than loading the weights.
Here an array of strings is only walked, length by length, to find its end (it has no index), and arrays of
numbers are skipped. Every count and length is held against the bytes that are left before anything is done
with it, and the strings of all arrays together are limited, so a damaged file costs neither memory nor time.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Values are little-endian. Arrays of
arrays, which the format allows and no program writes, are refused.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np

from kvist.checkpoint.files import quote, quote_path
from kvist.errors import CheckpointError

MAX_KEYS = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1
MAX_TEXT_BYTES = 64 << 20
MAX_ARRAY_STRINGS = 1 << 22
"""Strings in all arrays of one file. The largest vocabularies have a quarter of a million, and as many merges."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", _BOOL: "<B", 10: "<Q", 11: "<q", 12: "<d"}
_FORMATS = {type_id: struct.Struct(code) for type_id, code in _SCALARS.items()}
_DTYPES = {type_id: np.dtype(code) for type_id, code in _SCALARS.items()}


class Cursor:
    """A place in a file's bytes that only moves forward, and never past the end."""

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self.buffer = buffer
        self.path = path
        self.position = 0
        self.num_bytes = len(buffer)

    @property
    def num_left(self) -> int:
        return self.num_bytes - self.position

    def damaged(self, what: str) -> CheckpointError:
        """Return the error to raise for a file that contradicts itself."""
        return CheckpointError(f"{quote_path(self.path)} is damaged or cut short: {what}; fetch it again")

    def skip(self, num_bytes: int, what: str) -> int:
        """Move on by ``num_bytes`` and return where the cursor was."""
        start = self.position
        if num_bytes > self.num_left:
            raise self.damaged(f"{what} at byte {start} takes {num_bytes} bytes, the file has {self.num_left} left")
        self.position = start + num_bytes
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.buffer, self.skip(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.buffer, self.skip(8, what))[0]
        return value

    def u64s(self, count: int, what: str) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}Q", self.buffer, self.skip(8 * count, what))

    def name(self, max_bytes: int, what: str) -> str:
        """Read a string that has to be short and valid UTF-8."""
        length = self.u64(what)
        if length > max_bytes:
            raise self.damaged(
                f"{what} at byte {self.position} is {length} bytes long, at most {max_bytes} are allowed"
            )
        start = self.skip(length, what)
        try:
            return self.buffer[start : start + length].decode()
        except UnicodeDecodeError:
            raise self.damaged(f"{what} at byte {start} isn't UTF-8") from None


class StringArray(Sequence[str]):
    """An array of strings in the file; iterating decodes one after the other, an index decodes all and keeps them.

    Raises CheckpointError, naming the key, where a string is absurdly long or isn't UTF-8.
    """

    def __init__(self, cursor: Cursor, key: str, start: int, count: int) -> None:
        self._cursor = cursor
        self._key = key
        self._start = start
        self._count = count

    def __repr__(self) -> str:
        return f"<{self._count} strings>"

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        buffer, position, length_at = self._cursor.buffer, self._start, _U64.unpack_from
        for _ in range(self._count):
            start = position + 8
            position = start + length_at(buffer, position)[0]
            if position - start > MAX_TEXT_BYTES:
                raise self._damaged(start, f"has {position - start} bytes, at most {MAX_TEXT_BYTES} are allowed")
            try:
                yield buffer[start:position].decode()
            except UnicodeDecodeError:
                raise self._damaged(start, "isn't UTF-8") from None

    def _damaged(self, start: int, what: str) -> CheckpointError:
        return self._cursor.damaged(f"a string of {quote(self._key)} at byte {start} {what}")

    @cached_property
    def _values(self) -> list[str]:
        return list(self)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._values[index]


class Metadata(Mapping[str, object]):
    """Keys in file order, to bool, int, float, str, StringArray, or a read-only NumPy array of numbers.

    Single values are plain Python; arrays of numbers are views of the file (not necessarily aligned), of bools
    a copy. Only keys are checked to be UTF-8 at the start: a broken text raises when it is asked for.
    """

    def __init__(self, cursor: Cursor, num_keys: int) -> None:
        if num_keys > MAX_KEYS:
            raise cursor.damaged(f"it claims {num_keys} keys, at most {MAX_KEYS} are allowed")
        self._cursor = cursor
        self._places: dict[str, tuple[int, int, int | None]] = {}  # type, start, elements (None: no array)
        self._num_strings = 0
        for number in range(num_keys):
            key = cursor.name(MAX_KEY_BYTES, f"the name of key {number}")
            if key in self._places:
                raise cursor.damaged(f"key {quote(key)} occurs twice")
            self._places[key] = self._locate(key)

    def _locate(self, key: str) -> tuple[int, int, int | None]:
        """Move the cursor past one value and return what and where it is."""
        cursor, what = self._cursor, f"the value of {quote(key)}"
        type_id = cursor.u32(what)
        if type_id == _STRING:
            start = cursor.position
            self._skip_strings(1, what)
            return type_id, start, None
        if type_id != _ARRAY:
            return type_id, cursor.skip(self._scalar_bytes(type_id, what), what), None
        element_type = cursor.u32(what)
        count = cursor.u64(what)
        start = cursor.position
        if element_type == _STRING:
            self._num_strings += count
            if self._num_strings > MAX_ARRAY_STRINGS:
                raise cursor.damaged(
                    f"{what} brings its strings to {self._num_strings}, at most {MAX_ARRAY_STRINGS} are allowed"
                )
            self._skip_strings(count, what)
        elif element_type == _ARRAY:
            raise cursor.damaged(f"{what} is an array of arrays, which no program writes")
        else:
            cursor.skip(count * self._scalar_bytes(element_type, what), what)
        return element_type, start, count

    def _scalar_bytes(self, type_id: int, what: str) -> int:
        if type_id not in _FORMATS:
            raise self._cursor.damaged(f"{what} has the unknown type {type_id}")
        return _FORMATS[type_id].size

    def _skip_strings(self, count: int, what: str) -> None:
        """Walk ``count`` strings. This is the loop that decides how fast a file opens: 0.1 µs a string."""
        cursor = self._cursor
        if 8 * count > cursor.num_left:
            raise cursor.damaged(f"{what} claims {count} strings, the file has {cursor.num_left} bytes left")
        buffer, position, length_at, last = cursor.buffer, cursor.position, _U64.unpack_from, cursor.num_bytes - 8
        for _ in range(count):
            if position > last:
                raise cursor.damaged(f"{what} ends behind the end of the file")
            position += 8 + length_at(buffer, position)[0]
        cursor.skip(position - cursor.position, what)

    def __getitem__(self, key: str) -> object:
        type_id, start, count = self._places[key]
        if type_id == _STRING:
            if count is not None:
                return StringArray(self._cursor, key, start, count)
            return next(iter(StringArray(self._cursor, key, start, 1)))
        if count is None:
            value: bool | int | float = _FORMATS[type_id].unpack_from(self._cursor.buffer, start)[0]
            return bool(value) if type_id == _BOOL else value
        array = np.frombuffer(self._cursor.buffer, dtype=_DTYPES[type_id], count=count, offset=start)
        return array != 0 if type_id == _BOOL else array

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
