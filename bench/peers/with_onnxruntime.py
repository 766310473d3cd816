"""onnxruntime-genai, from a directory that its own model builder made; its cache on a CPU is in f32."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
from peer import Asked, Engine, TokenIds, serve


class OnnxRuntime:
    name = "onnxruntime-genai"
    version = importlib.metadata.version("onnxruntime-genai")
    weights = "int4 in groups of 32"
    kv = "f32"

    def __init__(self, asked: Asked) -> None:
        assert asked.kv == "default", "its builder quantises the cache only with scales calibrated elsewhere"
        config = og.Config(asked.model)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": asked.threads}}}}))
        self.model = og.Model(config)
        self.context = asked.context
        facts = json.loads((Path(asked.model) / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]
        self.kv_bytes = 4.0 * 2 * facts["num_hidden_layers"] * facts["num_key_value_heads"] * facts["head_size"]
        self._generator: og.Generator | None = None
        self._held: TokenIds = []

    def stream(self, prompt: TokenIds, num_tokens: int) -> Iterator[int]:
        """What the last prompt and this one begin with alike stays in the generator: ``rewind_to``."""
        shared = min(_common(self._held, prompt), len(prompt) - 1)
        if self._generator is None or shared == 0:
            self._generator = self._make(1, self.context)
            shared = 0
        else:
            self._generator.rewind_to(shared)
        self._held = list(prompt)
        self._generator.append_tokens(np.array(prompt[shared:], np.int32))
        for _ in range(num_tokens):
            self._generator.generate_next_token()
            yield int(self._generator.get_next_tokens()[0])

    def generate(self, prompts: Sequence[TokenIds], num_tokens: int) -> list[TokenIds]:
        """One batch that starts and ends together; its engine with requests needs a GPU."""
        self._generator, self._held = None, []
        length = len(prompts[0])
        generator = self._make(len(prompts), length + num_tokens)
        generator.append_tokens(np.array(prompts, np.int32))
        for _ in range(num_tokens):
            generator.generate_next_token()
        return [list(generator.get_sequence(user)[length:]) for user in range(len(prompts))]

    def _make(self, num_users: int, max_length: int) -> og.Generator:
        params = og.GeneratorParams(self.model)
        params.set_search_options(do_sample=False, batch_size=num_users, max_length=max_length, min_length=max_length)
        return og.Generator(self.model, params)


def _common(held: TokenIds, prompt: TokenIds) -> int:
    return next((i for i, (a, b) in enumerate(zip(held, prompt, strict=False)) if a != b), min(len(held), len(prompt)))


def load(asked: Asked) -> Engine:
    return OnnxRuntime(asked)


if __name__ == "__main__":
    serve(load)
