"""Sequences that keep tokens by attention: what stands in each slot is still the token that should, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cache.caches import attention_layer, model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from kvist.cache.cells import key_cells, value_cells
from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.errors import CapacityError, SpecError
from kvist.spec.cache import (
    BLOCK_TOKENS,
    CODECS,
    CacheSpec,
    allocated_bytes,
    head_key_bytes,
    head_value_bytes,
    logical_bytes,
)
from kvist.spec.retention import H2O_PERIOD, RetentionSpec

STEP_TOKENS = 50
MODEL = model_of([attention_layer(None, kv_heads=2, dim=16), attention_layer(None, dim=32)] * 2)
SPECS = [CacheSpec("bf16"), CacheSpec(k="f32", v="bf16"), CacheSpec(k="int8", v="int4"), CacheSpec("int4")]
retentions = st.builds(RetentionSpec, st.sampled_from(["h2o", "snapkv"]), st.integers(64, 100))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dim", [16, 80])
def test_every_byte_of_a_block_is_one_tokens(codec: str, dim: int) -> None:
    for cells, num_bytes in (
        (key_cells(codec, dim), head_key_bytes(codec, dim)),
        (value_cells(codec, dim), head_value_bytes(codec, dim)),
    ):
        blocks = np.zeros((2, BLOCK_TOKENS * num_bytes), np.uint8)
        for token in range(BLOCK_TOKENS):
            count = 0
            for cell in cells:
                view = cell.view(blocks)
                assert np.shares_memory(view, blocks)
                own = view[1, token // cell.width, :, token % cell.width]
                own[:] += np.array(np.iinfo(cell.dtype).max // 255, cell.dtype)  # 1 in every byte
                count += own.nbytes
            assert count == num_bytes
        assert (blocks[0] == 0).all()
        assert (blocks[1] == 1).all()


def halves(cache: KvCache, group: int, block: int, at: int) -> list[Any]:
    """All of a group's bytes of the token in a place, as views."""
    return [
        cell.view(half)[:, :, block, at // cell.width, :, at % cell.width]
        for half, cells in zip(cache.store.halves[group], cache.store._cells[group], strict=True)
        for cell in cells
    ]


class AttendedMachine(RuleBasedStateMachine):
    """``texts[s]`` says what was written for each position: two forks write different things."""

    sequences = Bundle("sequences")

    @initialize(target=sequences, retention=retentions, spec=st.sampled_from(SPECS), prompt=st.integers(1, 200))
    def start(self, retention: RetentionSpec, spec: CacheSpec, prompt: int) -> Sequence:
        self.retention, self.spec, self.prompt = retention, CacheSpec(spec.codec, spec.k, spec.v, retention), prompt
        self.cache = KvCache(MODEL, spec, num_tokens=400, num_sequences=2, step_tokens=STEP_TOKENS)
        self.texts: dict[Sequence, list[int]] = {}
        self.count = 0
        return self.new()

    @rule(target=sequences)
    def new(self) -> Sequence:
        sequence = self.cache.new_sequence(retention=self.retention, prompt_tokens=self.prompt)
        self.texts[sequence] = []
        return sequence

    @rule(sequence=sequences, count=st.integers(1, STEP_TOKENS), fails=st.booleans(), seed=st.integers(0, 9))
    def step(self, sequence: Sequence, count: int, fails: bool, seed: int) -> None:
        stop = self.retention.next_stop(sequence.num_tokens, self.prompt)
        count = min(count, count if stop is None else stop - sequence.num_tokens)
        before = sequence.num_tokens
        missing = sequence.blocks_missing(count)
        try:
            sequence.grow(count)
        except CapacityError:
            assert missing
            assert sequence.num_tokens == before
            return
        assert not missing
        if fails:
            assert sequence.truncate(before) == before
            return
        for position in range(before, before + count):
            self.count += 1
            self.texts[sequence].append(self.count)
            slot = position - sequence.num_evicted
            for group, table in enumerate(sequence.tables):
                for own in halves(self.cache, group, table[slot // BLOCK_TOKENS], slot % BLOCK_TOKENS):
                    own[:] = self.count % 251
        first, end = sequence.tallied(count)
        if first < end:
            tally = np.random.default_rng(seed).integers(0, 5, (len(sequence.tables), sequence.num_slots + 30))
            sequence.add_tallies(tally)
        sequence.drop_unseen()

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Sequence) -> Sequence:
        other = sequence.fork()
        self.texts[other] = list(self.texts[sequence])
        return other

    @rule(sequence=sequences, part=st.floats(0, 1))
    def truncate(self, sequence: Sequence, part: float) -> None:
        wanted = int(part * sequence.num_tokens)
        kept = sequence.truncate(wanted)
        assert kept in (0, wanted)
        del self.texts[sequence][kept:]

    @rule(sequence=consumes(sequences))
    def release(self, sequence: Sequence) -> None:
        sequence.release()
        del self.texts[sequence]

    @invariant()
    def slots_hold_their_tokens(self) -> None:
        for sequence, text in getattr(self, "texts", {}).items():
            sequence.check()
            assert sequence.num_slots == self.retention.num_slots(sequence.num_tokens, self.prompt)
            for group, (found, table) in enumerate(zip(sequence.attended, sequence.tables, strict=True)):
                for slot, position in enumerate(found.positions):
                    for own in halves(self.cache, group, table[slot // BLOCK_TOKENS], slot % BLOCK_TOKENS):
                        assert (own == text[position] % 251).all(), (slot, position)

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        for sequence in self.texts:
            sizes = sequence.num_tokens, self.prompt
            assert sequence.logical_bytes == logical_bytes(MODEL, self.spec, *sizes)
            assert sequence.allocated_bytes == allocated_bytes(MODEL, self.spec, *sizes)


AttendedMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAttended = AttendedMachine.TestCase


@given(st.integers(1, 400), st.integers(64, 150))
def test_what_is_reserved_is_enough(num_tokens: int, num_kept: int) -> None:
    retention = RetentionSpec("h2o", num_kept)
    spec = CacheSpec("bf16")
    groups = KvCache(MODEL, spec, num_tokens=16).groups
    peak = max(group.with_retention(retention).peak_blocks(num_tokens, STEP_TOKENS) for group in groups)
    assert peak == -(-min(num_tokens, num_kept + H2O_PERIOD) // BLOCK_TOKENS)


def test_a_layer_with_a_window_has_nothing_to_choose_from() -> None:
    cache = KvCache(model_of([attention_layer(None), attention_layer(20)]), CacheSpec(), num_tokens=100)
    with pytest.raises(SpecError, match="h2o:64 needs layers that see every token, and layer 1 has a window of 20"):
        cache.new_sequence(retention=RetentionSpec("h2o", 64))


def test_they_find_nothing_and_are_not_found() -> None:
    cache = KvCache(MODEL, CacheSpec(), num_tokens=200)
    sequence = cache.new_sequence(retention=RetentionSpec("h2o", 64))
    assert not sequence.is_shared
    sequence.grow(40)
    sequence.record(range(40))
    sequence.release()
    assert [pool.num_cached for pool in cache.pools] == [0] * len(cache.pools)
