"""What is known of a model before its weights are read: measures, tokenizer, template and sampling defaults.

Enough to check a request, so that what can't be served is refused before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from kvist.checkpoint.catalog import open_checkpoint
from kvist.checkpoint.chat_tokens import encode_chat
from kvist.checkpoint.files import Checkpoint, quote_path
from kvist.checkpoint.text_part import text_only
from kvist.checkpoint.tokenizer import Tokenizer, load_tokenizer
from kvist.engine.defaults import default_params, end_token_ids
from kvist.engine.request import SamplingParams
from kvist.engine.values import wrong
from kvist.errors import CheckpointError, RequestError, SpecError
from kvist.model import convert, kept
from kvist.model.families import has_learned_positions
from kvist.spec.config import check_vocabulary, model_spec_from_config
from kvist.spec.model import ModelSpec

if TYPE_CHECKING:
    from typing_extensions import Self

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class ModelFiles:
    """An opened model. ``tokenizer`` is None where it has none; ``params`` are the model's own sampling settings.

    ``num_left_out`` of the files' tensors aren't the text model's.
    """

    name: str
    checkpoint: Checkpoint
    spec: ModelSpec
    tokenizer: Tokenizer | None
    params: SamplingParams
    end_token_ids: frozenset[int]
    num_left_out: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.checkpoint.close()

    @property
    def has_template(self) -> bool:
        """Whether messages can be rendered."""
        return self.tokenizer is not None and self.tokenizer.chat_template is not None

    @property
    def has_learned_positions(self) -> bool:
        """Whether there are only as many positions as were trained. Raises UnsupportedError for an unknown model."""
        return has_learned_positions(self.checkpoint.config)

    @property
    def weights_bytes(self) -> int:
        """Bytes of the tensors in the files."""
        return sum(tensor.num_bytes for tensor in self.checkpoint.tensors.values())

    def loaded_bytes(self, weights: str | None) -> int:
        """Return about how much memory the weights take, converted to ``weights`` (None: as each type is kept)."""
        form = convert.WEIGHTS.get(weights or "")
        return sum(item.kept_bytes for item in kept.kept(self.checkpoint.tensors.values(), form))

    def conversion(self, weights: str | None) -> str | None:
        """Return a line that says which types become larger ones when they are loaded; None where none do."""
        return None if weights else kept.notice(self.checkpoint.tensors.values())

    @property
    def left_out(self) -> str | None:
        """Return a line that says what of the model isn't read; None where all is."""
        if not self.num_left_out:
            return None
        return f"images aren't read: {self.name} runs as its text model; tensors left out: {self.num_left_out}"

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``, with BOS where the model wants it. Raises RequestError where it can't."""
        return self.require_tokenizer().encode(text)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Return the token ids of ``messages`` in the model's template, up to where the assistant's answer begins.

        Raises RequestError for a model without a template, and for what are no messages, or not one; CheckpointError
        for a broken template.
        """
        if not self.has_template:
            raise RequestError(f"{self.name} has no chat template; give the prompt as it is (raw), without chat")
        check_messages(messages)
        return encode_chat(self.require_tokenizer(), messages)

    def num_system_tokens(self, messages: Messages, token_ids: Sequence[int]) -> int:
        """How many of a chat's ``token_ids`` come before the first message that isn't the system's; 0 without one."""
        if not messages or messages[0].get("role") != "system":
            return 0
        other = self.encode_chat([messages[0], {"role": "user", "content": ""}])
        shared = (ours == theirs for ours, theirs in zip(token_ids, other, strict=False))
        return sum(takewhile(bool, shared))

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer. Raises RequestError where the model has none."""
        if self.tokenizer is None:
            raise RequestError(f"{self.name} has no tokenizer; give token ids instead of text")
        return self.tokenizer


def check_messages(messages: object) -> None:
    """Raise RequestError unless ``messages`` are a list of at least one."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise wrong("messages", 'a list such as [{"role": "user", "content": "Hello"}]', messages)


def open_model(name: str | Path) -> ModelFiles:
    """Open the model that ``name`` stands for; close it when done. Raises CheckpointError or SpecError."""
    if not isinstance(name, (str, Path)):
        raise wrong("model", "a name, a path, or ModelFiles", name, SpecError)
    whole = open_checkpoint(name)
    try:
        checkpoint = text_only(whole)
        tokenizer = load_tokenizer(checkpoint)
        spec = model_spec_from_config(checkpoint.config)
        check_vocabulary(spec)
        if tokenizer is not None:
            _check_vocabulary(checkpoint, spec, tokenizer)
        ends = end_token_ids(checkpoint.generation_config) | end_token_ids(checkpoint.config)
        return ModelFiles(
            name=str(name),
            checkpoint=checkpoint,
            spec=spec,
            tokenizer=tokenizer,
            params=default_params(checkpoint.generation_config),
            end_token_ids=ends | (tokenizer.eos_token_ids if tokenizer else frozenset()),
            num_left_out=len(whole.tensors) - len(checkpoint.tensors),
        )
    except BaseException:
        whole.close()
        raise


def _check_vocabulary(checkpoint: Checkpoint, spec: ModelSpec, tokenizer: Tokenizer) -> None:
    """Raise CheckpointError where text becomes tokens that the model has no row for.

    Special tokens may lie beyond: a text model that was cut from one for images too keeps its tokenizer (Gemma 3).
    """
    num_special = sum(token_id >= spec.vocab_size for token_id in tokenizer.special_token_ids)
    if tokenizer.vocab_size - num_special > spec.vocab_size:
        raise CheckpointError(
            f"the model in {quote_path(checkpoint.path)} has a vocab_size of {spec.vocab_size} and its tokenizer "
            f"{tokenizer.vocab_size} tokens; a row per token is needed: fetch config.json and the tokenizer again"
        )
