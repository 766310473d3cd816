"""What a tokenizer is made of, whichever file it came from: the border between readers and `Tokenizer`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tokenizers import Tokenizer as Backend

from kvist.checkpoint.token_spelling import TokenSpelling

# fmt: off
END_OF_TURN_NAMES = frozenset((
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>", "<|endoftext|>",
    "<|end_of_text|>", "<end_of_turn>", "<end_of_utterance>", "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>",
    "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>", "</s>", "<|calls|>", "<|flush|>"
))
# fmt: on
"""Names that mean the end of a reply or of all text wherever they are control tokens."""


_ALWAYS_CONTROL = frozenset(
    name for name in END_OF_TURN_NAMES if name.startswith(("<|", "<｜")) or name == "<end_of_turn>"
)


def is_always_control(name: str) -> bool:
    """Whether a token of this name is a control token whatever its file says: no text is meant by it."""
    return name in _ALWAYS_CONTROL


@dataclass(frozen=True)
class TokenizerParts:
    """`vocab_size` is one more than the highest id; some ids below it may have no token.

    `silent_token_ids` stand for no text (padding of the vocabulary). `prefixes_text`: a text is encoded behind a space
    unless it begins with a special token, which the backend doesn't see to. `chat_templates` maps a name, usually
    `default` alone, to a Jinja template; `template_tokens` are the variables such as `bos_token` that it reads.
    `kind` and `pre_tokenizer` are words to show: "byte-level BPE" and a GGUF file's name for what cuts text.
    """

    backend: Backend
    spelling: TokenSpelling
    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    template_tokens: Mapping[str, str] = field(default_factory=dict)
    silent_token_ids: frozenset[int] = frozenset()
    prefixes_text: bool = False
    kind: str = ""
    pre_tokenizer: str | None = None

    def __post_init__(self) -> None:
        named = [*self.eos_token_ids, *([] if self.bos_token_id is None else [self.bos_token_id])]
        assert all(0 <= token_id < self.vocab_size for token_id in named), (named, self.vocab_size)


@dataclass(frozen=True)
class RawTokenizer:
    """What one file of a directory gives before the files beside it are asked; ids as far as that file has them."""

    backend: Backend
    spelling: TokenSpelling
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    silent_token_ids: frozenset[int] = frozenset()
    prefixes_text: bool = False
    kind: str = ""


def end_of_turn_ids(control_tokens: Iterable[tuple[int, str]]) -> frozenset[int]:
    """Ids of the control tokens that end a reply by their name.

    Where `<|return|>` or `<|flush|>` ends a reply (OpenAI's harmony format and Solar's), `<|end|>` only ends one of
    its messages.
    """
    ids = {name: token_id for token_id, name in control_tokens if name in END_OF_TURN_NAMES}
    if "<|return|>" in ids or "<|flush|>" in ids:
        ids.pop("<|end|>", None)
    return frozenset(ids.values())


def is_library_failure(error: BaseException) -> bool:
    """Whether the tokenizers library gave up: with a plain Exception on what it foresees, else with a Rust panic.

    Python sees a panic as `pyo3_runtime.PanicException`, which can't be imported and is no Exception.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
