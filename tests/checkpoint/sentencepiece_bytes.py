"""SentencePiece model files written byte by byte: protocol buffers, with any lie in any place."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from checkpoint.vocabularies import Scored

Field = tuple[int, int | float | bytes | str]
BPE = (3, 2)
AS_IT_IS = (4, 0)
"""Of the normaliser: spaces at the ends and side by side stay."""
REPLACED = {
    **dict.fromkeys(("\t", "\n", "\r", "\u00a0", "\u3000", "\u2028"), " "),
    "ﬁ": "fi",
    "½": "1\u20442",
    "a\u0308": "ä",
    "Ǆ": "DŽ",
    "\u200b": "",
    "A": "a",
    "…": "...",
    "\u1100\u1161": "가",
    "\u1100\u1161\u11a8": "각",
}
"""Some of what NFKC and the like replace, for a character map."""


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


def character_map(entries: Mapping[str, str]) -> bytes:
    """A precompiled character map: a double array over UTF-8, and the texts that its values point to."""
    texts, trie = b"", {}
    for key, text in entries.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[None] = len(texts)
        texts += text.encode() + b"\0"
    units: dict[int, int] = {0: 0}
    bases: set[int] = set()  # of a node each: a label alone doesn't say whose child it is
    waiting = [(0, trie)]
    while waiting:
        at, node = waiting.pop()
        base = next(b for b in range(1, 1 << 20) if b not in bases and all(b ^ (c or 0) not in units for c in node))
        bases.add(base)
        units[at] |= (at ^ base) << 10 | (None in node) << 8
        for byte, child in node.items():
            if byte is None:
                units[base] = 1 << 31 | child
            else:
                units[base ^ byte] = byte
                waiting.append((base ^ byte, child))
    size = (max(units) | 255) + 1  # no byte leads out of it
    array = struct.pack(f"<{size}I", *(units.get(at, 1 << 31) for at in range(size)))
    return struct.pack("<I", len(array)) + array + texts


def _kind(kind: int) -> Sequence[Field]:
    return [] if kind == 1 else [(3, kind)]  # ordinary pieces don't say what they are


def added(tokens: Mapping[int, tuple[str, bool]]) -> dict[str, dict[str, object]]:
    """`added_tokens_decoder` of tokenizer_config.json: names, and which of them are special."""
    return {str(token_id): {"content": name, "special": special} for token_id, (name, special) in tokens.items()}
