"""What is found of a prompt, by whom, when, and what goes first: with tokens that are bytes, and no model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import pytest
from cache.caches import attention_layer, model_of
from cache.fake_tokens import assert_reads, begin, run, step
from hypothesis import given
from hypothesis import strategies as st

from kvist.cache import chain, prefix, recorded, sequence
from kvist.cache.kv_cache import KvCache
from kvist.cache.swap import SwapSpace
from kvist.errors import CapacityError
from kvist.spec.cache import CacheSpec
from kvist.spec.model import ModelSpec
from kvist.spec.retention import parse_retention

FULL = model_of([attention_layer(None)])
WINDOWS = model_of([attention_layer(None), attention_layer(20), attention_layer(7)])
ALL_WINDOWS = model_of([attention_layer(24)])
A, B = list(range(100, 180)), list(range(200, 280))
texts = st.lists(st.integers(0, 1), min_size=1, max_size=70)


def cache_of(model: ModelSpec = FULL, num_sequences: int = 4, **settings: object) -> KvCache:
    return KvCache(model, CacheSpec(), num_tokens=80, num_sequences=num_sequences, **settings)  # type: ignore[arg-type]


def num_shared(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


# --- what is found ---


@pytest.mark.parametrize("model", [FULL, WINDOWS, ALL_WINDOWS], ids=["full", "windows", "all windows"])
@given(stored=st.lists(st.tuples(texts, st.sampled_from(["", "x"])), max_size=8), prompt=texts)
def test_the_longest_that_any_finished_text_of_the_same_salt_begins_with(
    model: ModelSpec, stored: list[tuple[list[int], str]], prompt: list[int]
) -> None:
    cache = cache_of(model, num_sequences=20)  # nothing is evicted
    for text, salt in stored:
        run(cache, text, salt)[0].release()
        cache.check()
    expected = max((num_shared(prompt[:-1], text) for text, salt in stored if not salt), default=0)
    assert cache.num_cached(cache.chain(prompt)) == expected
    found, text, num_cached = begin(cache, prompt)
    assert num_cached == expected
    assert_reads(found, text)
    assert step(found, text, prompt[num_cached:])
    assert_reads(found, text)
    cache.check()


@given(texts, texts)
def test_whole_blocks_of_a_running_sequence(first: list[int], second: list[int]) -> None:
    cache = cache_of()
    running, text = run(cache, first)
    found, other, num_cached = begin(cache, second)
    whole = len(first) // 16 * 16
    assert num_cached == min(whole, num_shared(first, second[:-1]))
    step(found, other, second[num_cached:])
    assert_reads(found, other)
    assert_reads(running, text)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 47, 48])
def test_a_prompt_that_is_all_there_computes_its_last_token(length: int) -> None:
    cache = cache_of()
    run(cache, A[:length])[0].release()
    assert begin(cache, A[:length])[2] == length - 1


def test_the_next_turn_finds_the_last_answer() -> None:
    cache = cache_of()
    turn, text = run(cache, A[:21])
    for token_id in A[21:41]:
        step(turn, text, [token_id])
    turn.release()
    assert begin(cache, A[:45])[2] == 41


def test_a_window_that_lost_blocks_shortens_the_hit() -> None:
    """Of 64 tokens the group with the window lost the block of the last ones, so that 48 can go on."""
    cache = cache_of(model_of([attention_layer(None), attention_layer(20)]))
    run(cache, A[:64])[0].release()
    pool = cache.pools[1]
    entry = cache.index.find(cache.chain(A)).entries[3]
    assert entry is not None
    cache.index.withdraw(1, entry.block(1))
    assert begin(cache, A)[2] == 48
    cache.check()
    assert pool.num_used == 2


def test_all_windows_need_no_head() -> None:
    """Every layer has a window: what begins before it may be gone."""
    cache = cache_of(ALL_WINDOWS)
    run(cache, A[:64])[0].release()
    (pool,) = cache.pools
    pool.give_back(pool.take(pool.num_free + 2))  # evicts the first two blocks: these were dropped first
    found, text, num_cached = begin(cache, A)
    assert num_cached == 64
    assert len(found.tables[0].held) == 2
    assert_reads(found, text)
    assert begin(cache, A[:40])[2] == 0


def test_short_work_with_sinks() -> None:
    cache = KvCache(FULL, CacheSpec(), num_tokens=80, num_sequences=3)
    for _ in range(2):
        found = cache.new_sequence(retention=parse_retention("sinks:4+20"))
        reuse = found.reuse(A)
        found.grow(len(A) - reuse.num_tokens)
        found.record(A[reuse.num_tokens :])
        found.drop_unseen()
        assert [len(table.held) for table in found.tables] == [3]
        found.release()
    assert reuse.num_tokens == len(A) - 1


# --- by whom ---


@pytest.mark.parametrize("salt", ["a", "b", "ab", "é", " "])
def test_salts_never_meet(salt: str) -> None:
    cache = cache_of()
    run(cache, A[:40])[0].release()
    run(cache, A[:40], "abc")[0].release()
    assert begin(cache, A, salt)[2] == 0


def test_what_makes_other_bytes_has_other_hashes() -> None:
    roots = {
        cache.scope(salt=salt, retention=retention).root
        for cache in (
            cache_of(),
            cache_of(identity=b"another model"),
            KvCache(FULL, CacheSpec("f32"), num_tokens=80),
            KvCache(FULL, CacheSpec(k="f32"), num_tokens=80),
            KvCache(FULL, CacheSpec(v="f32"), num_tokens=80),
        )
        for salt in ("", "x")
        for retention in (
            None,
            parse_retention("window:20"),
            parse_retention("window:21"),
            parse_retention("sinks:4+20"),
        )
    }
    assert len(roots) == 5 * 2 * 4


def test_parts_of_a_hash_do_not_run_together() -> None:
    assert chain.root_hash([b"ab", b"c"]) != chain.root_hash([b"a", b"bc"]) != chain.root_hash([b"abc"])


def test_who_does_not_share_neither_finds_nor_is_found() -> None:
    cache = cache_of()
    run(cache, A[:40], is_shared=False)[0].release()
    assert cache.usage().num_cached_blocks == 0
    run(cache, A[:40])[0].release()
    alone, text, num_cached = begin(cache, A, is_shared=False)
    assert num_cached == 0
    assert step(alone, text, A)


@pytest.fixture
def blind_hash(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hash that only sees the last token of a block."""
    for module in (chain, prefix, recorded, sequence):
        monkeypatch.setattr(module, "block_hash", lambda parent, key: parent[:8] + bytes(key[-4:]) + b"....")
    return iter(())


