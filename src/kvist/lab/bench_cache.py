"""The lesson's demonstration: the same greedy tokens with the cache and without, token by token.

Without it, each token computes the whole prefix anew, so its time grows with the position; with it, a token costs one
row and the reading of the cache. The results are compared as bytes: a digest over every row of logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

from kvist.engine.request import SamplingParams
from kvist.engine.result import Result
from kvist.errors import RequestError
from kvist.lab.timing import Timing, quantile
from kvist.llm import LLM

DEFAULT_PROMPT = "The key-value cache of a transformer is"
DEFAULT_TOKENS = 500
CACHED_REPEATS = 3
"""The cached run is short, so it is timed this often and its median taken; the uncached one is long enough."""


@dataclass(frozen=True)
class Run:
    """One answer and when each of its tokens came: seconds since the token before it, the first since the start."""

    result: Result
    token_s: tuple[float, ...]


@dataclass(frozen=True)
class CacheBench:
    """Both ways of computing the same answer. ``cached_token_s`` are medians over ``cached_runs``."""

    prompt_tokens: int
    cached: Result
    uncached: Result
    cached_token_s: tuple[float, ...]
    uncached_token_s: tuple[float, ...]
    cached_runs: Timing

    @property
    def cached_s(self) -> float:
        return sum(self.cached_token_s)

    @property
    def uncached_s(self) -> float:
        return sum(self.uncached_token_s)

    @property
    def ratio(self) -> float:
        return self.uncached_s / self.cached_s

    @property
    def is_identical(self) -> bool:
        """Whether tokens and all logits are the same bytes."""
        same_tokens = self.cached.token_ids == self.uncached.token_ids
        return same_tokens and self.cached.logits_sha256 == self.uncached.logits_sha256

    @property
    def positions(self) -> tuple[int, ...]:
        """The position of each generated token, counted from the prompt's first."""
        return tuple(range(self.prompt_tokens, self.prompt_tokens + len(self.cached_token_s)))

    def as_json(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": len(self.cached_token_s),
            "cached_s": self.cached_s,
            "uncached_s": self.uncached_s,
            "ratio": self.ratio,
            "identical": self.is_identical,
            "logits_sha256": self.cached.logits_sha256,
            "cached_forward_tokens": self.cached.forward_tokens,
            "uncached_forward_tokens": self.uncached.forward_tokens,
            "positions": list(self.positions),
            "cached_token_s": list(self.cached_token_s),
            "uncached_token_s": list(self.uncached_token_s),
            "cached_spread": self.cached_runs.as_json(),
        }


def bench_cache(
    llm: LLM,
    prompt: str | list[int],
    num_tokens: int = DEFAULT_TOKENS,
    *,
    on_token: Callable[[int], object] | None = None,
) -> CacheBench:
    """Generate ``num_tokens`` greedily with the cache and without; ``on_token`` hears of each uncached one.

    Raises RequestError where prompt and answer don't fit the context.
    """
    token_ids = llm.files.encode(prompt) if isinstance(prompt, str) else prompt
    if len(token_ids) + num_tokens > llm.context_length + 1:  # the last token doesn't enter the model
        raise RequestError(
            f"{len(token_ids)} tokens of prompt and {num_tokens} generated ones don't fit the context of "
            f"{llm.context_length}; give less to -n, or more to --context"
        )
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    warmup = SamplingParams(max_tokens=min(8, num_tokens), ignore_eos=True)
    _run(llm, token_ids, warmup)  # compiles, and reads the weights for the first time
    timed = [_run(llm, token_ids, params) for _ in range(CACHED_REPEATS)]
    cached = _run(llm, token_ids, params, has_digest=True).result  # apart, since hashing takes time
    uncached = _run(llm, token_ids, params, is_cached=False, has_digest=True, on_token=on_token)
    return CacheBench(
        prompt_tokens=cached.prompt_tokens,
        cached=cached,
        uncached=uncached.result,
        cached_token_s=tuple(quantile(times, 0.5) for times in zip(*(run.token_s for run in timed), strict=True)),
        uncached_token_s=uncached.token_s,
        cached_runs=Timing(tuple(sum(run.token_s) for run in timed)),
    )


def _run(
    llm: LLM,
    token_ids: list[int],
    params: SamplingParams,
    *,
    is_cached: bool = True,
    has_digest: bool = False,
    on_token: Callable[[int], object] | None = None,
) -> Run:
    moments = [perf_counter()]
    generation = llm.stream(token_ids, params, cache=is_cached, digest=has_digest, reuse=False)
    for event in generation:
        moments.append(perf_counter())
        if on_token is not None:
            on_token(event.index)
    return Run(generation.result, tuple(after - before for before, after in pairwise(moments)))
