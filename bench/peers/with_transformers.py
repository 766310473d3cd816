"""transformers on PyTorch's CPU build, weights and cache in bf16, from a GGUF file."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from peer import Engine, Prompts, main


class Transformers:
    name = "transformers"
    version = f"{transformers.__version__}, torch {torch.__version__}"
    weights = kv = "bf16"

    def __init__(self, model: str, threads: int) -> None:
        torch.set_num_threads(threads)
        path = Path(model)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.bfloat16
        ).eval()

    def generate(self, prompts: Prompts, num_tokens: int) -> list[list[int]]:
        ids = torch.tensor([list(prompt) for prompt in prompts])
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=num_tokens,
                max_new_tokens=num_tokens,
                pad_token_id=0,
            )
        return [row[ids.shape[1] :].tolist() for row in out]


def load(model: str, threads: int, _context: int) -> Engine:
    return Transformers(model, threads)


main(load)
