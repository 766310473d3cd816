"""GGUF files written byte by byte, so that a test can put any lie into any place."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALAR_CODES = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "?",
    U64: "Q",
    I64: "q",
    F64: "d",
}


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes, *, length: int | None = None) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return u64(len(data) if length is None else length) + data


def scalar(type_id: int, value: float) -> bytes:
    return u32(type_id) + struct.pack(f"<{SCALAR_CODES[type_id]}", value)


def text(value: str | bytes, *, length: int | None = None) -> bytes:
    return u32(STRING) + string(value, length=length)


def array(type_id: int, elements: Sequence[bytes], *, count: int | None = None) -> bytes:
    return u32(ARRAY) + u32(type_id) + u64(len(elements) if count is None else count) + b"".join(elements)


@dataclass(frozen=True)
class Tensor:
    """One tensor's description; ``sizes`` innermost first, as the file has them."""

    name: str | bytes
    sizes: tuple[int, ...]
    type_id: int
    offset: int
    num_dimensions: int | None = None

    def pack(self) -> bytes:
        count = len(self.sizes) if self.num_dimensions is None else self.num_dimensions
        sizes = b"".join(map(u64, self.sizes))
        return string(self.name) + u32(count) + sizes + u32(self.type_id) + u64(self.offset)


def gguf_bytes(
    keys: Sequence[tuple[str | bytes, bytes]] = (),
    tensors: Sequence[Tensor] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a file's bytes; ``num_keys`` and ``num_tensors`` override what the header claims."""
    head = magic + u32(version)
    head += u64(len(tensors) if num_tensors is None else num_tensors) + u64(len(keys) if num_keys is None else num_keys)
    head += b"".join(string(name) + value for name, value in keys)
    head += b"".join(tensor.pack() for tensor in tensors)
    return head + bytes(-len(head) % alignment if data else 0) + data


SMALL_KEYS = (
    ("general.architecture", text("llama")),
    ("llama.block_count", scalar(U32, 2)),
    ("llama.embedding_length", scalar(U32, 32)),
    ("llama.feed_forward_length", scalar(U32, 64)),
    ("llama.context_length", scalar(U32, 128)),
    ("llama.attention.head_count", scalar(U32, 4)),
    ("llama.attention.layer_norm_rms_epsilon", scalar(F32, 1e-5)),
    ("llama.rope.freq_base", scalar(F32, 10000.0)),
    ("general.flag", scalar(BOOL, 1)),
    ("tokenizer.ggml.tokens", array(STRING, [string("a"), string(""), string("né")])),
    ("tokenizer.ggml.scores", array(F32, [struct.pack("<f", 0.5), struct.pack("<f", -1.0)])),
)
SMALL_TENSORS = (Tensor("a.weight", (32, 2), 8, 0), Tensor("b.weight", (4,), 0, 96))
SMALL_DATA = bytes(range(68)) + bytes(28) + struct.pack("<4f", 1, 2, 3, 4)
"""Two rows of q8_0, padding to 96, four numbers: the file is whole with the last of them."""


def small_file() -> bytes:
    """A sound file with a bit of everything."""
    return gguf_bytes(SMALL_KEYS, SMALL_TENSORS, SMALL_DATA)


def part(number: int, count: int, **claims: int) -> bytes:
    """A part of a split model, from 0: a tensor with its number in it, and in the first part the keys."""
    numbers = {"no": number, "count": count, "tensors.count": count, **claims}
    keys = [(f"split.{name}", scalar(I32 if name == "tensors.count" else U16, n)) for name, n in numbers.items()]
    tensors = [Tensor(f"blk.{number}.weight", (4,), 0, 0)]
    return gguf_bytes([*(SMALL_KEYS if number == 0 else ()), *keys], tensors, struct.pack("<4f", *[number] * 4))
