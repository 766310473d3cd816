"""The tokenizer of a Hugging Face directory that has a SentencePiece model and no tokenizer.json.

As transformers makes it from the same files: pieces from tokenizer.model; tokens that were added later from
`added_tokens_decoder` in tokenizer_config.json or from added_tokens.json, which replace a piece of the same id; BOS
unless `add_bos_token` is false; and the space before a text, where the model has one, before each part that special
tokens leave (`legacy`, which is what is meant where nothing is said, and wherever the model trims spaces) or before the
first alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from kvist.checkpoint.disk import exists
from kvist.checkpoint.files import quote, quote_path
from kvist.checkpoint.json_object import read_json_object
from kvist.checkpoint.sentencepiece_model import MAX_PIECES, SentencePieceModel, read_sentencepiece_model
from kvist.checkpoint.space_marked import (
    ScoredVocabulary,
    SpacePrefix,
    TextRules,
    space_marked_backend,
    unigram_backend,
)
from kvist.checkpoint.token_spelling import SPACE_MARK, Spelling, TokenSpelling
from kvist.checkpoint.token_type import TokenType
from kvist.checkpoint.tokenizer_parts import RawTokenizer, is_always_control
from kvist.errors import CheckpointError

SENTENCEPIECE_NAME = "tokenizer.model"
_ADDED_NAME = "added_tokens.json"
_SPECIAL_NAMES = "special_tokens_map.json"


@dataclass(frozen=True)
class _Added:
    """A token beside the pieces; the white space before or behind it may be part of it."""

    name: str
    is_special: bool
    takes_before: bool = False
    takes_behind: bool = False

    def for_backend(self) -> AddedToken:
        return AddedToken(
            self.name,
            special=self.is_special,
            normalized=False,
            lstrip=self.takes_before,
            rstrip=self.takes_behind,
        )


def read_sentencepiece_tokenizer(directory: Path, settings: Mapping[str, object]) -> RawTokenizer:
    """Build the tokenizer; `settings` are tokenizer_config.json's.

    Raises CheckpointError for files that can't be used, UnsupportedError for a model of another kind.
    """
    path = directory / SENTENCEPIECE_NAME
    model = read_sentencepiece_model(path)
    num_pieces = len(model.vocabulary.tokens)
    added = {**_unlike_text(model.vocabulary), **_added_later(directory, settings, num_pieces)}
    prefix = _prefix(model, settings)
    try:
        vocabulary = _with_added(model.vocabulary, added)
        special_ids = [token_id for token_id, token in added.items() if token.is_special]
        make = unigram_backend if model.is_unigram else space_marked_backend
        rules = TextRules(prefix, model.character_map, model.trims_spaces)
        backend = make(vocabulary, special_ids, model.unknown_id, rules)
    except CheckpointError as error:
        raise CheckpointError(f"the tokenizer in {quote_path(path)} can't be used: {error}") from None
    backend.add_tokens([token.for_backend() for _, token in sorted(added.items()) if token.name])
    _add_post_processor(backend, model, settings)
    return RawTokenizer(
        backend=backend,
        spelling=TokenSpelling(Spelling.SPACE_MARKED, strips_leading_space=prefix is not SpacePrefix.NEVER),
        bos_token_id=model.bos_id,
        eos_token_id=model.eos_id,
        silent_token_ids=frozenset(np.flatnonzero(vocabulary.types == TokenType.UNUSED).tolist()),
        prefixes_text=prefix is SpacePrefix.FIRST,
        kind="SentencePiece unigram" if model.is_unigram else "SentencePiece BPE",
    )


def _prefix(model: SentencePieceModel, settings: Mapping[str, object]) -> SpacePrefix:
    if not model.has_prefix or settings.get("add_prefix_space") is False:
        return SpacePrefix.NEVER
    is_first = settings.get("legacy") is False and not model.trims_spaces
    return SpacePrefix.FIRST if is_first else SpacePrefix.EACH


def _add_post_processor(backend: Backend, model: SentencePieceModel, settings: Mapping[str, object]) -> None:
    adds_bos, adds_eos = settings.get("add_bos_token") is not False, settings.get("add_eos_token") is True
    before = [("BOS", model.bos_id)] if adds_bos and model.bos_id is not None else []
    behind = [("EOS", model.eos_id)] if adds_eos and model.eos_id is not None else []
    if before or behind:
        backend.post_processor = processors.TemplateProcessing(
            single=[*(name for name, _ in before), "$A", *(name for name, _ in behind)],
            special_tokens=[*before, *behind],
        )


def _unlike_text(vocabulary: ScoredVocabulary) -> dict[int, _Added]:
    """The pieces that are found before a text is cut, by id: special ones and those that the model's maker defined."""
    special = np.isin(vocabulary.types, (TokenType.CONTROL, TokenType.UNKNOWN))
    ids = np.flatnonzero(special | (vocabulary.types == TokenType.USER_DEFINED)).tolist()
    return {i: _added(vocabulary.tokens[i], bool(special[i])) for i in ids}