def test_another_text_of_the_same_hash_is_not_taken(blind_hash: None) -> None:
    cache = cache_of()
    other = [*B[:15], A[15], *A[16:40]]
    first, text = run(cache, A[:40])
    second, another = run(cache, other)
    assert_reads(first, text)
    assert_reads(second, another)
    assert not set(first.tables[0].held) & set(second.tables[0].held)
    second.release()
    assert begin(cache, other)[2] == 0
    first.release()
    assert begin(cache, A[:40])[2] == 39


# --- once ---


def test_what_two_compute_at_once_is_kept_once() -> None:
    cache = cache_of(WINDOWS)
    sequences = [begin(cache, A[:40])[:2] for _ in range(3)]
    for found, text in sequences:
        assert step(found, text, A[:40])
    tables = [found.tables[0].blocks[:2].tolist() for found, _ in sequences]
    assert tables[0] == tables[1] == tables[2]
    assert cache.pools[0].num_used == 2 + 3
    for found, text in sequences:
        assert_reads(found, text)
        assert step(found, text, A[40:48])
    assert cache.pools[0].num_used == 3
    cache.check()


def test_who_waits_for_whom() -> None:
    cache = cache_of()
    prompt = cache.chain(A[:40])
    assert not cache.is_being_computed(prompt, 0)
    found, text, _ = begin(cache, A[:48])
    found.plan(A[:48])
    assert cache.is_being_computed(prompt, 0)
    assert cache.is_being_computed(prompt, 16)
    assert not cache.is_being_computed(prompt, 32), "what is left of it is no whole block"
    assert not cache.is_being_computed(cache.chain(A[:40], salt="x"), 0)
    assert not cache.is_being_computed(cache.chain(B[:40]), 0)
    step(found, text, A[:20])
    assert cache.num_cached(prompt) == 16
    assert cache.is_being_computed(prompt, 16)
    step(found, text, A[20:48])
    assert cache.num_cached(prompt) == 39
    assert len(cache.index.pending) == 0


def test_two_may_plan_the_same_and_each_takes_its_own_marks_away() -> None:
    cache = cache_of()
    prompt = cache.chain(A[:40])
    swap = SwapSpace(cache, 1 << 20)
    for end in ("release", "truncate", "swap_out"):
        one, text, _ = begin(cache, A[:48])
        other, _, _ = begin(cache, A[:48])
        one.plan(A[:48])
        other.plan(A[:48])
        other.release()
        assert cache.is_being_computed(prompt, 0)
        step(one, text, A[:10])
        assert cache.is_being_computed(prompt, 0)
        if end == "swap_out":
            assert swap.swap_out(one)
        elif end == "truncate":
            one.truncate(5)
        else:
            one.release()
        assert not cache.is_being_computed(prompt, 0)
        cache.clear()
    quiet = cache.new_sequence(is_shared=False)
    quiet.plan(A[:48])
    assert len(cache.index.pending) == 0


