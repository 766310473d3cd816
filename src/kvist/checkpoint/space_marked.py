"""SentencePiece's two ways of cutting text, made of parts of the `tokenizers` library.

Text is one piece, `▁` stands for a space, and a character that no token covers becomes its bytes (`<0xE2>`), or the
unknown token where the vocabulary lacks these.

**Byte-pair encoding.** SentencePiece has no list of merges: of all neighbours whose joined text is a token it joins
those whose token has the highest score, the leftmost first. The library wants pairs in order; they are the two halves
of every token, by its score. Control, unknown and byte tokens come out of no merge, so text can't spell them. Nor do
unused ones; SentencePiece has those as steps on the way to longer tokens, of which no vocabulary is known to make use.
Tokens of equal score, which SentencePiece joins by place alone, are joined in the order of their ids: only files whose
converter had no scores have them, and there the ids are what is left of the order.

**Unigram** (Kudo, "Subword Regularization", 2018): the tokens with the largest sum of scores. The library would take a
control or a byte token where a text spells one; so text is cut inside such names beforehand. Of sums that are equal to
float rounding it may take another than SentencePiece does, which adds up in single precision.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from kvist.checkpoint.character_map import CharacterMap
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
class TextRules:
    """What becomes of a text before it is cut: characters replaced, spaces trimmed and joined, a space put before."""

    prefix: SpacePrefix
    character_map: CharacterMap | None = None
    trims_spaces: bool = False

    def apply_to(self, backend: Backend) -> None:
        """Make the backend prepare text so, and decode what comes of it."""
        maps = [] if self.character_map is None else [normalizers.Normalizer.custom(self.character_map)]
        trims = [(" {2,}", " "), (r"\A +", ""), (r" +\z", "")] if self.trims_spaces else []
        backend.normalizer = normalizers.Sequence(
            [
                *maps,
                *(normalizers.Replace(Regex(pattern), text) for pattern, text in trims),
                *([normalizers.Prepend(SPACE_MARK)] if self.prefix is SpacePrefix.EACH else []),
                normalizers.Replace(" ", SPACE_MARK),
            ]
        )
        parts = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
        strip = [] if self.prefix is SpacePrefix.NEVER else [decoders.Strip(" ", 1, 0)]
        backend.decoder = decoders.Sequence([*parts, *strip])


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
    vocabulary: ScoredVocabulary, special_ids: Iterable[int], unknown_id: int | None, rules: TextRules
) -> Backend:
    """The tokenizer, which doesn't find special tokens yet. Raises CheckpointError for tokens that can't be used."""
    tokens = vocabulary.tokens
    merges = vocabulary.merges(vocabulary.mergeable_ids(special_ids))
    token_ids = dict(zip(tokens, range(len(tokens)), strict=True))
    unknown = None if unknown_id is None else tokens[unknown_id]
    backend = Backend(models.BPE(token_ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    rules.apply_to(backend)
    return backend


def unigram_backend(
    vocabulary: ScoredVocabulary, special_ids: Iterable[int], unknown_id: int | None, rules: TextRules
) -> Backend:
    """The same for a vocabulary of which the likeliest tokens are taken."""
    tokens, types = vocabulary.tokens, vocabulary.types
    if not np.isfinite(vocabulary.scores).all():
        raise CheckpointError("its scores aren't finite")
    if unknown_id is None:
        raise CheckpointError("it has no unknown token, which a unigram vocabulary needs")
    is_unused = types == TokenType.UNUSED
    names = list(tokens)
    for token_id in np.flatnonzero(is_unused).tolist():
        names[token_id] = f"\0unused {token_id}"
    scores = np.where(is_unused, 0.0, vocabulary.scores).tolist()
    has_bytes = int((types == TokenType.BYTE).sum()) == 256
    try:
        backend = Backend(models.Unigram(list(zip(names, scores, strict=True)), unknown_id, has_bytes))
    except Exception as error:  # noqa: BLE001 (the library raises no narrower class)
        raise CheckpointError(f"its tokens and scores don't fit together ({error})") from None
    rules.apply_to(backend)
    reserved = {*special_ids, *np.flatnonzero(np.isin(types, _NEVER_MERGED) & ~is_unused).tolist()}
    cuts = [_inside(tokens[token_id]) for token_id in sorted(reserved) if len(tokens[token_id]) > 1]
    if cuts:
        backend.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(cuts)), "isolated")
    return backend


def _inside(name: str) -> str:
    """A pattern of the place after the first character of ``name``."""
    return f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})"
