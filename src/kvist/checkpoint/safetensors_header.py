"""The header of a safetensors file: 8 bytes of length, JSON, then the tensors' bytes without a gap.

As strict as the ``safetensors`` package: every tensor's bytes are what its type and shape need, and together they
cover the rest of the file exactly, each byte once. That refuses files that were cut short, and those that hide
something between tensors. Format: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import replace
from pathlib import Path

from kvist.checkpoint.files import TensorInfo, quote, quote_path
from kvist.checkpoint.json_object import parse_json_object
from kvist.errors import CheckpointError, UnsupportedError

MAX_HEADER_BYTES = 100_000_000
MAX_SIZE = (1 << 63) - 1

DTYPE_BITS: dict[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


def read_header(buffer: mmap.mmap, path: Path) -> dict[str, tuple[TensorInfo, int]]:
    """Return each tensor's description and the byte of the file at which it starts; raises CheckpointError.

    A tensor that is stored under another's name, since it is tied to it, is there under both.
    """
    num_bytes = len(buffer)
    if num_bytes < 8:
        raise _damaged(path, f"it has {num_bytes} bytes, its header's length alone takes 8")
    header_bytes: int = struct.unpack_from("<Q", buffer, 0)[0]
    if header_bytes > min(num_bytes - 8, MAX_HEADER_BYTES):
        raise _damaged(
            path, f"it claims a header of {header_bytes} bytes, the file has {num_bytes - 8} after that number"
        )
    data_start = 8 + header_bytes
    data = buffer[8:data_start]
    if not data.startswith(b"{"):
        raise CheckpointError(f"{quote_path(path)} is not a safetensors file: its header doesn't start with {{")
    header = parse_json_object(data, f"the header of {quote_path(path)}", strict=True)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "its __metadata__ isn't an object of texts")
    tensors: dict[str, tuple[TensorInfo, int]] = {}
    for name, entry in header.items():
        info, start = _tensor(path, name, entry)
        tensors[name] = (info, data_start + start)
    _check_cover(path, tensors, data_start, num_bytes)
    for name, kept in metadata.items():  # tied tensors, of which the safetensors package wrote one and noted the others
        if kept in tensors and name not in tensors:
            info, start = tensors[kept]
            tensors[name] = (replace(info, name=name), start)
    return tensors


def _tensor(path: Path, name: str, entry: object) -> tuple[TensorInfo, int]:
    """Check one entry; return it with its start, counted from the end of the header."""
    what = f"tensor {quote(name)}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise _damaged(path, f"{what} must have dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise UnsupportedError(
            f"{what} of {quote_path(path)} has the unknown dtype {quote(dtype)}; known: {', '.join(DTYPE_BITS)}"
        )
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(path, f"{what} must have whole numbers from 0 as shape and two as data_offsets")
    num_bits = bits
    for size in shape:
        num_bits *= size
        if num_bits > MAX_SIZE:
            raise _damaged(path, f"{what} claims an impossible size: shape {quote(shape)}")
    start, end = offsets
    if num_bits % 8 or end - start != num_bits // 8:
        raise _damaged(path, f"{what} has {end - start} bytes, its type and shape need {num_bits / 8:g}")
    return TensorInfo(name, dtype.lower(), tuple(shape), num_bits // 8), start


def _are_sizes(value: object) -> bool:
    """Whether ``value`` is a list of whole numbers that a 63-bit size can be."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= MAX_SIZE for item in value)


def _check_cover(path: Path, tensors: dict[str, tuple[TensorInfo, int]], data_start: int, num_bytes: int) -> None:
    """Raise CheckpointError unless the tensors cover the bytes from ``data_start`` to the file's end, each once."""
    free_from, before = data_start, "the header"
    for info, start in sorted(tensors.values(), key=lambda place: (place[1], place[0].num_bytes)):
        if start != free_from:
            raise _damaged(path, f"tensor {quote(info.name)} starts at byte {start}, {before} ends at {free_from}")
        free_from, before = start + info.num_bytes, f"tensor {quote(info.name)}"
    if free_from != num_bytes:
        raise _damaged(path, f"its header describes {free_from} bytes, the file has {num_bytes}")


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{quote_path(path)} is damaged or cut short: {what}; fetch it again")
