"""A byte-level BPE tokenizer from a GGUF file.

The file says what tokens and merges there are and which pre-tokenizer cuts the text; it carries no normaliser and
no post-processor, so text is taken as it is, and BOS and EOS follow `add_bos_token` and `add_eos_token`. Control
tokens are special; user-defined ones are found in any text. All as in llama.cpp, whose format it is: ids are the
same. A character whose bytes the vocabulary lacks is dropped, there as in the tokenizers library.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from kvist.checkpoint.files import quote, quote_path
from kvist.checkpoint.gguf_vocabulary import GgufVocabulary, TokenizerKeys, TokenType
from kvist.checkpoint.pretokenizers import PreTokenizer, pretokenizer_named
from kvist.checkpoint.token_spelling import Spelling, TokenSpelling
from kvist.checkpoint.tokenizer_parts import END_OF_TURN_NAMES, TokenizerParts, end_of_turn_ids
from kvist.errors import UnsupportedError

_TEMPLATE_TOKENS = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_ALWAYS_CONTROL = frozenset(name for name in END_OF_TURN_NAMES if name.startswith(("<|", "<｜")))


def read_gguf_tokenizer(metadata: Mapping[str, object], path: Path) -> TokenizerParts | None:
    """Build the tokenizer, or return None for a file without one.

    Raises UnsupportedError for a vocabulary that isn't byte-level BPE or a pre-tokenizer that isn't known,
    CheckpointError for keys that are missing or contradict each other. `path` is for messages only.
    """
    keys = TokenizerKeys(metadata, path)
    kind = keys.text("model")
    if kind is None or kind == "none":
        return None
    if kind != "gpt2":
        raise UnsupportedError(
            f"{quote_path(path)} has a tokenizer of type {quote(kind)}; supported: gpt2 (byte-level BPE); "
            "or take the model as a Hugging Face directory with a tokenizer.json"
        )
    rules = pretokenizer_named(keys.text("pre") or "default")
    vocabulary = keys.vocabulary()
    token_ids = dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
    try:  # a dict and tuples are the library's fastest way in: half the time of a tokenizer.json
        model = models.BPE(token_ids, vocabulary.merges, ignore_merges=rules.ignore_merges)
    except Exception as error:  # noqa: BLE001 (the library raises no narrower class)
        raise keys.damaged(f"its tokens and merges don't fit together ({quote(error)[1:-1]})") from None
    tokens, ids = vocabulary.tokens, vocabulary.ids
    control_ids = _control_ids(vocabulary)
    return TokenizerParts(
        backend=_build(model, vocabulary, rules, control_ids),
        spelling=TokenSpelling(Spelling.BYTE_LEVEL),
        vocab_size=len(tokens),
        bos_token_id=ids.get("bos"),
        eos_token_ids=end_of_turn_ids((i, tokens[i]) for i in control_ids)
        | {ids[role] for role in ("eos", "eot", "eom") if role in ids},
        chat_templates=vocabulary.chat_templates,
        template_tokens={name: tokens[ids[role]] for role, name in _TEMPLATE_TOKENS.items() if role in ids},
        silent_token_ids=frozenset(vocabulary.ids_of(TokenType.UNUSED)),
    )


def _build(model: models.BPE, vocabulary: GgufVocabulary, rules: PreTokenizer, control_ids: frozenset[int]) -> Backend:
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rules.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(
        [
            AddedToken(vocabulary.tokens[token_id], special=token_id in control_ids, normalized=False)
            for token_id in sorted(control_ids.union(vocabulary.ids_of(TokenType.USER_DEFINED)))
            if vocabulary.tokens[token_id]
        ]
    )
    _add_post_processor(backend, vocabulary, rules)
    return backend


def _control_ids(vocabulary: GgufVocabulary) -> frozenset[int]:
    """Ids of control and unknown tokens, and of ends of a turn that a converter took for ordinary tokens."""
    mistyped = [token_id for token_id, token in enumerate(vocabulary.tokens) if token in _ALWAYS_CONTROL]
    return frozenset((*vocabulary.ids_of(TokenType.UNKNOWN, TokenType.CONTROL), *mistyped))


def _add_post_processor(backend: Backend, vocabulary: GgufVocabulary, rules: PreTokenizer) -> None:
    """Make the backend put BOS before a text and EOS behind it, where the file wants them and has them."""
    adds_bos = rules.add_bos if vocabulary.adds_bos is None else vocabulary.adds_bos
    before = [("BOS", vocabulary.ids["bos"])] if adds_bos and "bos" in vocabulary.ids else []
    behind = [("EOS", vocabulary.ids["eos"])] if vocabulary.adds_eos and "eos" in vocabulary.ids else []
    if before or behind:
        backend.post_processor = processors.TemplateProcessing(
            single=[*(name for name, _ in before), "$A", *(name for name, _ in behind)],
            special_tokens=[*before, *behind],
        )
