"""How a vocabulary writes bytes as text: from a token's name to the bytes it stands for.

Two ways are in use. Byte-level vocabularies (GPT-2 and its heirs) write each byte as one printable character
of a fixed table, `Ġ` for a space. SentencePiece-like ones write text as it is, `▁` for a space, and bytes
that fit no token as `<0x0A>`. Which one a tokenizer uses stands in its decoder; nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from kvist.checkpoint.files import quote
from kvist.errors import UnsupportedError

SPACE_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_BYTE_LEVEL_PARTS = frozenset({"ByteLevel", "Fuse"})
_MARKED_PARTS = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})


def _byte_characters() -> list[str]:
    """GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
_CHARACTER_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


class Spelling(Enum):
    """The two ways in which a vocabulary writes bytes."""

    BYTE_LEVEL = "byte-level"
    SPACE_MARKED = "space-marked"


@dataclass(frozen=True)
class TokenSpelling:
    """`strips_leading_space`: the encoder put a space before the text, so a text's first one isn't shown.

    `is_added_plain`: added tokens stand as plain text in the vocabulary.
    """

    spelling: Spelling
    strips_leading_space: bool = False
    is_added_plain: bool = True

    def to_bytes(self, token: str, *, is_added: bool) -> bytes:
        """The bytes of a token's name."""
        if is_added and self.is_added_plain:
            return token.encode()
        if self.spelling is Spelling.BYTE_LEVEL:
            try:
                return bytes([_CHARACTER_BYTES[character] for character in token])
            except KeyError:
                return token.encode()
        if _BYTE_TOKEN.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        return token.replace(SPACE_MARK, " ").encode()


def spelling_of_decoder(decoder: Mapping[str, object] | None) -> TokenSpelling:
    """Read the `decoder` of a tokenizer.json; raises UnsupportedError for one of another kind."""
    parts = list(_flatten(decoder or {"type": "none"}))
    kinds = {str(part.get("type")) for part in parts}
    if "ByteLevel" in kinds and kinds <= _BYTE_LEVEL_PARTS:
        return TokenSpelling(Spelling.BYTE_LEVEL)
    if kinds & {"Replace", "Metaspace"} and kinds <= _MARKED_PARTS:
        return TokenSpelling(Spelling.SPACE_MARKED, any(map(_strips_space, parts)), is_added_plain=False)
    raise UnsupportedError(
        f"the tokenizer's decoder is of an unknown kind ({quote(' + '.join(sorted(kinds)))}); "
        "known: ByteLevel, Metaspace, and Replace + ByteFallback + Fuse + Strip"
    )


def _flatten(decoder: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    if decoder.get("type") != "Sequence":
        yield decoder
        return
    inner = decoder.get("decoders")
    assert isinstance(inner, list), decoder
    for part in inner:
        yield from _flatten(part)


def _strips_space(part: Mapping[str, object]) -> bool:
    if part["type"] == "Metaspace":
        return part.get("prepend_scheme", "always") != "never"
    return part["type"] == "Strip" and part.get("content") == " " and part.get("start") == 1
