"""Whatever is done with the cache, a row of logits is what a plain pass over its prefix gives, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof.cases import CASES, CONTEXT
from proof.ground import LENGTH, Ground, differing, logits_in, run_histories

from kvist.model.decoder import Part

CHUNKS = (1, 3, 16, 17, 255, 256)


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def ground(request, tmp_path_factory) -> Iterator[Ground]:
    ground = Ground(request.param, tmp_path_factory.mktemp(request.param.name))
    yield ground
    ground.decoder.close()


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks(ground: Ground, chunk: int) -> None:
    cache = ground.case.new_cache(ground.decoder)
    assert differing(logits_in(ground.decoder, cache, ground.texts[0], [chunk]), ground.expected[0]) == []


@settings(max_examples=15)
@given(chunks=st.lists(st.integers(1, 9) | st.integers(1, 256), min_size=1, max_size=40))
def test_any_chunks(ground: Ground, chunks: list[int]) -> None:
    cache = ground.case.new_cache(ground.decoder)
    assert differing(logits_in(ground.decoder, cache, ground.texts[1], chunks), ground.expected[1]) == []


@pytest.mark.parametrize("lengths", [range(1, 41), (255, 256, 257, 300, 513)], ids=["short", "long"])
def test_without_a_cache(ground: Ground, lengths: range | tuple[int, ...]) -> None:
    """Each prefix is computed whole, in a cache that nothing else was ever written to."""
    for length in lengths:
        cache, before = ground.case.new_cache(ground.decoder), ground.decoder.num_forward_tokens
        logits = logits_in(ground.decoder, cache, ground.texts[0][:length], [ground.decoder.step_tokens])
        assert ground.decoder.num_forward_tokens - before == length
        assert differing(logits, ground.expected[0][:length]) == []


@pytest.mark.parametrize("threads", [1, 3, 7])
def test_threads(ground: Ground, threads: int) -> None:
    decoder = ground.case.load(ground.path, threads)
    for chunk in (256, 3, 1):
        cache = ground.case.new_cache(decoder)
        assert differing(logits_in(decoder, cache, ground.texts[0], [chunk]), ground.expected[0]) == []
    decoder.close()


def test_any_history(ground: Ground) -> None:
    run_histories(ground, 30, 30)


def test_scattered_blocks_are_no_different(ground: Ground) -> None:
    """Blocks of other sequences lie between, and what they wrote is still in those that were freed."""
    decoder, cache = ground.decoder, ground.case.new_cache(ground.decoder, 4)
    others = [cache.new_sequence() for _ in range(3)]
    for start in range(0, 200, 10):
        decoder.forward([Part(other, ground.texts[1][start : start + 10], "none") for other in others])
    for other in others[::2]:
        other.release()
    assert differing(logits_in(decoder, cache, ground.texts[0], [5, 200]), ground.expected[0]) == []
    assert CONTEXT > LENGTH
