"""Sequences that share, copy, fork, cut, swap and lose blocks at random: each reads what its own tokens make."""

from __future__ import annotations

from random import Random

import pytest
from cache.caches import attention_layer, model_of
from cache.fake_tokens import Text, assert_reads, begin, write
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.cache.swap import Swapped, SwapSpace
from kvist.errors import CapacityError
from kvist.spec.cache import CacheSpec
from kvist.spec.retention import ALL, RetentionSpec, parse_retention

STEP_TOKENS, CONTEXT = 24, 80
SALTS = ["", "a", "b"]
RETENTIONS = [ALL, ALL, parse_retention("window:20"), parse_retention("sinks:4+20")]
MODELS = {
    "full": model_of([attention_layer(None), attention_layer(None)]),
    "full and window": model_of([attention_layer(None, kv_heads=2), attention_layer(20), attention_layer(None)]),
    "two windows": model_of([attention_layer(17), attention_layer(40, dim=32)]),
    "narrow window": model_of([attention_layer(None), attention_layer(1)]),
}
ids = st.lists(st.integers(0, 1), max_size=40) | st.lists(st.integers(0, 9), max_size=20)


class SharingMachine(RuleBasedStateMachine):
    """``running`` and ``waiting``: sequences in the cache and swapped out, each with what it should hold."""

    @initialize(
        model=st.sampled_from(sorted(MODELS)),
        num_sequences=st.integers(1, 4),
        swap_blocks=st.integers(0, 12),
    )
    def start(self, model: str, num_sequences: int, swap_blocks: int) -> None:
        self.seconds = 0.0
        self.cache = KvCache(
            MODELS[model],
            CacheSpec(),
            num_tokens=CONTEXT,
            num_sequences=num_sequences,
            step_tokens=STEP_TOKENS,
            clock=lambda: self.seconds,
        )
        self.swap = SwapSpace(self.cache, swap_blocks * sum(group.block_bytes for group in self.cache.groups))
        self.running: list[tuple[Sequence, Text]] = []
        self.waiting: list[tuple[Swapped, Text]] = []
        self.texts: list[list[int]] = [[]]

    def pick(self, number: int) -> tuple[Sequence, Text]:
        return self.running[number % len(self.running)]

    @rule(
        text=st.integers(0, 50),
        part=st.floats(0, 1),
        more=ids,
        salt=st.sampled_from(SALTS),
        is_shared=st.integers(0, 9).map(bool),
        is_planned=st.booleans(),
        retention=st.sampled_from(RETENTIONS),
    )
    def add(
        self,
        text: int,
        part: float,
        more: list[int],
        salt: str,
        is_shared: bool,
        is_planned: bool,
        retention: RetentionSpec,
    ) -> None:
        """A prompt that begins as an earlier text did."""
        earlier = self.texts[text % len(self.texts)]
        prompt = (earlier[: round(part * len(earlier))] + more)[:CONTEXT] or [7]
        chain = self.cache.chain(prompt, salt=salt, retention=retention)
        expected = self.cache.num_cached(chain) if is_shared else 0
        sequence, held, num_cached = begin(self.cache, prompt, salt, is_shared=is_shared, retention=retention)
        assert num_cached == expected < len(prompt)
        self.texts.append(prompt)
        self.running.append((sequence, held))
        if is_planned:
            sequence.plan(prompt)
            whole = is_shared and len(prompt) // 16 > num_cached // 16
            assert self.cache.is_being_computed(chain, num_cached) >= whole

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 50), count=st.integers(1, STEP_TOKENS), drafted=st.integers(0, 5), fails=st.booleans())
    def step(self, number: int, count: int, drafted: int, fails: bool) -> None:
        """A pass over the next tokens of some text, some of which are rejected after they were written, or all."""
        sequence, text = self.pick(number)
        count = min(count, CONTEXT - sequence.num_tokens)
        drafted = min(drafted, CONTEXT - sequence.num_tokens - count)
        if not count:
            return
        before = [table.held for table in sequence.tables]
        missing = sequence.blocks_missing(count + drafted)
        try:
            sequence.grow(count + drafted)
        except CapacityError:
            assert missing > 0
            assert [table.held for table in sequence.tables] == before
            return
        assert missing == 0
        start = len(text.ids)
        if fails:
            assert sequence.truncate(start) == start
            return
        new = [self.next_id(at) for at in range(start, start + count)]
        text.extend([*new, *[8] * drafted])
        write(sequence, text, start)
        assert sequence.truncate(start + count) == start + count
        text.cut(start + count)
        sequence.record(new)
        sequence.drop_unseen()
        self.texts.append(list(text.ids))

    def next_id(self, at: int) -> int:
        """As in some earlier text, so that what is computed twice meets."""
        return next((other[at] for other in self.texts[::-1] if len(other) > at), 1)

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 50))
    def fork(self, number: int) -> None:
        sequence, text = self.pick(number)
        if len(self.running) < 8:
            self.running.append((sequence.fork(), text.copy()))

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 50), part=st.floats(0, 1))
    def truncate(self, number: int, part: float) -> None:
        sequence, text = self.pick(number)
        wanted = round(part * sequence.num_tokens)
        kept = sequence.truncate(wanted)
        assert kept in (0, wanted)
        if all(group.window is None for group in sequence.scope.groups):
            assert kept == wanted
        text.cut(kept)

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 50))
    def release(self, number: int) -> None:
        sequence, _ = self.running.pop(number % len(self.running))
        sequence.release()
        assert sequence.allocated_bytes == sequence.logical_bytes == sequence.num_recorded == 0

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 50))
    def swap_out(self, number: int) -> None:
        sequence, text = self.pick(number)
        usage = self.cache.usage(), self.swap.used_bytes
        needed, is_shared = sequence.allocated_bytes, sequence.is_shared
        swapped = self.swap.swap_out(sequence)
        if swapped is None:
            assert (self.cache.usage(), self.swap.used_bytes) == usage
            return
        assert self.swap.used_bytes == usage[1] + needed <= self.swap.num_bytes
        assert sequence.num_tokens == 0 and sequence.is_shared == is_shared
        self.running.remove((sequence, text))
        self.waiting.append((swapped, text))

    @precondition(lambda self: self.waiting)
    @rule(number=st.integers(0, 50), is_cancelled=st.integers(0, 4).map(lambda number: not number))
    def swap_in(self, number: int, is_cancelled: bool) -> None:
        number %= len(self.waiting)
        swapped, text = self.waiting[number]
        if is_cancelled:
            self.swap.discard(swapped)
            del self.waiting[number]
        elif self.swap.swap_in(swapped):
            del self.waiting[number]
            assert swapped.sequence.num_tokens == len(text.ids)
            self.running.append((swapped.sequence, text))
        else:
            assert self.swap.blocks_missing(swapped) > 0

    @rule(group=st.integers(0, 1), count=st.integers(0, 50), seconds=st.floats(0, 10))
    def press(self, group: int, count: int, seconds: float) -> None:
        """Somebody takes blocks for a while: cached ones are evicted."""
        self.seconds += seconds
        pool = self.cache.pools[group % len(self.cache.pools)]
        pool.give_back(pool.take(min(count, pool.num_available)))

    @rule(happens=st.integers(0, 9).map(lambda number: not number))
    def clear(self, happens: bool) -> None:
        if happens:
            self.cache.clear()
            assert all(pool.num_cached == 0 for pool in self.cache.pools)

    @invariant()
    def everybody_reads_their_own(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        self.swap.check()
        for sequence, text in self.running:
            sequence.check()
            assert_reads(sequence, text)
        assert self.swap.used_bytes == sum(
            group.block_bytes * len(slots)
            for swapped, _ in self.waiting
            for group, slots in zip(self.cache.groups, swapped.slots, strict=True)
        )

    @invariant()
    def every_owner_is_known(self) -> None:
        for number, pool in enumerate(self.cache.pools if hasattr(self, "cache") else ()):
            held = [block for sequence, _ in self.running for block in sequence.tables[number].held]
            for block in range(pool.num_blocks):
                assert pool.num_owners(block) == held.count(block)

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for sequence, _ in self.running:
            sequence.release()
        for swapped, _ in self.waiting:
            self.swap.discard(swapped)
        assert_empty(self.cache)
        assert self.swap.used_bytes == 0


def assert_empty(cache: KvCache) -> None:
    """Nobody holds or waits for anything, and all is free once it is forgotten."""
    cache.check()
    assert not cache.index.pending
    assert all(pool.num_used == 0 for pool in cache.pools)
    cache.clear()
    cache.check()
    assert all(pool.num_free == pool.num_blocks for pool in cache.pools)
    assert cache.index.num_entries == 0


SharingMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestSharing = SharingMachine.TestCase


def at_random(model: str, seed: int, count: int) -> SharingMachine:
    """The same steps as hypothesis takes, many more of them."""
    random = Random(seed)
    machine = SharingMachine()
    machine.start(model, random.randint(1, 4), random.choice([0, 6, 12]))
    likely = [machine.add] * 5 + [machine.step] * 10 + [machine.release] * 3 + [machine.fork, machine.truncate] * 2
    for _ in range(count):
        act = random.choice([*likely, machine.swap_out, machine.swap_in, machine.press, machine.clear])
        number = random.randrange(50)
        if act == machine.add:
            more = [random.randrange(2) for _ in range(random.choice([0, 1, 5, 20, 40]))]
            part, salt = random.choice([0.5, 1, random.random()]), random.choice(SALTS[: random.randint(1, 3)])
            is_shared, is_planned = random.random() < 0.9, random.random() < 0.5
            act(number, part, more, salt, is_shared, is_planned, random.choice(RETENTIONS))
        elif act == machine.press:
            act(random.randrange(2), number, random.random())
        elif act == machine.clear:
            act(random.random() < 0.1)
        elif not (machine.waiting if act == machine.swap_in else machine.running):
            continue
        elif act == machine.step:
            act(number, random.choice([1, random.randint(1, STEP_TOKENS)]), random.choice([0, 0, 3]), number % 9 == 0)
        elif act == machine.truncate:
            act(number, random.choice([0, 1, random.random()]))
        elif act == machine.swap_in:
            act(number, random.random() < 0.2)
        else:
            act(number)
        machine.everybody_reads_their_own()
        machine.every_owner_is_known()
    machine.teardown()
    return machine


@pytest.mark.parametrize("model", MODELS)
def test_ten_thousand_random_steps_leak_nothing(model: str) -> None:
    for seed in range(10):
        at_random(model, seed, 250)
