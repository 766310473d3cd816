"""What every peer's script shares: its arguments, what is measured and how. Knows no engine and needs no package.

A script gives ``serve`` a function that loads its engine; then lines of JSON on stdin ask for measurements, and each is
answered by one line of JSON. All are measured alike: the same token ids from the same seed, greedy, end tokens ignored,
and the clock stands outside, so that nobody is asked how long it took. No two prompts begin alike, unless the reuse of
a prefix is what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TokenIds = list[int]

VOCABULARY = range(1_000, 40_000)
"""Ids of ordinary words in SmolLM2's vocabulary."""
DECODED = 32
"""Tokens after the first one whose mean time is the TPOT."""
USER_PROMPT, USER_ANSWER = 128, 128
PREFIX, AFTER_PREFIX = 2_000, 32
MOST_USERS = 32
WARM_UP = 512
"""No warm-up is longer than this: at 7,000 tokens one of full length would take as long as what is measured."""


class Engine(Protocol):
    """A peer, loaded. ``weights`` and ``kv`` say in which precision, ``kv_bytes`` what a token takes in its cache."""

    name: str
    version: str
    weights: str
    kv: str
    kv_bytes: float

    def stream(self, prompt: TokenIds, num_tokens: int) -> Iterator[int]:
        """Yield ``num_tokens`` greedy ids, each as soon as it is known; what it has of the prompt isn't computed."""
        ...

    def generate(self, prompts: Sequence[TokenIds], num_tokens: int) -> list[TokenIds]:
        """Return ``num_tokens`` greedy ids after each prompt, all served at once."""
        ...


@dataclass(frozen=True)
class Asked:
    """What an engine is loaded with; ``context`` tokens have to fit for one user, ``kv`` is one of its own names."""

    model: str
    threads: int
    context: int
    kv: str


class Meter:
    """Times one engine. ``seed`` makes the prompts, so that all engines get the same ones."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._warm: set[tuple[str, int]] = set()

    def length(self, num_tokens: int, seed: int) -> dict[str, float]:
        """One user: the time to the first token, and the mean time of each of those after it."""
        warm_up = min(num_tokens, WARM_UP)
        self._warm_up("length", warm_up, lambda: self._stream(prompt(-warm_up, warm_up), 4))
        start, times = self._stream(prompt(seed, num_tokens), DECODED + 1)
        return {"ttft_s": times[0] - start, "tpot_s": (times[-1] - times[0]) / DECODED}

    def users(self, num_users: int, seed: int) -> dict[str, float]:
        """Many users at once: generated tokens a second of the whole run, prompts included."""
        self._warm_up("users", num_users, lambda: self._crowd(num_users, -num_users, 4))
        return {"tokens_per_s": num_users * USER_ANSWER / self._crowd(num_users, seed, USER_ANSWER)}

    def prefix(self, _value: int, seed: int) -> dict[str, float]:
        """The time to the first token behind a prefix that an earlier prompt had, and behind one that none had."""
        shared = prompt(seed, PREFIX)
        start, times = self._stream([*shared, *prompt(seed + 1, AFTER_PREFIX)], 1)
        cold_s = times[0] - start
        start, times = self._stream([*shared, *prompt(seed + 2, AFTER_PREFIX)], 1)
        return {"cached_ttft_s": times[0] - start, "cold_ttft_s": cold_s}

    def about(self, _value: int, _seed: int) -> dict[str, object]:
        engine = self.engine
        return {
            "name": engine.name,
            "version": engine.version,
            "weights": engine.weights,
            "kv": engine.kv,
            "kv_bytes": engine.kv_bytes,
        }

    def _warm_up(self, kind: str, size: int, work: Callable[[], object]) -> None:
        if (kind, size) not in self._warm:
            self._warm.add((kind, size))
            work()

    def _stream(self, token_ids: TokenIds, num_tokens: int) -> tuple[float, list[float]]:
        start = time.perf_counter()
        times = [time.perf_counter() for _ in self.engine.stream(token_ids, num_tokens)]
        assert len(times) == num_tokens, f"{len(times)} tokens came of {num_tokens}"
        return start, times

    def _crowd(self, num_users: int, seed: int, num_tokens: int) -> float:
        prompts = [prompt(seed * 1_000 + user, USER_PROMPT) for user in range(num_users)]
        start = time.perf_counter()
        answers = self.engine.generate(prompts, num_tokens)
        seconds = time.perf_counter() - start
        assert [len(answer) for answer in answers] == [num_tokens] * num_users, "an answer ended early"
        return seconds


def prompt(seed: int, num_tokens: int) -> TokenIds:
    """Return made-up token ids, others for each seed and length."""
    return random.Random(f"{seed} {num_tokens}").choices(VOCABULARY, k=num_tokens)


def parser() -> argparse.ArgumentParser:
    """Return the arguments that all peers take."""
    made = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    made.add_argument("model", help="a GGUF file or a directory, as the peer takes it")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--context", type=int, default=8_192, help="tokens that one user has room for")
    made.add_argument("--kv", default="default", help="the cache's precision, as the peer calls it")
    made.add_argument("--once", action="store_true", help="generate one token and end (for a cold start)")
    return made


def serve(load: Callable[[Asked], Engine]) -> None:
    """Load an engine and measure what stdin asks for, ``{"measure": NAME, "value": N, "seed": N}`` a line."""
    options = parser().parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what engines print must not get between the answers
    engine = load(Asked(options.model, options.threads, options.context, options.kv))
    if options.once:
        token_ids = list(engine.stream(prompt(0, 8), 1))
        answers.write(json.dumps({"token_ids": token_ids}) + "\n")
        answers.flush()
        os._exit(0)  # a cold start ends with the token; what an engine does when it closes isn't measured
    meter = Meter(engine)
    for line in sys.stdin:
        answers.write(json.dumps(answer(meter, json.loads(line))) + "\n")
    answers.flush()
    os._exit(0)


def answer(meter: Meter, request: dict[str, Any]) -> dict[str, object]:
    """Return what was measured, or ``{"error": WHY}``: a peer that lacks a thing says so and goes on."""
    measures = {"length": meter.length, "users": meter.users, "prefix": meter.prefix, "about": meter.about}
    try:
        return dict(measures[request["measure"]](request.get("value", 0), request.get("seed", 0)))
    except Exception as error:  # noqa: BLE001 - engines raise what they like
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