def _added(name: str, is_special: bool, takes_before: bool = False, takes_behind: bool = False) -> _Added:
    """A token that isn't special is found in the text as it is given: so spaces are spaces in its name."""
    shown = name if is_special else name.replace(SPACE_MARK, " ")
    return _Added(shown, is_special, takes_before, takes_behind)


def _added_later(directory: Path, settings: Mapping[str, object], num_pieces: int) -> dict[int, _Added]:
    """Tokens by id, from the newer of the two places where there is one."""
    decoder = settings.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        entries = {key: entry for key, entry in decoder.items() if isinstance(entry, dict) and key.isdecimal()}
        return {
            _checked_id(directory, int(key), num_pieces): _added(
                str(entry.get("content", "")),
                *(entry.get(flag) is True for flag in ("special", "lstrip", "rstrip")),
            )
            for key, entry in entries.items()
        }
    path = directory / _ADDED_NAME
    if not exists(path):
        return {}
    special = _special_names(directory)
    return {
        _checked_id(directory, token_id, num_pieces): _added(name, name in special or is_always_control(name))
        for name, token_id in read_json_object(path).items()
    }


def _special_names(directory: Path) -> set[str]:
    path = directory / _SPECIAL_NAMES
    values = list(read_json_object(path).values()) if exists(path) else []
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return {str(item.get("content")) if isinstance(item, dict) else str(item) for item in flat}


def _checked_id(directory: Path, token_id: object, num_pieces: int) -> int:
    if type(token_id) is not int or not 0 <= token_id < num_pieces + MAX_PIECES:
        raise CheckpointError(
            f"{quote_path(directory)} has an added token with the id {quote(token_id)}; allowed: 0 to "
            f"{num_pieces + MAX_PIECES - 1}"
        )
    return token_id


def _with_added(vocabulary: ScoredVocabulary, added: Mapping[int, _Added]) -> ScoredVocabulary:
    """The vocabulary with the tokens that were added; ids between them get names that no text has, and no text.

    Raises CheckpointError where a name occurs twice.
    """
    num_pieces = len(vocabulary.tokens)
    size = max(num_pieces, max(added, default=-1) + 1)
    tokens = [*vocabulary.tokens, *(f"\0unused {number}" for number in range(num_pieces, size))]
    scores = np.concatenate([vocabulary.scores, np.zeros(size - num_pieces)])
    types = np.concatenate([vocabulary.types, np.full(size - num_pieces, TokenType.UNUSED)])
    for token_id, token in added.items():
        tokens[token_id] = token.name
        types[token_id] = TokenType.CONTROL if token.is_special else TokenType.USER_DEFINED
    num_repeated = size - len(set(tokens))
    if num_repeated:
        raise CheckpointError(f"{num_repeated} of its {size} tokens occur twice")
    return ScoredVocabulary(tokens, scores, types)
