"""The files of a model that isn't one, with a real tokenizer of bytes, and how to put it in the place of real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from fakes.decoder import FakeDecoder
from kvist import llm
from kvist.checkpoint.token_spelling import BYTE_CHARACTERS, Spelling, TokenSpelling
from kvist.checkpoint.tokenizer import Tokenizer
from kvist.checkpoint.tokenizer_parts import TokenizerParts
from kvist.engine import files
from kvist.engine.files import ModelFiles
from kvist.engine.request import SamplingParams
from kvist.model import decoder as decoder_module
from kvist.spec.model import LayerSpec, ModelSpec

START, END, PADDED_VOCAB = 256, 257, 264
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class FakeCheckpoint:
    """A checkpoint without tensors."""

    def __init__(self, generation_config: dict[str, object] | None = None) -> None:
        self.path = Path("fake.gguf")
        self.format = "gguf"
        self.config: dict[str, object] = {"model_type": "llama"}
        self.generation_config = generation_config or {}
        self.tensors: dict[str, Any] = {}
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def fake_spec(context_length: int = 256, window: int | None = None) -> ModelSpec:
    layer = LayerSpec("full" if window is None else "window", 2, 1, 16, 16, window)
    return ModelSpec("llama", PADDED_VOCAB, 32, 64, context_length, (layer, layer), is_tied=True)


def byte_tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    """Each byte is a token; ``<|im_start|>`` and ``<|im_end|>`` are special, the latter ends a reply."""
    backend = Backend(models.BPE({character: byte for byte, character in enumerate(BYTE_CHARACTERS)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")])
    return Tokenizer(
        TokenizerParts(
            backend=backend,
            spelling=TokenSpelling(Spelling.BYTE_LEVEL),
            vocab_size=258,
            bos_token_id=None,
            eos_token_ids=frozenset({END}),
            chat_templates={} if template is None else {"default": template},
        )
    )


def fake_files(
    *,
    context_length: int = 256,
    window: int | None = None,
    has_tokenizer: bool = True,
    template: str | None = TEMPLATE,
    params: SamplingParams | None = None,
) -> ModelFiles:
    return ModelFiles(
        name="fake",
        checkpoint=FakeCheckpoint(),
        spec=fake_spec(context_length, window),
        tokenizer=byte_tokenizer(template) if has_tokenizer else None,
        params=params or SamplingParams(),
        end_token_ids=frozenset({END}),
    )


def install(
    monkeypatch: pytest.MonkeyPatch,
    spec: ModelSpec | None = None,
    *,
    generation_config: dict[str, object] | None = None,
    template: str | None = TEMPLATE,
    **decoder: Any,
) -> list[FakeDecoder]:
    """Make every model's name stand for the fake one; return the list that loaded decoders are put in.

    ``decoder`` are FakeDecoder's arguments.
    """
    loaded: list[FakeDecoder] = []
    model = spec or fake_spec()

    def load(
        checkpoint: object, *, weights: str | None = None, threads: int | None = None, context: int | None = None
    ) -> FakeDecoder:
        assert isinstance(checkpoint, FakeCheckpoint)
        loaded.append(FakeDecoder(model, threads=threads or 1, **decoder))
        return loaded[-1]

    monkeypatch.setattr(llm, "load_decoder", load)
    monkeypatch.setattr(decoder_module, "load_decoder", load)
    monkeypatch.setattr(files, "open_checkpoint", lambda _: FakeCheckpoint(generation_config))
    monkeypatch.setattr(files, "load_tokenizer", lambda _: byte_tokenizer(template))
    monkeypatch.setattr(files, "model_spec_from_config", lambda _: model)
    return loaded
