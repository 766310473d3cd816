"""Sequences of one cache, grown, cut and released at random: what a query sees is still there, and nobody else's."""

from __future__ import annotations

import pytest
from cache.caches import attention_layer, model_of, models
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from kvist.cache.block_table import Table
from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.errors import CapacityError, RequestError
from kvist.spec.cache import BLOCK_TOKENS, CacheSpec, allocated_bytes, layer_groups, logical_bytes
from kvist.spec.model import ModelSpec
from kvist.spec.retention import ALL, RetentionSpec

NUM_TOKENS, STEP_TOKENS = 150, 40
retentions = st.one_of(
    st.just(ALL),
    st.builds(lambda n: RetentionSpec("window", n), st.integers(1, 60)),
    st.builds(lambda s, n: RetentionSpec("sinks", n, s), st.integers(1, 40), st.integers(1, 60)),
    st.builds(lambda s, n: RetentionSpec("sinks", n, s, starts_at=s + n), st.integers(1, 10), st.integers(1, 90)),
)


class SequenceMachine(RuleBasedStateMachine):
    """``written[s][g]`` is the block that each position of sequence s was written to in group g."""

    sequences = Bundle("sequences")

    @initialize(model=models, num_sequences=st.integers(1, 3), retention=retentions)
    def start(self, model: ModelSpec, num_sequences: int, retention: RetentionSpec) -> None:
        self.model, self.spec, self.retention = model, CacheSpec(retention=retention), retention
        self.cache = KvCache(
            model, CacheSpec(), num_tokens=NUM_TOKENS, num_sequences=num_sequences, step_tokens=STEP_TOKENS
        )
        self.groups = layer_groups(model, self.spec)
        self.written: dict[Sequence, list[list[int]]] = {}

    @rule(target=sequences)
    def new(self) -> Sequence:
        sequence = self.cache.new_sequence(retention=self.retention)
        self.written[sequence] = [[] for _ in self.cache.groups]
        return sequence

    @rule(sequence=sequences, count=st.integers(1, STEP_TOKENS), fails=st.booleans())
    def step(self, sequence: Sequence, count: int, fails: bool) -> None:
        """What a forward pass does; one that fails takes its tokens back."""
        before, tables = sequence.num_tokens, [table.held for table in sequence.tables]
        try:
            sequence.grow(count)
        except CapacityError:
            assert sequence.num_tokens == before
            assert [table.held for table in sequence.tables] == tables
            return
        if fails:
            assert sequence.truncate(before) == before
            assert [table.held for table in sequence.tables] == tables
            return
        for blocks, table in zip(self.written[sequence], sequence.tables, strict=True):
            for position in range(before, before + count):
                blocks.append(int(table.blocks[position // BLOCK_TOKENS]))
        sequence.drop_unseen()

    @rule(sequence=sequences, part=st.floats(0, 1))
    def truncate(self, sequence: Sequence, part: float) -> None:
        wanted = int(part * sequence.num_tokens)
        kept = sequence.truncate(wanted)
        assert kept in (0, wanted)
        if all(group.window is None for group in self.groups):
            assert kept == wanted
        assert sequence.num_tokens == kept
        for blocks in self.written[sequence]:
            del blocks[kept:]

    @rule(sequence=consumes(sequences))
    def release(self, sequence: Sequence) -> None:
        sequence.release()
        assert sequence.allocated_bytes == sequence.logical_bytes == 0
        del self.written[sequence]

    @invariant()
    def nothing_is_lost_or_shared(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        for number, (group, pool) in enumerate(zip(self.groups, self.cache.pools, strict=True)):
            held = [block for sequence in self.written for block in sequence.tables[number].held]
            assert len(set(held)) == len(held) == pool.num_used
            for sequence, written in self.written.items():
                later = range(group.first_kept(sequence.num_tokens), sequence.num_tokens)
                for position in (*range(min(group.num_sinks, sequence.num_tokens)), *later):
                    block = int(sequence.tables[number].blocks[position // BLOCK_TOKENS])
                    assert written[number][position] == block
                    assert block in sequence.tables[number].held

    @invariant()
    def bytes_are_those_of_the_formula(self) -> None:
        for sequence in getattr(self, "written", ()):
            sequence.check()
            assert sequence.logical_bytes == logical_bytes(self.model, self.spec, sequence.num_tokens)
            assert sequence.allocated_bytes == allocated_bytes(self.model, self.spec, sequence.num_tokens)
            assert sequence.logical_bytes <= sequence.allocated_bytes


SequenceMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestSequences = SequenceMachine.TestCase


@given(models, st.integers(1, 400), st.lists(st.integers(1, STEP_TOKENS), min_size=1, max_size=60), st.integers(1, 3))
def test_what_is_reserved_is_enough_for_any_steps(
    model: ModelSpec, num_tokens: int, steps: list[int], num_sequences: int
) -> None:
    cache = KvCache(model, CacheSpec(), num_tokens=num_tokens, num_sequences=num_sequences, step_tokens=STEP_TOKENS)
    sequences = [cache.new_sequence() for _ in range(num_sequences)]
    for count in steps:
        for sequence in sequences:
            sequence.grow(min(count, num_tokens - sequence.num_tokens))
        for sequence in sequences:
            sequence.drop_unseen()
    cache.check()


def test_a_window_frees_what_it_has_left() -> None:
    cache = KvCache(model_of([attention_layer(None), attention_layer(20)]), CacheSpec(), num_tokens=400)
    sequence = cache.new_sequence()
    for length in range(1, 400):
        sequence.grow(1)
        sequence.drop_unseen()
        full, window = (len(table.held) for table in sequence.tables)
        assert full == -(-length // 16)
        assert window <= 3
    assert sequence.truncate(398) == 398
    assert sequence.truncate(300) == 0, "the blocks before 398's window are gone, so none is kept"
    cache.check()


@pytest.mark.parametrize("num_tokens", [-1, 21])
def test_what_it_does_not_hold_cannot_be_left(num_tokens: int) -> None:
    cache = KvCache(model_of([attention_layer(None)]), CacheSpec(), num_tokens=40)
    sequence = cache.new_sequence()
    sequence.grow(20)
    with pytest.raises(RequestError, match=f"a sequence of 20 tokens can't be cut to {num_tokens} of them"):
        sequence.truncate(num_tokens)
    assert sequence.num_tokens == 20
    cache.check()


def test_growth_that_does_not_fit_one_group_takes_from_none() -> None:
    cache = KvCache(model_of([attention_layer(None), attention_layer(20)]), CacheSpec(), num_tokens=160)
    other = cache.new_sequence()
    other.grow(160)
    other.drop_unseen()
    sequence = cache.new_sequence()
    before = [pool.num_free for pool in cache.pools]
    assert before[0] == 0 < before[1]
    with pytest.raises(CapacityError):
        sequence.grow(1)
    assert [pool.num_free for pool in cache.pools] == before
    assert sequence.num_tokens == 0
    other.release()
    sequence.grow(160)


@given(
    st.lists(st.tuples(st.sampled_from(["extend", "cut", "drop"]), st.integers(0, 90)), max_size=40),
    st.integers(0, 3),
)
def test_table_is_a_list_with_a_gap(actions: list[tuple[str, int]], num_first: int) -> None:
    table, numbers, first, fresh = Table(num_first), [], 0, 0
    for action, count in actions:
        if action == "extend":
            blocks = list(range(fresh, fresh + count))
            table.extend(blocks)
            numbers += blocks
            fresh += count
        elif action == "cut":
            assert table.cut(count) == numbers[count:num_first] + numbers[max(count, first, num_first) :]
            del numbers[count:]
            first = min(first, len(numbers))
        else:
            assert table.drop(count) == numbers[max(first, num_first) : count]
            first = max(first, min(count, len(numbers)))
        assert table.num_blocks == len(numbers)
        assert table.held == numbers[:num_first] + numbers[max(first, num_first) :]
        assert [number for number in range(len(numbers)) if table.holds(number)] == [
            number for number in range(len(numbers)) if number < num_first or number >= first
        ]
        assert all(table[number] == numbers[number] for number in range(len(numbers)) if table.holds(number))
        assert table.blocks[first:].tolist() == numbers[first:]
        again = Table(num_first)
        again.start(table.first_block, table.held)
        assert (again.held, again.num_blocks, again.gap) == (table.held, table.num_blocks, table.gap)
