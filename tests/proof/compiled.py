"""Many requests (``proof.many``) on compiled tiny models, on two threads and on one."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvist.cache.kv_cache import KvCache
from kvist.spec.cache import CacheSpec
from proof.cases import Case
from proof.many import HOUSES, Arrival, House, Stage, arrivals, check_many

LONGEST = 300
"""More than a span of attention."""


def compiled_stage(case: Case, path: Path) -> Stage:
    """A tiny model on two threads, and on one; every byte of a new cache says NaN."""
    file = case.write(path)
    decoders = [case.load(file, threads) for threads in (2, 1)]

    def new_cache(num_sequences: int, step_tokens: int) -> KvCache:
        cache = KvCache(
            decoders[0].spec,
            CacheSpec(case.codec),
            num_tokens=LONGEST,
            num_sequences=num_sequences,
            step_tokens=step_tokens,
        )
        cache.store.arena[:] = 0xFF
        return cache

    return Stage(case.name, decoders, new_cache, LONGEST, decoders[0].spec.vocab_size)


def search(stage: Stage, num_examples: int) -> None:
    """Look for requests of which one gets something else."""

    @settings(max_examples=num_examples, suppress_health_check=list(HealthCheck))
    @given(HOUSES, st.lists(arrivals(LONGEST, stage.vocab_size, 8), min_size=1, max_size=6))
    def check(house: House, coming: list[Arrival]) -> None:
        check_many(stage, house, coming)

    check()
