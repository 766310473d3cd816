"""A SentencePiece model file (`tokenizer.model`): the vocabulary of BPE and unigram ones.

The file is a protocol buffer. Read are the pieces with their scores and types, and of the two settings what decides
about ids; the reader knows the wire format and nothing more, so there is no dependency for it. Models of words or of
characters, and those with spaces behind words, are refused: no language model is known to have one.

The format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvist.checkpoint.character_map import CharacterMap
from kvist.checkpoint.disk import reason, regular_file_bytes
from kvist.checkpoint.files import quote_path
from kvist.checkpoint.space_marked import ScoredVocabulary
from kvist.checkpoint.token_type import TokenType
from kvist.errors import CheckpointError, UnsupportedError

MAX_MODEL_BYTES = 16 << 20
"""Four times the largest known one's, which has a quarter of a million pieces."""
MAX_PIECES = 1 << 20
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE, _UNIGRAM, _BPE = 3, 1, 2
_AS_SUFFIX, _UNKNOWN_ID, _BOS_ID, _EOS_ID = 24, 40, 41, 42
_CHARACTER_MAP, _ADD_PREFIX, _TRIM_SPACES, _MARK_SPACES = 2, 3, 4, 5
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
Value = int | bytes | memoryview


@dataclass(frozen=True)
class SentencePieceModel:
    """A vocabulary and what is done to text before it is cut. A role's id is None where there is no token.

    `has_prefix` says that a space goes before a text, `trims_spaces` that those at its ends and side by side go.
    """

    vocabulary: ScoredVocabulary
    unknown_id: int | None
    bos_id: int | None
    eos_id: int | None
    has_prefix: bool
    is_unigram: bool = False
    character_map: CharacterMap | None = None
    trims_spaces: bool = False


def read_sentencepiece_model(path: Path) -> SentencePieceModel:
    """Read the file; raises CheckpointError where it is damaged, UnsupportedError where it is of another kind."""
    num_bytes = regular_file_bytes(path)
    if num_bytes > MAX_MODEL_BYTES:
        raise CheckpointError(f"{quote_path(path)} has {num_bytes} bytes; at most {MAX_MODEL_BYTES} are allowed")
    try:
        data = path.read_bytes()
        return _model(data)
    except OSError as error:
        raise CheckpointError(f"can't read {quote_path(path)}: {reason(error)}") from None
    except _DamageError as damage:
        raise CheckpointError(f"{quote_path(path)} is no SentencePiece model: {damage}; fetch it again") from None
    except _OtherKindError as kind:
        raise UnsupportedError(
            f"{quote_path(path)} is a SentencePiece model {kind}, which isn't read; needed: tokenizer.json "
            "(transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one)"
        ) from None


class _DamageError(Exception):
    """The bytes are no such message."""


class _OtherKindError(Exception):
    """The model is of a kind that isn't read."""


def _model(data: bytes) -> SentencePieceModel:
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for number, value in _fields(memoryview(data)):
        if number == _PIECE:
            text, score, kind = _piece(value)
            tokens.append(text)
            scores.append(score)
            types.append(kind)
        elif number == _TRAINER:
            trainer.update(_fields(_message(value)))
        elif number == _NORMALIZER:
            normalizer.update(_fields(_message(value)))
        if len(tokens) > MAX_PIECES:
            raise _DamageError(f"it has more than {MAX_PIECES} pieces")
    if not tokens:
        raise _DamageError("it has no pieces")
    num_repeated = len(tokens) - len(set(tokens))
    if num_repeated:
        raise _DamageError(f"{num_repeated} of its {len(tokens)} pieces occur twice")
    _refuse_other_kinds(trainer, normalizer)
    return SentencePieceModel(
        ScoredVocabulary(tokens, np.array(scores), np.array(types, dtype=np.int64)),
        unknown_id=_token_id(trainer.get(_UNKNOWN_ID, 0), len(tokens)),
        bos_id=_token_id(trainer.get(_BOS_ID, 1), len(tokens)),
        eos_id=_token_id(trainer.get(_EOS_ID, 2), len(tokens)),
        has_prefix=bool(normalizer.get(_ADD_PREFIX, 1)),
        is_unigram=trainer.get(_MODEL_TYPE, _UNIGRAM) == _UNIGRAM,
        character_map=_character_map(normalizer.get(_CHARACTER_MAP, b"")),
        trims_spaces=bool(normalizer.get(_TRIM_SPACES, 1)),
    )


def _refuse_other_kinds(trainer: dict[int, Value], normalizer: dict[int, Value]) -> None:
    if trainer.get(_MODEL_TYPE, _UNIGRAM) not in (_UNIGRAM, _BPE):
        raise _OtherKindError("of another type than BPE and unigram")
    if not normalizer.get(_MARK_SPACES, 1) or trainer.get(_AS_SUFFIX, 0):
        raise _OtherKindError("that has spaces in another place than before words")


def _character_map(value: Value) -> CharacterMap | None:
    data = bytes(_message(value))
    try:
        return CharacterMap(data) if data else None
    except CheckpointError as error:
        raise _DamageError(str(error)) from None


def _piece(value: Value) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, int(TokenType.NORMAL)
    for number, part in _fields(_message(value)):
        if number == _PIECE_TEXT:
            try:
                text = bytes(_message(part)).decode()
            except UnicodeDecodeError:
                raise _DamageError("a piece isn't UTF-8") from None
        elif number == _PIECE_SCORE:
            score = struct.unpack("<f", _message(part, 4))[0]
            if score != score:  # noqa: PLR0124 (not a number)
                raise _DamageError("a piece's score is no number")
        elif number == _PIECE_TYPE:
            kind = part if isinstance(part, int) and part <= max(TokenType) else int(TokenType.NORMAL)
    return text, score, kind


def _token_id(value: Value, num_tokens: int) -> int | None:
    """A negative id, which is written as a very large one, means that there is no such token."""
    return value if isinstance(value, int) and value < num_tokens else None


def _message(value: Value, num_bytes: int | None = None) -> memoryview:
    if isinstance(value, int) or num_bytes not in (None, len(value)):
        raise _DamageError("a value is of the wrong kind")
    return memoryview(value)


def _fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Number and value of each field of a message, in order."""
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            num_bytes, position = _varint(data, position)
        elif kind in (_FIXED32, _FIXED64):
            num_bytes = 4 if kind == _FIXED32 else 8
        else:
            raise _DamageError(f"a field has the unknown kind {kind}")
        start, position = position, position + num_bytes
        if position > end:
            raise _DamageError(f"a value ends {position - end} bytes behind its end")
        yield key >> 3, data[start:position]


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """A whole number of up to 64 bits, seven in each byte, and where it ends."""
    value = 0
    for shift, byte in enumerate(data[position : position + 10]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, position + shift + 1
    raise _DamageError("a number doesn't end")