# --- copies ---


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_last_block_is_copied_by_who_writes_first(first: int) -> None:
    cache = cache_of()
    one, text = run(cache, A[:20])
    family = [(one, text), *((one.fork(), text.copy()) for _ in range(2))]
    assert cache.pools[0].num_used == 2
    for number, (each, written) in enumerate([*family[first:], *family[:first]]):
        assert step(each, written, [number])
        assert cache.pools[0].num_used == 2 + min(number + 1, 2), "the last one goes on in what was shared"
    for each, written in family:
        assert_reads(each, written)


def test_where_there_is_no_room_for_a_copy_a_block_is_taken_over() -> None:
    cache = KvCache(FULL, CacheSpec(), num_tokens=32)
    run(cache, A[:20])[0].release()
    found, text, num_cached = begin(cache, [*A[:18], *B[:14]])
    assert num_cached == 18
    pool = cache.pools[0]
    assert (pool.num_free, pool.num_cached, pool.num_used) == (0, 0, 2)
    assert found.blocks_missing(14) == 0
    assert step(found, text, B[:14])
    assert_reads(found, text)
    found.release()
    assert begin(cache, A[:20])[2] == 18
    cache.check()


def test_where_there_is_room_the_block_stays_for_others() -> None:
    cache = cache_of()
    run(cache, A[:30])[0].release()
    found, text, _ = begin(cache, [*A[:20], *B])
    assert step(found, text, B[:5])
    assert begin(cache, A[:30])[2] == 29


def test_blocks_missing_is_what_grow_lacks() -> None:
    cache = KvCache(FULL, CacheSpec(), num_tokens=64)
    one, _ = run(cache, A[:20])
    twin = one.fork()
    assert twin.blocks_needed(1) == (1,)
    assert twin.blocks_needed(0) == (0,)
    assert twin.blocks_needed(28) == (2,)
    assert twin.blocks_missing(28) == 0
    assert twin.blocks_missing(29) == 1
    before = twin.tables[0].held
    with pytest.raises(CapacityError, match="2 free blocks of 16 tokens and 3 are needed"):
        twin.grow(29)
    assert twin.tables[0].held == before
    assert twin.num_tokens == 20


# --- what goes first ---


def evict(cache: KvCache, count: int) -> None:
    """Let so many cached blocks go."""
    (pool,) = cache.pools
    pool.give_back(pool.take(pool.num_free + count))
    assert pool.num_evicted >= count


def test_tails_go_before_heads_and_what_was_used_longest_ago_before_the_rest() -> None:
    cache = cache_of()
    run(cache, A[:64])[0].release()
    run(cache, B[:64])[0].release()
    evict(cache, 1)
    assert begin_and_leave(cache, A) == 48
    evict(cache, 1)  # A's were used last
    assert begin_and_leave(cache, B) == 48
    assert begin_and_leave(cache, A[:20]) == 19  # touches A's head
    evict(cache, 2)  # its third block, and a B
    assert begin_and_leave(cache, A) == 32
    assert begin_and_leave(cache, B) == 32


def begin_and_leave(cache: KvCache, prompt: list[int]) -> int:
    found, _, num_cached = begin(cache, prompt)
    found.release()
    cache.check()
    return num_cached


@given(st.lists(st.tuples(texts, st.integers(0, 4)), max_size=20))
def test_a_head_is_there_as_long_as_its_tail(actions: list[tuple[list[int], int]]) -> None:
    cache = cache_of(num_sequences=2)
    for text, count in actions:
        found, written, num_cached = begin(cache, text)
        step(found, written, text[num_cached:])
        found.release()
        (pool,) = cache.pools
        pool.give_back(pool.take(min(pool.num_available, pool.num_free + count)))
        names = cache.index._entries
        root = cache.scope().root
        assert all(entry.parent == root or entry.parent in names for entry in names.values())


def test_a_beginning_is_of_no_use_beside_what_goes_on_from_it() -> None:
    cache = cache_of()
    for end in (17, 20, 30, 25, 40):
        run(cache, A[:end])[0].release()
        cache.check()
    assert cache.usage().num_cached_blocks == cache.index.num_entries == 3


def test_a_cleared_cache_finds_nothing_and_harms_nobody() -> None:
    cache = cache_of()
    run(cache, A[:40])[0].release()
    running, text = run(cache, A[:36])
    cache.clear()
    cache.check()
    assert cache.usage().num_cached_blocks == 0
    assert begin(cache, A)[2] == 0
    assert step(running, text, A[36:60])
    assert_reads(running, text)
    running.release()
    assert begin(cache, A)[2] == 0, "its first blocks are known no more"
