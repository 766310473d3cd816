"""SentencePiece's byte-pair encoding, made of parts of the `tokenizers` library.

SentencePiece has no list of merges: of all neighbours whose joined text is a token it joins those whose token has the
highest score, the leftmost first. The library wants pairs in order; they are the two halves of every token, by its
score. Text is one piece, `▁` stands for a space, and a character that no token covers becomes its bytes (`<0xE2>`), or
the unknown token where the vocabulary lacks these.

Control, unknown and byte tokens come out of no merge, so text can't spell them. Nor do unused ones; SentencePiece has
those as steps on the way to longer tokens, of which no vocabulary is known to make use. Tokens of equal score, which
SentencePiece joins by place alone, are joined in the order of their ids: only files whose converter had no scores
have them, and there the ids are what is left of the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from kvist.checkpoint.token_spelling import SPACE_MARK
from kvist.checkpoint.token_type import TokenType
from kvist.errors import CheckpointError

MAX_CUT_WORK = 1 << 28
"""Sum of squared token lengths. The largest vocabularies have a tenth; more than this would take minutes to cut."""
_NEVER_MERGED = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.UNUSED, TokenType.BYTE)


class SpacePrefix(Enum):
    """Where a space goes before a text: nowhere, before the text, or before each part that special tokens leave.

    The library can't tell the first part from the others, so FIRST is `Tokenizer`'s to do.
    """

    NEVER = "never"
    FIRST = "first"
    EACH = "each"


@dataclass(frozen=True)
class ScoredVocabulary:
    """`scores` [V] (no NaN): what is joined first. `types` [V] holds a TokenType for each token."""

    tokens: list[str]
    scores: npt.NDArray[np.float64]
    types: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        lengths = (len(self.tokens), len(self.scores), len(self.types))
        assert len(set(lengths)) == 1, lengths

    def mergeable_ids(self, special_ids: Iterable[int]) -> list[int]:
        """Ids of the tokens that text may come out as; `special_ids` are left out whatever their type."""
        is_mergeable = ~np.isin(self.types, _NEVER_MERGED)
        is_mergeable[list(special_ids)] = False
        ids: list[int] = np.flatnonzero(is_mergeable).tolist()
        return ids

    def merges(self, ids: Sequence[int]) -> list[tuple[str, str]]:
        """Pairs of tokens of `ids` that make up another one, the first to be joined first.

        Raises CheckpointError where the tokens are so long that it would take minutes.
        """
        tokens = self.tokens
        if sum(len(tokens[token_id]) ** 2 for token_id in ids) > MAX_CUT_WORK:
            raise CheckpointError("its tokens are longer than any vocabulary's")
        order = np.asarray(ids, dtype=np.int64)[np.argsort(-self.scores[list(ids)], kind="stable")]
        known = {tokens[token_id] for token_id in ids}
        return [
            (left, right)
            for token in map(tokens.__getitem__, order.tolist())
            for cut in range(1, len(token))
            if (left := token[:cut]) in known and (right := token[cut:]) in known
        ]


def space_marked_backend(
    vocabulary: ScoredVocabulary, special_ids: Iterable[int], unknown_id: int | None, prefix: SpacePrefix
) -> Backend:
    """The tokenizer, which doesn't find special tokens yet. Raises CheckpointError for tokens that can't be used."""
    tokens = vocabulary.tokens
    merges = vocabulary.merges(vocabulary.mergeable_ids(special_ids))
    token_ids = dict(zip(tokens, range(len(tokens)), strict=True))
    unknown = None if unknown_id is None else tokens[unknown_id]
    backend = Backend(models.BPE(token_ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prepend = [normalizers.Prepend(SPACE_MARK)] if prefix is SpacePrefix.EACH else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", SPACE_MARK)])
    parts = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [] if prefix is SpacePrefix.NEVER else [decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence([*parts, *strip])
    return backend
