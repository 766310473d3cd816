"""Many requests in one engine on compiled models: the bytes of the logits, on one thread and two (``proof.many``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proof.cases import CASES, Case
from proof.many import HOUSES, Arrival, House, Stage, arrivals, check_many

from kvist.cache.kv_cache import KvCache
from kvist.spec.cache import CacheSpec

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


@pytest.fixture(scope="module", params=["q4_1", "mixed", "window"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = compiled_stage(CASES[request.param], tmp_path_factory.mktemp("many"))
    yield stage
    for decoder in stage.decoders:
        decoder.close()


def test_each_gets_what_it_gets_alone(stage: Stage) -> None:
    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(HOUSES, st.lists(arrivals(LONGEST, stage.vocab_size, 12), min_size=1, max_size=6))
    def check(house: House, coming: list[Arrival]) -> None:
        check_many(stage, house, coming)

    check()
