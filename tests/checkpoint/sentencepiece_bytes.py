"""SentencePiece model files written byte by byte: protocol buffers, with any lie in any place."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from checkpoint.vocabularies import Scored

Field = tuple[int, int | float | bytes | str]
BPE = (3, 2)
AS_IT_IS = (4, 0)
"""Of the normaliser: spaces at the ends and side by side stay."""


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    parts = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*(part | 128 for part in parts[:-1]), parts[-1]])


def message(fields: Sequence[Field]) -> bytes:
    """A message of these fields: whole numbers as such, floats in 4 bytes, text and bytes behind their length."""
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def model_bytes(made: Scored, *, trainer: Sequence[Field] = (BPE,), normalizer: Sequence[Field] = (AS_IT_IS,)) -> bytes:
    typed = zip(made.tokens, made.scores, made.types, strict=True)
    pieces: list[Field] = [(1, message([(1, name), (2, score), *_kind(kind)])) for name, score, kind in typed]
    return message([*pieces, (2, message(trainer)), (3, message(normalizer))])


def _kind(kind: int) -> Sequence[Field]:
    return [] if kind == 1 else [(3, kind)]  # ordinary pieces don't say what they are


def added(tokens: Mapping[int, tuple[str, bool]]) -> dict[str, dict[str, object]]:
    """`added_tokens_decoder` of tokenizer_config.json: names, and which of them are special."""
    return {str(token_id): {"content": name, "special": special} for token_id, (name, special) in tokens.items()}
