"""What every peer's script shares: the arguments, what is measured and how, and the JSON document of its last line.

A script gives an ``Engine``; everything else is here, so that all are measured alike: the same token ids, greedy, end
tokens ignored, one warm-up before each figure, the median of its rounds. Nobody is asked for times: an engine returns
tokens, and the clock stands outside. No two prompts begin alike, unless prefix reuse is what is measured.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Prompts = Sequence[Sequence[int]]

VOCABULARY = range(1_000, 40_000)
"""Ids of ordinary words in SmolLM2's vocabulary."""
DECODED = 32
"""Tokens that are generated to time one."""
USER_PROMPT, USER_ANSWER = 128, 128
PREFIX, AFTER_PREFIX = 2_000, 32


class Engine(Protocol):
    """A peer, loaded. ``weights`` and ``kv`` say in which precision."""

    name: str
    version: str
    weights: str
    kv: str

    def generate(self, prompts: Prompts, num_tokens: int) -> list[list[int]]:
        """Return ``num_tokens`` greedy ids after each prompt, all prompts served at once."""
        ...


class Clock:
    """Times calls of one engine on prompts that no earlier call has seen."""

    def __init__(self, engine: Engine, rounds: int) -> None:
        self.engine, self.rounds, self._random = engine, rounds, random.Random(1)

    def prompt(self, num_tokens: int) -> list[int]:
        return self._random.choices(VOCABULARY, k=num_tokens)

    def seconds(self, prompts: Prompts, num_tokens: int) -> float:
        start = time.perf_counter()
        answers = self.engine.generate(prompts, num_tokens)
        taken = time.perf_counter() - start
        assert [len(answer) for answer in answers] == [num_tokens] * len(prompts), "an engine stopped early"
        return taken

    def median(self, measure: Callable[[], float]) -> float:
        """The median of some rounds after one that warms up."""
        measure()
        return statistics.median(measure() for _ in range(self.rounds))

    def length(self, num_tokens: int) -> dict[str, float]:
        """One user: the time to the first token, and what each token after it takes."""
        ttft_s = self.median(lambda: self.seconds([self.prompt(num_tokens)], 1))
        whole_s = self.median(lambda: self.seconds([self.prompt(num_tokens)], DECODED + 1))
        return {"prompt_tokens": num_tokens, "ttft_s": ttft_s, "tpot_s": (whole_s - ttft_s) / DECODED}

    def users(self, num_users: int) -> dict[str, float]:
        """Many users at once: generated tokens a second of the whole run, prompts included."""
        wall_s = self.median(lambda: self.seconds([self.prompt(USER_PROMPT) for _ in range(num_users)], USER_ANSWER))
        return {"users": num_users, "wall_s": wall_s, "generated_tokens_per_s": num_users * USER_ANSWER / wall_s}

    def prefix(self) -> dict[str, float]:
        """The time to the first token behind a prefix that an earlier prompt had, and behind one that none had."""
        shared = self.prompt(PREFIX)
        self.seconds([[*shared, *self.prompt(AFTER_PREFIX)]], 1)
        cached = self.median(lambda: self.seconds([[*shared, *self.prompt(AFTER_PREFIX)]], 1))
        cold = self.median(lambda: self.seconds([self.prompt(PREFIX + AFTER_PREFIX)], 1))
        return {"prefix_tokens": PREFIX, "cached_ttft_s": cached, "cold_ttft_s": cold}


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main(load: Callable[[str, int, int], Engine]) -> None:
    """Measure what ``load(model, threads, context)`` gives, and print it."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("model", help="a GGUF file; for peers that need one, a Hugging Face or ONNX directory")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", type=_numbers, default=[128, 512, 2_048, 7_000])
    parser.add_argument("--users", type=_numbers, default=[1, 4, 16, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-prefix", action="store_true", help="leave prefix reuse out")
    asked = parser.parse_args()
    start = time.perf_counter()
    engine = load(asked.model, asked.threads, max([*asked.lengths, PREFIX + AFTER_PREFIX]) + DECODED + 2)
    clock = Clock(engine, asked.rounds)
    clock.seconds([clock.prompt(8)], 1)
    document: dict[str, Any] = {
        "peer": engine.name,
        "version": engine.version,
        "weights": engine.weights,
        "kv": engine.kv,
        "threads": asked.threads,
        "rounds": asked.rounds,
        "cold_start_s": time.perf_counter() - start,
    }
    document["lengths"] = [clock.length(number) for number in asked.lengths]
    document["users"] = [clock.users(number) for number in asked.users]
    document["prefix"] = None if asked.no_prefix else clock.prefix()
    print(json.dumps(document))
