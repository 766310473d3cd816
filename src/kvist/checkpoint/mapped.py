"""A regular file in memory, mapped and never written.

Knows nothing of formats. Symbolic links are followed (Hugging Face's cache is made of them), but what they
lead to must be a regular file: a pipe, a device or a directory is refused before it is opened. A file that
another program shortens while it is mapped is beyond what can be guarded here: the system ends the process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.disk import reason, regular_file_bytes
from kvist.checkpoint.files import quote_path
from kvist.errors import CheckpointError


class MappedFile:
    """The bytes of ``path``: ``buffer`` for parsing, ``view`` for arrays. Raises CheckpointError if it can't be had.

    An empty file can't be mapped and is refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes = regular_file_bytes(path)
        if not self.num_bytes:
            raise CheckpointError(f"{quote_path(path)} is empty; fetch it again")
        try:
            with path.open("rb") as file:
                self.num_bytes = os.fstat(file.fileno()).st_size
                self.buffer = mmap.mmap(file.fileno(), self.num_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError, OverflowError) as error:
            raise CheckpointError(f"can't read {quote_path(path)}: {reason(error)}") from None
        self._bytes: npt.NDArray[np.uint8] | None = np.frombuffer(self.buffer, dtype=np.uint8)

    def view(self, start: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return ``num_bytes`` bytes from ``start`` on as a read-only view (uint8); it stays valid after ``close``."""
        assert self._bytes is not None, f"{self.path} was read after close()"
        assert 0 <= start <= start + num_bytes <= self.num_bytes, (start, num_bytes, self.num_bytes)
        return self._bytes[start : start + num_bytes]

    def close(self) -> None:
        """Give the map back, or leave that to the last view of it."""
        self._bytes = None
        with contextlib.suppress(BufferError):  # a view that was given out still needs the map; it goes with the last
            self.buffer.close()
