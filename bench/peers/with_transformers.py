"""transformers on PyTorch's CPU build, from a Hugging Face directory: bf16 weights and cache, or fp8 for the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import transformers
from peer import Asked, Engine, TokenIds, serve


class Transformers:
    name = "transformers"
    version = f"{transformers.__version__}, torch {torch.__version__}"
    weights = "bf16"

    def __init__(self, asked: Asked) -> None:
        torch.set_num_threads(asked.threads)
        self.kv = "bf16" if asked.kv == "default" else asked.kv
        self.model = transformers.AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.bfloat16).eval()
        config = self.model.config
        value_bytes = {"bf16": 2.0, "fp8": 1.0}[self.kv]
        self.kv_bytes = value_bytes * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        self._cache: transformers.Cache | None = None
        self._held: TokenIds = []

    @torch.inference_mode()
    def stream(self, prompt: TokenIds, num_tokens: int) -> Iterator[int]:
        """What the last prompt and this one begin with alike stays in the cache: ``DynamicCache.crop``."""
        shared = min(_common(self._held, prompt), len(prompt) - 1)
        if self._cache is None or shared == 0 or self.kv != "bf16":
            self._cache, shared = self._make(), 0
        else:
            self._cache.crop(shared - self._cache.get_seq_length())
        self._held = list(prompt)
        ids = torch.tensor([prompt[shared:]])
        for _ in range(num_tokens):
            ids = self._next(ids, self._cache)
            yield int(ids[0, 0])

    @torch.inference_mode()
    def generate(self, prompts: Sequence[TokenIds], num_tokens: int) -> list[TokenIds]:
        """One batch that starts and ends together."""
        cache, ids = self._make(), torch.tensor(list(prompts))
        tokens = []
        for _ in range(num_tokens):
            ids = self._next(ids, cache)
            tokens.append(ids)
        return [list(answer) for answer in torch.cat(tokens, 1).tolist()]

    def _next(self, ids: torch.Tensor, cache: transformers.Cache) -> torch.Tensor:
        logits = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def _make(self) -> transformers.Cache:
        if self.kv == "bf16":
            return transformers.DynamicCache(config=self.model.config)
        return transformers.QuantizedCache(self.kv, self.model.config)


def _common(held: TokenIds, prompt: TokenIds) -> int:
    return next((i for i, (a, b) in enumerate(zip(held, prompt, strict=False)) if a != b), min(len(held), len(prompt)))


def load(asked: Asked) -> Engine:
    return Transformers(asked)


if __name__ == "__main__":
    serve(load)
