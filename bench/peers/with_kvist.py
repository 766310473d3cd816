"""kvist itself, measured as its peers are."""

from __future__ import annotations

from peer import USER_ANSWER, USER_PROMPT, Engine, Prompts, main

import kvist
from kvist import LLM, SamplingParams


class Kvist:
    name = "kvist"
    version = kvist.__version__
    weights = "as in the file"
    kv = "bf16"

    def __init__(self, model: str, threads: int, context: int) -> None:
        budget = max(context, 32 * (USER_PROMPT + USER_ANSWER)) * 40_000
        self.llm = LLM(model, threads=threads, context=context, kv_budget=budget)

    def generate(self, prompts: Prompts, num_tokens: int) -> list[list[int]]:
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0)
        return [list(answer.token_ids) for answer in self.llm.generate([list(ids) for ids in prompts], params)]


def load(model: str, threads: int, context: int) -> Engine:
    return Kvist(model, threads, context)


main(load)
