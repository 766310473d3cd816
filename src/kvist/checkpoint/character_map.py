"""SentencePiece's precompiled character map: what normalises text (NFKC and the like) before it is cut into pieces.

A trie in one array (darts-clone's) over UTF-8, whose values are places in a list of texts: from each character on the
longest key that fits is replaced. The `tokenizers` library reads such maps too, but looks for whole grapheme clusters,
and drops marks of those that the map lacks.

The format: https://github.com/google/sentencepiece/blob/master/src/normalizer.cc (DecodePrecompiledCharsMap)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvist.errors import CheckpointError

_SIZE_BYTES = 4
_VALUE = (1 << 31) - 1
_LABEL = 1 << 31 | 0xFF


class CharacterMap:
    """A map from its bytes in a file. Raises CheckpointError where they are none."""

    def __init__(self, data: bytes) -> None:
        num_bytes = int.from_bytes(data[:_SIZE_BYTES], "little")
        end = _SIZE_BYTES + num_bytes
        if not 0 < num_bytes <= len(data) - _SIZE_BYTES or num_bytes % 4:
            raise CheckpointError(f"its character map of {len(data)} bytes has no trie of {num_bytes} bytes")
        self._units: list[int] = np.frombuffer(data[_SIZE_BYTES:end], "<u4").tolist()
        self._texts = data[end:] + b"\0"

    def normalise(self, text: str) -> str:
        """The text with each character, or the longest run of them that the map has, replaced."""
        data, at, out = text.encode(), 0, bytearray()
        while at < len(data):
            length, found = self._longest(data, at)
            if not length:
                length = _num_bytes(data[at])
                found = data[at : at + length]
            out += found
            at += length
        return out.decode(errors="replace")

    def normalize(self, normalized: Any) -> None:
        """What the `tokenizers` library calls with its `NormalizedString`."""
        text = normalized.normalized
        if text and (changed := self.normalise(text)) != text:
            normalized.replace(text, changed)

    def _longest(self, data: bytes, at: int) -> tuple[int, bytes]:
        """Bytes of the longest key from ``at`` on, and its text; 0 where there is none, or the map is damaged."""
        units, length, value = self._units, 0, 0
        node = _offset(units[0])
        for position in range(at, len(data)):
            byte = data[position]
            node ^= byte
            if node >= len(units) or units[node] & _LABEL != byte:
                break
            unit = units[node]
            node ^= _offset(unit)
            if unit >> 8 & 1 and node < len(units):
                length, value = position + 1 - at, units[node] & _VALUE
        if not length or value >= len(self._texts):
            return 0, b""
        return length, self._texts[value : self._texts.find(b"\0", value)]


def _offset(unit: int) -> int:
    """From a node's unit to the place that its children are counted from."""
    return unit >> 10 << ((unit & 1 << 9) >> 6)


def _num_bytes(first: int) -> int:
    """Bytes of a character by its first one."""
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
