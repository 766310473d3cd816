"""A tokenizer from a GGUF file: byte-level BPE (`gpt2`), SentencePiece's BPE (`llama`) or its unigram (`t5`).

The file says what tokens there are, by which merges or scores they are found, and what cuts the text. It carries no
post-processor, and a normaliser only for `t5`: other text is taken as it is, and BOS and EOS follow `add_bos_token` and
`add_eos_token`. Control tokens are special; user-defined ones are found in any text. All as in llama.cpp, whose
format it is, with what it takes for granted where the file is silent: ids are the same. A character whose bytes a
byte-level vocabulary lacks is dropped, there as in the tokenizers library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from kvist.checkpoint.character_map import CharacterMap
from kvist.checkpoint.files import quote, quote_path
from kvist.checkpoint.gguf_vocabulary import GgufVocabulary, TokenizerKeys
from kvist.checkpoint.pretokenizers import pretokenizer_named
from kvist.checkpoint.space_marked import (
    ScoredVocabulary,
    SpacePrefix,
    TextRules,
    space_marked_backend,
    unigram_backend,
)
from kvist.checkpoint.token_spelling import Spelling, TokenSpelling
from kvist.checkpoint.token_type import TokenType
from kvist.checkpoint.tokenizer_parts import TokenizerParts, end_of_turn_ids, is_always_control
from kvist.errors import CheckpointError, UnsupportedError

_TEMPLATE_TOKENS = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_ENDS = ("eos", "eot", "eom")


@dataclass(frozen=True)
class _Core:
    """What a vocabulary's kind decides. `adds_bos` and `adds_eos` hold where the file doesn't say."""

    backend: Backend
    spelling: TokenSpelling
    adds_bos: bool
    kind: str
    pre_tokenizer: str | None = None
    adds_eos: bool = False


@dataclass(frozen=True)
class _Kind:
    """One `tokenizer.ggml.model`.

    `default_ids` are the tokens of roles that a file doesn't name; tokens of `control_roles` are control tokens
    whatever their type.
    """

    build: Callable[[TokenizerKeys, GgufVocabulary, frozenset[int]], _Core]
    default_ids: Mapping[str, int] = field(default_factory=dict)
    control_roles: tuple[str, ...] = ()


def read_gguf_tokenizer(metadata: Mapping[str, object], path: Path) -> TokenizerParts | None:
    """Build the tokenizer, or return None for a file without one.

    Raises UnsupportedError for a vocabulary of another kind or a pre-tokenizer that isn't known, CheckpointError for
    keys that are missing or contradict each other. `path` is for messages only.
    """
    keys = TokenizerKeys(metadata, path)
    name = keys.text("model")
    if name is None or name in ("none", "no_vocab"):
        return None
    kind = _KINDS.get(name)
    if kind is None:
        raise UnsupportedError(
            f"{quote_path(path)} has a tokenizer of type {quote(name)}; supported: gpt2 (byte-level BPE), "
            "llama (SentencePiece BPE), t5 (its unigram); or take the model as a Hugging Face directory with a "
            "tokenizer.json"
        )
    vocabulary = keys.vocabulary(kind.default_ids)
    tokens, ids = vocabulary.tokens, vocabulary.ids
    control_ids = _control_ids(vocabulary, kind.control_roles)
    core = kind.build(keys, vocabulary, control_ids)
    _add_tokens(core.backend, vocabulary, control_ids, takes_space=_takes_space(keys, name))
    _add_post_processor(core, vocabulary)
    return TokenizerParts(
        backend=core.backend,
        spelling=core.spelling,
        vocab_size=len(tokens),
        bos_token_id=ids.get("bos"),
        eos_token_ids=end_of_turn_ids((i, tokens[i]) for i in control_ids)
        | {ids[role] for role in _ENDS if role in ids},
        chat_templates=vocabulary.chat_templates,
        template_tokens={name: tokens[ids[role]] for role, name in _TEMPLATE_TOKENS.items() if role in ids},
        silent_token_ids=frozenset(vocabulary.ids_of(TokenType.UNUSED)),
        kind=core.kind,
        pre_tokenizer=core.pre_tokenizer,
    )


def _byte_level(keys: TokenizerKeys, vocabulary: GgufVocabulary, _: frozenset[int]) -> _Core:
    pre = keys.text("pre") or "default"
    rules = pretokenizer_named(pre)
    merges = keys.merges()
    token_ids = dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
    try:  # a dict and tuples are the library's fastest way in: half the time of a tokenizer.json
        backend = Backend(models.BPE(token_ids, merges, ignore_merges=rules.ignore_merges))
    except Exception as error:  # noqa: BLE001 (the library raises no narrower class)
        raise keys.damaged(f"its tokens and merges don't fit together ({quote(error)[1:-1]})") from None
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rules.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return _Core(backend, TokenSpelling(Spelling.BYTE_LEVEL), rules.add_bos, "byte-level BPE", pre)


def _space_marked(keys: TokenizerKeys, vocabulary: GgufVocabulary, control_ids: frozenset[int]) -> _Core:
    has_prefix = keys.flag("add_space_prefix") is not False
    scored = ScoredVocabulary(vocabulary.tokens, keys.scores(len(vocabulary.tokens)), vocabulary.types)
    prefix = SpacePrefix.EACH if has_prefix else SpacePrefix.NEVER
    try:
        backend = space_marked_backend(scored, control_ids, vocabulary.ids.get("unknown"), TextRules(prefix))
    except CheckpointError as error:
        raise keys.damaged(str(error)) from None
    spelling = TokenSpelling(Spelling.SPACE_MARKED, strips_leading_space=has_prefix)
    return _Core(backend, spelling, adds_bos=True, kind="SentencePiece BPE")


def _unigram(keys: TokenizerKeys, vocabulary: GgufVocabulary, control_ids: frozenset[int]) -> _Core:
    has_prefix = keys.flag("add_space_prefix") is True
    scored = ScoredVocabulary(vocabulary.tokens, keys.scores(len(vocabulary.tokens)), vocabulary.types)
    prefix = SpacePrefix.EACH if has_prefix else SpacePrefix.NEVER
    character_map = keys.numbers("precompiled_charsmap")
    try:
        rules = TextRules(
            prefix,
            CharacterMap(character_map.astype(np.uint8).tobytes()) if character_map is not None else None,
            trims_spaces=keys.flag("remove_extra_whitespaces") is True,
        )
        backend = unigram_backend(scored, control_ids, vocabulary.ids.get("unknown"), rules)
    except CheckpointError as error:
        raise keys.damaged(str(error)) from None
    spelling = TokenSpelling(Spelling.SPACE_MARKED, strips_leading_space=has_prefix)
    return _Core(backend, spelling, adds_bos=False, kind="SentencePiece unigram", adds_eos=True)


_KINDS = {
    "gpt2": _Kind(_byte_level),
    "llama": _Kind(_space_marked, {"bos": 1, "eos": 2, "unknown": 0}, ("bos", "unknown", *_ENDS)),
    "t5": _Kind(_unigram, {"eos": 1, "unknown": 2, "padding": 0}, ("bos", "unknown", *_ENDS)),
}


def _takes_space(keys: TokenizerKeys, kind: str) -> bool:
    """Whether special tokens take the white space behind them along, which no key says: so it is in Phi-3."""
    return kind == "llama" and (
        keys.general("architecture") == "phi3" or any(name in keys.general("name") for name in ("phi-3", "phi3"))
    )


_KEEPS_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""Phi-3's special tokens that leave it."""


