"""One GGUF file: its header read and checked in milliseconds, its tensors left where they are.

Written for speed and mistrust: the ``gguf`` package takes seconds on a file with a vocabulary, and believes what
the header says. Read here are versions 2 and 3, little-endian. Checked before anything is used: magic, version,
counts, alignment, every type number, that names are unique, that each tensor lies inside the file on its alignment,
fills whole blocks, and shares no byte with another. Knows nothing of models, nor that a model may have several files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.files import TensorInfo, quote, quote_path
from kvist.checkpoint.ggml_types import GGML_TYPES, GIVEN_UP
from kvist.checkpoint.gguf_metadata import Cursor, Metadata
from kvist.checkpoint.mapped import MappedFile
from kvist.errors import CheckpointError, UnsupportedError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_TENSORS = 1 << 20
MAX_TENSOR_NAME_BYTES = 1024
MAX_DIMENSIONS = 4


class GgufPart:
    """A file's header and its bytes.

    Raises CheckpointError where the file is missing, damaged or no GGUF file, UnsupportedError where it is of a
    version or byte order that isn't read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            cursor = Cursor(self._file.buffer, path)
            num_tensors, num_keys = _read_counts(cursor)
            self.metadata = Metadata(cursor, num_keys)
            self._starts: dict[str, int] = {}
            self.tensors: Mapping[str, TensorInfo] = self._read_tensors(cursor, num_tensors)
        except CheckpointError:
            self.close()
            raise

    def _read_tensors(self, cursor: Cursor, num_tensors: int) -> dict[str, TensorInfo]:
        if num_tensors > MAX_TENSORS:
            raise cursor.damaged(f"it claims {num_tensors} tensors, at most {MAX_TENSORS} are allowed")
        infos: dict[str, TensorInfo] = {}
        for number in range(num_tensors):
            info, offset = _read_tensor(cursor, number)
            if info.name in infos:
                raise cursor.damaged(f"tensor {quote(info.name)} occurs twice")
            infos[info.name] = info
            self._starts[info.name] = offset
        alignment = _alignment(cursor, self.metadata)
        data_start = -(-cursor.position // alignment) * alignment
        for name, offset in self._starts.items():
            if offset % alignment:
                raise cursor.damaged(f"tensor {quote(name)} starts at offset {offset}, no multiple of {alignment}")
            self._starts[name] = data_start + offset
        _check_places(cursor, infos, self._starts)
        return infos

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, which the file must have, as a read-only view that outlives ``close``."""
        return self._file.view(self._starts[name], self.tensors[name].num_bytes)

    def close(self) -> None:
        self._file.close()


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    """Read magic and version; return the number of tensors and of keys."""
    shown = quote_path(cursor.path)
    magic = cursor.buffer[:4]
    if magic != MAGIC:
        raise CheckpointError(
            f'{shown} is not a GGUF file: it starts with {quote(ascii(magic)[2:-1])}, not with "GGUF"'
        )
    cursor.skip(4, "the magic")
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version:
        raise UnsupportedError(f"{shown} is a big-endian GGUF file; only little-endian ones are read")
    if version not in VERSIONS:
        raise UnsupportedError(f"{shown} is of GGUF version {version}; supported: {', '.join(map(str, VERSIONS))}")
    return cursor.u64("the number of tensors"), cursor.u64("the number of keys")


def _read_tensor(cursor: Cursor, number: int) -> tuple[TensorInfo, int]:
    """Read one tensor's description; return it with the offset from the start of the data."""
    name = cursor.name(MAX_TENSOR_NAME_BYTES, f"the name of tensor {number}")
    what = f"tensor {quote(name)}"
    num_dimensions = cursor.u32(what)
    if num_dimensions > MAX_DIMENSIONS:
        raise cursor.damaged(f"{what} has {num_dimensions} dimensions, at most {MAX_DIMENSIONS} are allowed")
    sizes = cursor.u64s(num_dimensions, what)  # innermost first
    type_id = cursor.u32(what)
    offset = cursor.u64(what)
    kind = GGML_TYPES.get(type_id)
    if type_id in GIVEN_UP:
        raise UnsupportedError(
            f"{what} of {quote_path(cursor.path)} has type {type_id}, which llama.cpp has given up; convert the model "
            "again"
        )
    if kind is None:
        known = f"0 to {max(GGML_TYPES)} but {', '.join(map(str, sorted(GIVEN_UP)))}"
        raise UnsupportedError(f"{what} of {quote_path(cursor.path)} has the unknown type {type_id}; known: {known}")
    if 0 in sizes or (sizes[0] if sizes else 1) % kind.block_elements:
        raise cursor.damaged(
            f"{what} has sizes {sizes}, its rows aren't whole blocks of {kind.block_elements} ({kind.name})"
        )
    return TensorInfo(name, kind.name, sizes[::-1], kind.num_bytes(math.prod(sizes))), offset


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise cursor.damaged(f"general.alignment is {quote(alignment)}, it has to be a power of two")
    return alignment


def _check_places(cursor: Cursor, infos: Mapping[str, TensorInfo], starts: Mapping[str, int]) -> None:
    """Raise CheckpointError unless each tensor lies in the file and none lies on another."""
    free_from, before = 0, ""
    for name in sorted(starts, key=starts.__getitem__):
        start, num_bytes = starts[name], infos[name].num_bytes
        if start + num_bytes > cursor.num_bytes:
            raise cursor.damaged(
                f"tensor {quote(name)} ends at byte {start + num_bytes}, the file has {cursor.num_bytes}"
            )
        if start < free_from:
            raise cursor.damaged(f"tensors {quote(before)} and {quote(name)} overlap at byte {start}")
        free_from, before = start + num_bytes, name
