"""Text to token ids and back, for whatever file the vocabulary came in.

Knows neither files nor formats: `gguf_tokenizer` and `huggingface_tokenizer` read those. Encoding is the work
of the `tokenizers` library. Decoding is done here from bytes: ids become bytes, the bytes become text, and
what isn't UTF-8 becomes U+FFFD, so that decoding at once and decoding in a stream are the same by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from kvist.checkpoint.files import Checkpoint, quote
from kvist.checkpoint.gguf_tokenizer import read_gguf_tokenizer
from kvist.checkpoint.huggingface_tokenizer import read_huggingface_tokenizer
from kvist.checkpoint.text_stream import TextStream
from kvist.checkpoint.tokenizer_parts import TokenizerParts, is_library_failure
from kvist.errors import CheckpointError, RequestError

MAX_TOKEN_ID = 2**31 - 1
_FIRST, _NEVER = b'"prepend_scheme":"first"', b'"prepend_scheme":"never"'


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """Read the checkpoint's tokenizer, or return None where it has none.

    Raises CheckpointError where it can't be used, UnsupportedError where it is of another kind.
    """
    if checkpoint.format == "gguf":
        parts = read_gguf_tokenizer(checkpoint.metadata, checkpoint.path)
    else:
        parts = read_huggingface_tokenizer(checkpoint.path, checkpoint.config, checkpoint.generation_config)
    return None if parts is None else Tokenizer(parts)


class Tokenizer:
    """A vocabulary with its rules; immutable, and may be used from several threads.

    `vocab_size` is one more than the highest id: the model's output may be wider (padding), and ids without a
    token stand for no text. `special_tokens` maps the names that a text may only use with `parse_special` to their
    ids; `eos_token_ids` end a reply. `chat_template` is the default one of `chat_templates`, or None;
    `template_tokens` are the variables (`bos_token` ...) that it expects. `kind` and `pre_tokenizer` are for showing.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self.vocab_size = parts.vocab_size
        self.kind = parts.kind
        self.pre_tokenizer = parts.pre_tokenizer
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.chat_templates: Mapping[str, str] = dict(parts.chat_templates)
        self.template_tokens: Mapping[str, str] = dict(parts.template_tokens)
        self._spelling = parts.spelling
        self._silent_token_ids = parts.silent_token_ids
        self._prefixes_text = parts.prefixes_text
        self._backend = parts.backend
        self._plain_backend = _without_special_tokens(parts.backend)
        added = parts.backend.get_added_tokens_decoder()
        self._takes_before = frozenset(token_id for token_id, token in added.items() if token.lstrip)
        self._takes_behind = frozenset(token_id for token_id, token in added.items() if token.rstrip)
        self._added_tokens = {token_id: token.content for token_id, token in added.items()}
        self.special_tokens: Mapping[str, int] = {token.content: i for i, token in added.items() if token.special}
        self.special_token_ids = frozenset(self.special_tokens.values())
        self._special_names = tuple(self.special_tokens)
        self._shown: dict[int, bytes] = {}  # what tokens add to a shown text: they come again and again

    @property
    def chat_template(self) -> str | None:
        return self.template_for(has_tools=False)

    def template_for(self, *, has_tools: bool) -> str | None:
        """The template for a request: the one named `tool_use`, where there is one, if the request offers tools."""
        if has_tools and "tool_use" in self.chat_templates:
            return self.chat_templates["tool_use"]
        if len(self.chat_templates) == 1:
            return next(iter(self.chat_templates.values()))
        return self.chat_templates.get("default")

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text.

        `add_special_tokens` puts BOS and EOS around it where the model wants them: not for the output of a
        chat template, which writes its own. `parse_special=False` takes the names of special tokens as plain
        text: for text from someone who isn't to steer the model. Raises RequestError for text that has no
        UTF-8 form, CheckpointError where a tokenizer.json contradicts itself.
        """
        check_encodable(text)
        if self._prefixes_text and text and not (parse_special and text.startswith(self._special_names)):
            text = " " + text
        return _encoded(self._backend if parse_special else self._plain_backend, text, add_special_tokens)

    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        """Ids of texts and tokens one behind the other: as of the whole text, had it no names of special tokens.

        The ids among `parts` stand for themselves. Texts are plain as with `parse_special=False`; nothing is put around
        them. Errors are those of `encode`.
        """
        ids: list[int] = []
        for number, part in enumerate(parts):
            if isinstance(part, int):
                ids.append(part)
                continue
            before = parts[number - 1] if number else None
            behind = parts[number + 1] if number + 1 < len(parts) else None
            text = part.lstrip() if before in self._takes_behind else part
            text = text.rstrip() if behind in self._takes_before else text
            if number == 0 or not text:
                ids += self.encode(text, add_special_tokens=False, parse_special=False)
            else:
                check_encodable(text)
                ids += _encoded(self._continuing_backend, text, add_special_tokens=False)
        return ids

    @cached_property
    def _continuing_backend(self) -> Backend:
        """For plain text that follows a token: one that puts a space before the first part of a text puts none here."""
        state = self._plain_backend.pre_tokenizer.__getstate__() if self._plain_backend.pre_tokenizer else b""
        if _FIRST not in state:
            return self._plain_backend
        pre_tokenizer = pre_tokenizers.Sequence([])
        wrapped = b'{"type":"Sequence","pretokenizers":[' + state.replace(_FIRST, _NEVER) + b"]}"
        pre_tokenizer.__setstate__(wrapped)
        twin = _without_special_tokens(self._backend)
        twin.pre_tokenizer = pre_tokenizer
        return twin

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False, continues_text: bool = False) -> str:
        """The text of a sequence of ids.

        `continues_text` says that the ids follow other text. It matters only for vocabularies whose encoder
        puts a space before every text (Llama 2): at a start that space is left out, in the middle it counts.
        """
        stream = self.stream(skip_special_tokens=skip_special_tokens, continues_text=continues_text)
        return "".join([*map(stream.push, ids), stream.finish()])

    def stream(self, *, skip_special_tokens: bool = False, continues_text: bool = False) -> TextStream:
        """Decode id by id; what it emits, joined, is `decode` of the same ids with the same arguments."""
        strips = self._spelling.strips_leading_space and not continues_text
        return TextStream(self._shown_bytes if skip_special_tokens else self.token_bytes, strips_leading_space=strips)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text; none for an id without a token. Raises RequestError below 0."""
        if not 0 <= token_id <= MAX_TOKEN_ID:
            raise RequestError(f"token id {token_id} is out of range; it has to be 0 to {self.vocab_size - 1}")
        if token_id in self._silent_token_ids:
            return b""
        added = self._added_tokens.get(token_id)
        token = self._backend.id_to_token(token_id) if added is None else added
        return b"" if token is None else self._spelling.to_bytes(token, is_added=added is not None)

    def token_text(self, token_id: int) -> str:
        """The token by itself, for showing: parts of a character come out as U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def _shown_bytes(self, token_id: int) -> bytes:
        known = self._shown.get(token_id)
        if known is None:
            known = self._shown[token_id] = b"" if token_id in self.special_token_ids else self.token_bytes(token_id)
        return known


def _encoded(backend: Backend, text: str, add_special_tokens: bool) -> list[int]:
    try:
        ids: list[int] = backend.encode(text, add_special_tokens=add_special_tokens).ids
    except BaseException as error:
        if not is_library_failure(error):
            raise
        raise CheckpointError(f"the model's tokenizer fails on the text: {quote(error)}; fetch it again") from None
    return ids


def check_encodable(text: str) -> None:
    """Raise RequestError unless the text is made of Unicode characters only.

    Bytes that aren't UTF-8 reach a Python program's arguments as lone surrogates U+DC80 to U+DCFF.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        found = f"the byte 0x{code - 0xDC00:02X}" if 0xDC80 <= code <= 0xDCFF else f"the lone surrogate U+{code:04X}"
        before = quote(text[max(0, error.start - 20) : error.start])
        raise RequestError(
            f"the text isn't valid UTF-8: it has {found} at character {error.start}, after {before}; re-encode it"
        ) from None


def _without_special_tokens(backend: Backend) -> Backend:
    """A twin that takes special tokens' names as plain text. It shares the vocabulary, so it costs nothing."""
    twin = Backend(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        value = getattr(backend, part)
        if value is not None:
            setattr(twin, part, value)
    added = backend.get_added_tokens_decoder()
    twin.add_tokens([added[token_id] for token_id in sorted(added)])
    twin.encode_special_tokens = True
    assert twin.get_added_tokens_decoder().keys() == added.keys(), "the twin's added tokens have other ids"
    return twin
