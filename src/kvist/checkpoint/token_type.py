"""What kinds of tokens a vocabulary has, by the numbers that GGUF and SentencePiece both use."""

from __future__ import annotations

from enum import IntEnum


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type` of a GGUF file, `type` of a piece in a SentencePiece model."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6
