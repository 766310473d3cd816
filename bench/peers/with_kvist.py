"""kvist itself, measured as its peers are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from peer import MOST_USERS, USER_ANSWER, USER_PROMPT, Asked, Engine, TokenIds, serve

import kvist
from kvist import LLM, SamplingParams
from kvist.spec.cache import CacheSpec, bytes_per_token


def greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True)


class Kvist:
    name = "kvist"
    version = kvist.__version__
    weights = "Q4_1, as in the file"

    def __init__(self, asked: Asked) -> None:
        self.kv = "bf16" if asked.kv == "default" else asked.kv
        cache = CacheSpec(self.kv)
        tokens = max(2 * asked.context, MOST_USERS * (USER_PROMPT + USER_ANSWER + 16))
        self.llm = LLM(
            asked.model, cache=cache, threads=asked.threads, context=asked.context, kv_budget=tokens * 25_000
        )
        self.kv_bytes = float(bytes_per_token(self.llm.spec, cache))

    def stream(self, prompt: TokenIds, num_tokens: int) -> Iterator[int]:
        for event in self.llm.stream(prompt, greedy(num_tokens)):
            yield event.token_id

    def generate(self, prompts: Sequence[TokenIds], num_tokens: int) -> list[TokenIds]:
        answers = self.llm.generate(list(prompts), greedy(num_tokens), progress=False)
        return [list(answer.token_ids) for answer in answers]


def load(asked: Asked) -> Engine:
    return Kvist(asked)


if __name__ == "__main__":
    serve(load)