def _control_ids(vocabulary: GgufVocabulary, roles: tuple[str, ...]) -> frozenset[int]:
    """Ids of control and unknown tokens, and of those that a converter took for ordinary ones: by role or name."""
    by_role = [vocabulary.ids[role] for role in roles if role in vocabulary.ids]
    by_name = [token_id for token_id, token in enumerate(vocabulary.tokens) if is_always_control(token)]
    return frozenset((*vocabulary.ids_of(TokenType.UNKNOWN, TokenType.CONTROL), *by_role, *by_name))


def _add_tokens(
    backend: Backend, vocabulary: GgufVocabulary, control_ids: frozenset[int], *, takes_space: bool
) -> None:
    """Make the backend find control and user-defined tokens before it cuts a text."""
    backend.add_tokens(
        [
            AddedToken(
                token,
                special=token_id in control_ids,
                normalized=False,
                rstrip=takes_space and token_id in control_ids and token not in _KEEPS_SPACE,
            )
            for token_id in sorted(control_ids.union(vocabulary.ids_of(TokenType.USER_DEFINED)))
            if (token := vocabulary.tokens[token_id])
        ]
    )


def _add_post_processor(core: _Core, vocabulary: GgufVocabulary) -> None:
    """Make the backend put BOS before a text and EOS behind it, where the file wants them and has them."""
    adds_bos = core.adds_bos if vocabulary.adds_bos is None else vocabulary.adds_bos
    before = [("BOS", vocabulary.ids["bos"])] if adds_bos and "bos" in vocabulary.ids else []
    adds_eos = core.adds_eos if vocabulary.adds_eos is None else vocabulary.adds_eos
    behind = [("EOS", vocabulary.ids["eos"])] if adds_eos and "eos" in vocabulary.ids else []
    if before or behind:
        core.backend.post_processor = processors.TemplateProcessing(
            single=[*(name for name, _ in before), "$A", *(name for name, _ in behind)],
            special_tokens=[*before, *behind],
        )
