"""Rows that read the same blocks together get the bytes that each gets alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof.cases import CASES, Case
from proof.ground import differing
from tiny.stream import Stream

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.kernels import layout
from kvist.model.decoder import Decoder, Part
from kvist.model.table import lower
from kvist.spec.retention import ALL, RetentionSpec

Logits = np.ndarray[Any, np.dtype[np.float32]]
LENGTH = 620
FORKS = (90, 256, 300, 511, 512, 530, 600)
"""Where texts part from the first one."""
NUM_STEPS = 3
KINDS = {name: CASES[name] for name in ("q4_1", "mixed", "window")}
RULES = (ALL, ALL, ALL, RetentionSpec("window", 290), RetentionSpec("sinks", 300, 4))


class Ground:
    """A decoder, texts that begin alike, and by rule the logits of what follows each fork, computed alone."""

    def __init__(self, case: Case, path: Any, threads: int) -> None:
        self.case, self.decoder = case, case.load(case.write(path), threads)
        size = self.decoder.spec.vocab_size
        self.text = Stream(3, "text").integers(LENGTH, size)
        self.tails = {at: Stream(at, "tail").integers(NUM_STEPS, size) for at in FORKS}
        self._alone: dict[tuple[RetentionSpec, int], Logits] = {}

    def alone(self, rule: RetentionSpec, fork: int) -> Logits:
        """Logits of a fork's tail, of a sequence by itself."""
        if (rule, fork) not in self._alone:
            sequence = self.case.new_cache(self.decoder).new_sequence(retention=rule)
            fill(self.decoder, sequence, self.text[:fork], is_dropped=True)
            rows = [self.decoder.forward([Part(sequence, [token_id])]) for token_id in self.tails[fork]]
            self._alone[rule, fork] = np.concatenate(rows)
        return self._alone[rule, fork]


def fill(decoder: Decoder, sequence: Sequence, token_ids: list[int], *, is_dropped: bool = False) -> None:
    """Append tokens; what leaves a window is given back only if ``is_dropped``, else the sequence can be cut later."""
    for start in range(0, len(token_ids), decoder.step_tokens):
        decoder.forward([Part(sequence, token_ids[start : start + decoder.step_tokens], "none")])
        if is_dropped:
            sequence.drop_unseen()


@pytest.fixture(scope="module", params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request) -> int:
    return int(request.param)


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def ground(request, threads: int, tmp_path_factory) -> Iterator[Ground]:
    ground = Ground(request.param, tmp_path_factory.mktemp(request.param.name), threads)
    yield ground
    ground.decoder.close()


def forked(ground: Ground, cache: KvCache, forks: list[int], rule: RetentionSpec) -> list[Sequence]:
    """Sequences of the first text that share its blocks, each cut where it parts from it."""
    first = cache.new_sequence(retention=rule)
    fill(ground.decoder, first, ground.text)
    found = []
    for fork in forks:
        sequence = first.fork()
        assert sequence.truncate(fork) == fork
        found.append(sequence)
    first.release()
    return found


def num_mixed(parts: list[Part]) -> int:
    """Rows of mixed tiles in what the parts, which have grown, are lowered to."""
    table = lower(parts, tile_rows=16, split_rows=4, split_chunks=2).table
    at, count = table[layout.TILES], table[layout.NUM_TILES]
    tiles = table[at : at + layout.TILE_FIELDS * count].reshape(count, layout.TILE_FIELDS)
    return int(tiles[tiles[:, 2] > 0, 1].sum())


@settings(max_examples=25)
@given(
    forks=st.lists(st.sampled_from(FORKS), min_size=2, max_size=12),
    rule=st.sampled_from(RULES),
    data=st.data(),
)
def test_any_neighbours(ground: Ground, forks: list[int], rule: RetentionSpec, data: st.DataObject) -> None:
    cache = ground.case.new_cache(ground.decoder, 8)
    sequences = forked(ground, cache, forks, rule)
    other = cache.new_sequence()
    for step in range(NUM_STEPS):
        order = data.draw(st.permutations(range(len(forks))))
        parts = [Part(sequences[number], [ground.tails[forks[number]][step]]) for number in order]
        wanted = [ground.alone(rule, forks[number])[step : step + 1] for number in order]
        at = data.draw(st.integers(0, len(parts)))
        if data.draw(st.booleans()):
            parts.insert(at, Part(other, ground.text[:7], "none"))
        assert differing(ground.decoder.forward(parts), np.concatenate(wanted)) == []
    cache.check()


@pytest.mark.parametrize("num_users", [2, 4, 5, 20])
def test_rows_are_read_together(ground: Ground, num_users: int) -> None:
    cache = ground.case.new_cache(ground.decoder, 8)
    sequences = forked(ground, cache, [600] * num_users, ALL)
    for step in range(NUM_STEPS):
        parts = [Part(sequence, [ground.tails[600][step]]) for sequence in sequences]
        found = ground.decoder.forward(parts)
        assert differing(found, np.repeat(ground.alone(ALL, 600)[step : step + 1], num_users, axis=0)) == []
        is_narrow = ground.case.name == "window"  # 20 tokens: nobody sees a whole span
        assert num_mixed(parts) == (0 if is_narrow else num_users)


def test_who_shares_more_stays_together(ground: Ground) -> None:
    """Three that share two spans, then two that share one with them and two with each other."""
    if ground.case.name == "window":
        pytest.skip("nobody sees a whole span")
    cache = ground.case.new_cache(ground.decoder, 8)
    sequences = forked(ground, cache, [600] * 3 + [300], ALL)
    for sequence in sequences:
        sequence.grow(1)
    tail = Stream(5, "tail").integers(300, ground.decoder.spec.vocab_size)
    fill(ground.decoder, sequences[3], tail)
    sequences.append(sequences[3].fork())
    parts = [Part(sequence, [1]) for sequence in sequences]
    found = lower(parts, tile_rows=16, split_rows=0, split_chunks=1).table
    at = found[layout.TILES]
    assert found[at : at + 6].tolist() == [0, 3, 1, 3, 2, 1]


def test_a_rule_of_their_own_keeps_neighbours_apart(ground: Ground) -> None:
    """The same tokens in other blocks are no reason to share."""
    cache = ground.case.new_cache(ground.decoder, 8)
    one, other = cache.new_sequence(), cache.new_sequence(retention=replace(RULES[3]))
    for sequence in (one, other):
        fill(ground.decoder, sequence, ground.text[:600])
    parts = [Part(sequence, [1]) for sequence in (one, other)]
    assert num_mixed(parts) == 0
