"""The tokenizer of a Hugging Face directory: tokenizer.json or tokenizer.model, and what the files beside them say.

tokenizer.json is taken as it is: normaliser, pre-tokenizer, post-processor (which decides about BOS and EOS); only
padding and truncation, which belong to training, are switched off. tokenizer_config.json names the special tokens
and holds the chat template; chat_template.jinja and additional_chat_templates/*.jinja count before it. The ends of
a reply are what any of the files calls so (tokenizer_config.json, config.json, generation_config.json), and the
special tokens that mean it by their name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer as Backend

from kvist.checkpoint.disk import exists, reason, regular_file_bytes
from kvist.checkpoint.files import quote, quote_path
from kvist.checkpoint.json_object import read_json_object
from kvist.checkpoint.sentencepiece_tokenizer import SENTENCEPIECE_NAME, read_sentencepiece_tokenizer
from kvist.checkpoint.token_spelling import spelling_of_decoder
from kvist.checkpoint.tokenizer_parts import RawTokenizer, TokenizerParts, end_of_turn_ids, is_library_failure
from kvist.errors import CheckpointError, UnsupportedError

MAX_TOKENIZER_BYTES = 256 << 20
MAX_TEMPLATE_BYTES = 1 << 20
_TEMPLATE_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_AFFIX = re.compile(rb'"(continuing_subword_prefix|end_of_word_suffix)"\s*:\s*"(?!")')
"""Vocabularies of encoders mark parts of words so; on one that doesn't keep to it the library ends the process."""
_OTHER_NAMES = (
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "vocab.json",
    "tokenizer.tiktoken",
    "qwen.tiktoken",
)


def read_huggingface_tokenizer(
    directory: Path, config: Mapping[str, object], generation_config: Mapping[str, object]
) -> TokenizerParts | None:
    """Build the tokenizer, or return None for a directory without one.

    Raises CheckpointError for files that can't be read, UnsupportedError for a SentencePiece model that isn't BPE
    and for a tokenizer whose decoder is of an unknown kind.
    """
    settings_path = directory / "tokenizer_config.json"
    settings = read_json_object(settings_path) if exists(settings_path) else {}
    raw = _read_raw(directory, settings)
    if raw is None:
        return None
    backend, added = raw.backend, raw.backend.get_added_tokens_decoder()
    tokens = {name: text for name in _TEMPLATE_TOKENS if (text := _token_text(settings.get(name))) is not None}
    named = {name: backend.token_to_id(text) for name, text in tokens.items()}
    vocab_size = max(backend.get_vocab_size(), max(added, default=-1) + 1)
    bos_ids = [named.get("bos_token")] if "bos_token" in settings else _ids(config.get("bos_token_id"))
    eos_ids = [named.get("eos_token"), *_ids(config.get("eos_token_id")), *_ids(generation_config.get("eos_token_id"))]
    ends_by_name = end_of_turn_ids((token_id, token.content) for token_id, token in added.items() if token.special)
    return TokenizerParts(
        backend=backend,
        spelling=raw.spelling,
        vocab_size=vocab_size,
        bos_token_id=next((i for i in bos_ids if i is not None and 0 <= i < vocab_size), raw.bos_token_id),
        eos_token_ids=ends_by_name | {i for i in (*eos_ids, raw.eos_token_id) if i is not None and 0 <= i < vocab_size},
        chat_templates=_chat_templates(directory, settings),
        template_tokens=tokens,
        silent_token_ids=raw.silent_token_ids,
        prefixes_text=raw.prefixes_text,
        kind=raw.kind,
    )


def _read_raw(directory: Path, settings: Mapping[str, object]) -> RawTokenizer | None:
    """The tokenizer of the one file that holds it, None where there is no such file."""
    path = directory / "tokenizer.json"
    if exists(path):
        backend = _load_backend(path)
        decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder else None
        spelling = spelling_of_decoder(decoder)
        kind = f"{spelling.spelling.value} {type(backend.model).__name__}"
        return RawTokenizer(backend, spelling, kind=kind)
    if exists(directory / SENTENCEPIECE_NAME):
        return read_sentencepiece_tokenizer(directory, settings)
    for name in _OTHER_NAMES:
        if exists(directory / name):
            raise UnsupportedError(
                f"{quote_path(directory)} has its tokenizer as {name} only, which isn't read; needed: tokenizer.json "
                "(transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one)"
            )
    return None


def _load_backend(path: Path) -> Backend:
    num_bytes = regular_file_bytes(path)
    if num_bytes > MAX_TOKENIZER_BYTES:
        raise CheckpointError(f"{quote_path(path)} has {num_bytes} bytes; at most {MAX_TOKENIZER_BYTES} are allowed")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"can't read {quote_path(path)}: {reason(error)}") from None
    affix = _AFFIX.search(data)
    if affix is not None:
        raise UnsupportedError(f"{quote_path(path)} has a {affix.group(1).decode()}, which isn't supported")
    try:
        backend = Backend.from_buffer(data)
        backend.encode("")  # a post-processor that contradicts itself shows when it is used
    except BaseException as error:
        if not is_library_failure(error):
            raise
        raise CheckpointError(f"{quote_path(path)} is no tokenizer that can be read: {quote(error)}") from None
    backend.no_padding()
    backend.no_truncation()
    return backend


def _token_text(value: object) -> str | None:
    """A special token stands as its text or as an object with its text in `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _ids(value: object) -> list[int]:
    """`eos_token_id` and its like are null, one id or a list of ids; what isn't an id is passed over."""
    return [item for item in (value if isinstance(value, list) else [value]) if type(item) is int]


def _chat_templates(directory: Path, settings: Mapping[str, object]) -> dict[str, str]:
    """Templates by name; the files come before tokenizer_config.json, all of which they replace."""
    templates: dict[str, str] = {}
    file = directory / "chat_template.jinja"
    if exists(file):
        templates["default"] = _read_template(file)
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read_template(path)
    if templates:
        return templates
    value = settings.get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    named = value if isinstance(value, list) else []
    pairs = [(item.get("name"), item.get("template")) for item in named if isinstance(item, dict)]
    return {name: template for name, template in pairs if isinstance(name, str) and isinstance(template, str)}


def _read_template(path: Path) -> str:
    num_bytes = regular_file_bytes(path)
    if num_bytes > MAX_TEMPLATE_BYTES:
        raise CheckpointError(f"{quote_path(path)} has {num_bytes} bytes; at most {MAX_TEMPLATE_BYTES} are allowed")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"can't read {quote_path(path)}: {reason(error)}") from None
