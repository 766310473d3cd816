"""Retention in whole forward passes: the bytes are the same however tokens come, and the numbers are the oracle's.

The oracle (``tiny.bounded``) keeps everything and masks what a query may not see, at the positions that the engine has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof.cases import CASES, Case
from proof.ground import differing
from tiny.bounded import Seen, forward_seeing
from tiny.compare import row_errors
from tiny.lesson import lesson
from tiny.stream import Stream

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.model.decoder import Decoder, Part
from kvist.spec.cache import allocated_bytes, logical_bytes
from kvist.spec.retention import ALL, RetentionSpec

LENGTH = 400
PROMPT = 330
H2O, SNAPKV = RetentionSpec("h2o", 100), RetentionSpec("snapkv", 90)
SCORED = [H2O, SNAPKV]
Logits = np.ndarray[Any, np.dtype[np.float32]]

FULL = Case("full", {**CASES["f32"].config}, codec="f32")


class Ground:
    """A decoder, a text, and caches that say NaN everywhere."""

    def __init__(self, case: Case, path: Path) -> None:
        self.case = case
        self.decoder = case.load(case.write(path))
        self.text = Stream(8, "kept").integers(LENGTH, self.decoder.spec.vocab_size)

    def new_cache(self, num_sequences: int = 1) -> KvCache:
        return self.case.new_cache(self.decoder, num_sequences)

    def rows(self, sequence: Sequence, sizes: list[int], end: int = LENGTH) -> Logits:
        """Logits of the text's next tokens, in passes of the given sizes or up to where something is decided."""
        found, queue, size = [], iter(sizes), 1
        while sequence.num_tokens < end:
            size = next(queue, size)
            found.append(step(self.decoder, sequence, self.text, min(size, end - sequence.num_tokens)))
        return np.concatenate(found)


def step(decoder: Decoder, sequence: Sequence, text: list[int], size: int) -> Logits:
    """Append the next tokens of a text; what the engine does with each of its parts."""
    start = sequence.num_tokens
    stop = sequence.retention.next_stop(start, sequence.prompt_tokens)
    end = min(start + size, start + size if stop is None else stop)
    logits = decoder.forward([Part(sequence, text[start:end], "all")])
    sequence.drop_unseen()
    sequence.check()
    return logits


@pytest.fixture(scope="module", params=[FULL, CASES["int8"], CASES["codecs"]], ids=lambda case: case.name)
def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """In floats; in whole numbers, whose bytes move as they are; and with two layer groups that choose apart."""
    made = Ground(request.param, tmp_path_factory.mktemp("kept"))
    yield made
    made.decoder.close()


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """In float32 throughout, as the oracle is."""
    made = Ground(FULL, tmp_path_factory.mktemp("exact"))
    yield made
    made.decoder.close()


@pytest.fixture(scope="module")
def expected(ground: Ground) -> dict[str, Logits]:
    """Each kind's logits, in the largest passes."""
    return {
        str(kept): ground.rows(ground.new_cache().new_sequence(retention=kept, prompt_tokens=PROMPT), [256])
        for kept in (ALL, *SCORED)
    }


@pytest.mark.parametrize("kept", SCORED, ids=str)
@settings(max_examples=8, deadline=None)
@given(sizes=st.lists(st.integers(1, 9) | st.integers(1, 256), min_size=1, max_size=40))
def test_chunks(ground: Ground, expected: dict[str, Logits], kept: RetentionSpec, sizes: list[int]) -> None:
    sequence = ground.new_cache().new_sequence(retention=kept, prompt_tokens=PROMPT)
    assert differing(ground.rows(sequence, sizes), expected[str(kept)]) == []


@pytest.mark.parametrize("kept", SCORED, ids=str)
def test_until_something_is_dropped_nothing_differs(
    ground: Ground, expected: dict[str, Logits], kept: RetentionSpec
) -> None:
    first = kept.next_stop(0, PROMPT)
    assert first is not None
    assert differing(expected[str(kept)][:first], expected["all"][:first]) == []
    assert len(differing(expected[str(kept)][first:], expected["all"][first:])) == LENGTH - first


@pytest.mark.parametrize("kept", SCORED, ids=str)
def test_threads(ground: Ground, expected: dict[str, Logits], kept: RetentionSpec, tmp_path: Path) -> None:
    decoder = ground.case.load(ground.case.write(tmp_path), 3)
    sequence = ground.case.new_cache(decoder).new_sequence(retention=kept, prompt_tokens=PROMPT)
    found = []
    while sequence.num_tokens < LENGTH:
        found.append(step(decoder, sequence, ground.text, min(50, LENGTH - sequence.num_tokens)))
    assert differing(np.concatenate(found), expected[str(kept)]) == []
    decoder.close()


def test_side_by_side(ground: Ground, expected: dict[str, Logits]) -> None:
    """Kinds together in a pass, each with rows of its own, some of which are tallied and some not."""
    cache = ground.new_cache(3)
    kinds = [ALL, *SCORED]
    sequences = [cache.new_sequence(retention=kept, prompt_tokens=PROMPT) for kept in kinds]
    number = 0
    while any(sequence.num_tokens < LENGTH for sequence in sequences):
        parts, wanted = [], []
        for kept, sequence in zip(kinds, sequences, strict=True):
            number += 1
            start = sequence.num_tokens
            stop = kept.next_stop(start, PROMPT) or LENGTH
            end = min(start + 1 + number * 7 % 60, stop, LENGTH)
            if end > start:
                parts.append(Part(sequence, ground.text[start:end], "all"))
                wanted.append(expected[str(kept)][start:end])
        assert differing(ground.decoder.forward(parts), np.concatenate(wanted)) == []
        for sequence in sequences:
            sequence.drop_unseen()
    cache.check()


@pytest.mark.parametrize("kept", SCORED, ids=str)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_any_history(ground: Ground, expected: dict[str, Logits], kept: RetentionSpec, data: st.DataObject) -> None:
    """Truncated, computed again, forked: each row is still what it was."""
    cache = ground.new_cache(4)
    sequences = [cache.new_sequence(retention=kept, prompt_tokens=PROMPT)]
    for _ in range(data.draw(st.integers(5, 15))):
        sequence = data.draw(st.sampled_from(sequences))
        action = data.draw(st.sampled_from(["step", "step", "step", "truncate", "fork", "release"]))
        if action == "truncate":
            wanted = data.draw(st.integers(0, sequence.num_tokens))
            assert sequence.truncate(wanted) in (0, wanted)
        elif action == "fork" and len(sequences) < 4:
            sequences.append(sequence.fork())
        elif action == "release":
            sequence.release()
        elif sequence.num_tokens < LENGTH:
            start = sequence.num_tokens
            size = min(data.draw(st.integers(1, 5) | st.integers(60, 200)), LENGTH - start)
            rows = step(ground.decoder, sequence, ground.text, size)
            assert differing(rows, expected[str(kept)][start : start + len(rows)]) == []
        cache.check()


@pytest.mark.parametrize("kept", SCORED, ids=str)
def test_bytes(ground: Ground, kept: RetentionSpec) -> None:
    """Predicted, allocated, and never more than was reserved for it."""
    spec = replace(ground.case.cache, retention=kept)
    cache = KvCache(ground.decoder.spec, spec, num_tokens=LENGTH, step_tokens=256)
    sequence = cache.new_sequence(prompt_tokens=PROMPT)
    while sequence.num_tokens < LENGTH:
        step(ground.decoder, sequence, ground.text, min(37, LENGTH - sequence.num_tokens))
        sizes = ground.decoder.spec, spec, sequence.num_tokens, PROMPT
        assert sequence.allocated_bytes == allocated_bytes(*sizes)
        assert sequence.logical_bytes == logical_bytes(*sizes)
        assert sequence.allocated_bytes <= cache.pool_bytes


@pytest.mark.parametrize("kept", SCORED, ids=str)
def test_what_was_kept_is_what_is_seen(exact: Ground, kept: RetentionSpec) -> None:
    """The oracle masks all but the tokens that the engine chose; both round to float32 in an order of their own."""
    sequence, rows = exact.new_cache().new_sequence(retention=kept, prompt_tokens=PROMPT), []
    visible = np.zeros((LENGTH, LENGTH), bool)
    while sequence.num_tokens < LENGTH:
        visible[sequence.num_tokens, [*sequence.attended[0].positions, sequence.num_tokens]] = True
        rows.append(step(exact.decoder, sequence, exact.text, 1))
    weights, config = lesson(exact.case.model)
    seen = Seen(visible, np.zeros_like(visible), 0)
    oracle = forward_seeing(weights, config, exact.text, lambda _window, _length: seen)
    assert row_errors(np.concatenate(rows), oracle).max() < 1e-5


def test_a_tally_is_what_softmax_gave(exact: Ground) -> None:
    sequence = exact.new_cache().new_sequence(retention=RetentionSpec("h2o", 1000), prompt_tokens=PROMPT)
    exact.rows(sequence, [100], 200)
    tally = sequence.attended[0].tally
    num_queries = 200 * sum(layer.num_heads for layer in exact.decoder.spec.layers)
    assert tally.sum() == pytest.approx(num_queries * 2**24, rel=1e-5)
    assert tally[0] > tally[100] > tally[199] > 0, "the longer it was there, the more it got, in a text at random"
