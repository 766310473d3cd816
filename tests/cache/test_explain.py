"""Why a prompt missed: each reason, and that none of it speaks of another tenant."""

from __future__ import annotations

import pytest
from cache.caches import attention_layer, model_of
from cache.fake_tokens import begin, run
from hypothesis import given
from hypothesis import strategies as st

from kvist.cache.explain import Evictions, Miss, explain_pair
from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Reuse
from kvist.cache.stretch import longest_stretch
from kvist.spec.cache import CacheSpec

A, B = list(range(100, 180)), list(range(200, 280))


class Case:
    """A cache with a clock that stands still."""

    def __init__(self, windows: tuple[int | None, ...] = (None,), num_sequences: int = 4) -> None:
        self.seconds = 0.0
        model = model_of([attention_layer(window) for window in windows])
        self.cache = KvCache(model, CacheSpec(), num_tokens=80, num_sequences=num_sequences, clock=lambda: self.seconds)

    def store(self, prompt: list[int], salt: str = "") -> None:
        run(self.cache, prompt, salt)[0].release()

    def evict(self, count: int, group: int = 0) -> None:
        pool = self.cache.pools[group]
        pool.give_back(pool.take(pool.num_free + count))

    def ask(self, prompt: list[int], salt: str = "") -> Reuse:
        sequence = self.cache.new_sequence(salt=salt)
        reuse = sequence.reuse(prompt)
        sequence.release()
        return reuse

    def miss(self, prompt: list[int], salt: str = "") -> Miss:
        miss = self.ask(prompt, salt).miss
        assert miss is not None
        return miss


def test_nothing_like_it() -> None:
    case = Case()
    assert case.ask(A) == Reuse(0, Miss("never_stored", 0))
    case.store(B)
    assert case.ask(A) == Reuse(0, Miss("never_stored", 0))
    case.store(A[:40])
    assert case.ask(A) == Reuse(40, Miss("never_stored", 40)), "it goes on where the other ended"
    assert case.ask(A[:41]) == Reuse(40, None)


def test_reuse_is_off() -> None:
    sequence = Case().cache.new_sequence(is_shared=False)
    assert sequence.reuse(A) == Reuse(0, Miss("off", 0))


@pytest.mark.parametrize("position", [1, 15, 16, 17, 20, 32, 47])
def test_differs_at(position: int) -> None:
    case = Case()
    case.store(A[:64])
    reuse = case.ask([*A[:position], *B[:20]])
    assert reuse.num_tokens == position
    theirs = A[position : min(position + 8, position // 16 * 16 + 32)]
    assert reuse.miss == Miss(
        "differs",
        position,
        shared=tuple(A[max(0, position - 8) : position]),
        ours=tuple(B[:8]),
        theirs=tuple(theirs),
    )


def test_differs_from_what_is_most_alike() -> None:
    case = Case()
    case.store([*A[:20], 1, 2, 3])
    case.store([*A[:25], 4, 5, 6])
    case.store([*A[:18], 7, 8, 9])
    assert case.miss([*A[:24], *B]).position == 24
    assert case.miss([*A[:24], *B]).theirs == (A[24], 4, 5, 6)


def test_was_evicted() -> None:
    case = Case()
    case.store(A[:64])
    case.seconds = 10.0
    case.evict(1)
    case.seconds = 12.5
    pool = case.cache.pools[0]
    pool.give_back(pool.take(5))
    assert case.ask(A) == Reuse(48, Miss("evicted", 48, evicted_s=2.5, num_taken_since=17 + 5))
    case.seconds = 20.0
    case.evict(3)
    assert case.miss(A).position == 0
    assert case.miss(A).evicted_s == 0.0
    case.store(A[:64])
    assert case.miss([*A[:64], *B]).kind == "never_stored", "it is back"


def test_what_is_forgotten_was_not_evicted() -> None:
    case = Case()
    case.store(A[:40])
    case.evict(3)
    case.store(A[:40])
    case.cache.clear()
    assert case.ask(A) == Reuse(0, Miss("never_stored", 0))


def test_the_last_partly_filled_block_was_evicted() -> None:
    case = Case()
    case.store(A[:40])
    case.seconds = 3.0
    case.evict(1)
    reuse = case.ask(A)
    assert reuse.num_tokens == 32
    assert reuse.miss is not None
    assert reuse.miss.kind == "evicted"
    assert reuse.miss.position == 32


def test_a_windows_block_was_evicted() -> None:
    case = Case((None, 20))
    case.store(A[:64])
    case.seconds = 3.0
    case.evict(3, group=1)  # those that had left the window go first: the third is of tokens 32 to 47
    reuse = case.ask(A)
    assert reuse.num_tokens == 0
    assert reuse.miss is not None
    assert reuse.miss.kind == "evicted"
    assert reuse.miss.evicted_s == 0.0


def test_evicted_longer_ago_than_is_remembered() -> None:
    case = Case((None, 20))
    case.store(A[:64])
    case.evict(3, group=1)
    case.cache.index.evictions = Evictions()
    assert case.miss(A) == Miss("evicted", 0)


def test_a_running_request_has_not_filled_its_block() -> None:
    case = Case()
    running, _ = run(case.cache, A[:28])
    assert case.ask(A[:25]) == Reuse(16, Miss("short", 16))
    assert case.ask(B[:25]) == Reuse(0, Miss("never_stored", 0))
    running.release()
    assert case.ask(A[:25]) == Reuse(24, None)


def test_what_is_remembered_of_evictions_is_bounded() -> None:
    evictions = Evictions(num_remembered=3)
    for number in range(5):
        evictions.remember(bytes([number]), float(number), 0, number)
    assert len(evictions) == 3
    assert evictions.find(b"\1") is None
    assert evictions.find(b"\2") == (2.0, 0, 2)
    evictions.remember(b"\2", 9.0, 0, 9)
    evictions.remember(b"\5", 9.0, 0, 9)
    assert evictions.find(b"\2") == (9.0, 0, 9)
    assert evictions.find(b"\3") is None
    evictions.forget(b"\2")
    evictions.forget(b"\2")
    assert len(evictions) == 2


texts = st.lists(st.integers(0, 1), min_size=1, max_size=60)


@given(
    others=st.lists(st.tuples(texts, st.sampled_from(["evict", "run", "leave"])), max_size=6),
    own=st.lists(texts, max_size=2),
    prompt=texts,
)
def test_another_tenant_learns_nothing(
    others: list[tuple[list[int], str]], own: list[list[int]], prompt: list[int]
) -> None:
    """The answer under a salt is byte for byte what it is where no other tenant ever was."""
    answers = []
    for has_others in (False, True):
        case = Case(num_sequences=30)
        running, theirs = [], others if has_others else []
        for text, _ in (each for each in theirs if each[1] == "evict"):  # before there is anything of ours to evict
            case.store(text, "theirs")
            case.evict(case.cache.pools[0].num_cached)
            assert case.cache.pools[0].num_cached == 0
        for text in own:
            case.store(text, "mine")
        for text, end in theirs:
            if end == "run":
                running.append(run(case.cache, text, "theirs")[0])
            elif end == "leave":
                case.store(text, "theirs")
        answers.append(repr(case.ask(prompt, "mine")))
    assert answers[0] == answers[1]


def test_an_evicted_text_of_another_tenant_was_never_stored() -> None:
    case = Case()
    case.store(A[:64], "theirs")
    case.evict(4)
    assert case.ask(A, "mine") == Reuse(0, Miss("never_stored", 0))
    assert case.miss(A, "theirs").kind == "evicted"


# --- two prompts ---


def test_two_prompts_that_part_and_meet_again() -> None:
    rules = list(range(50))
    found = explain_pair([1, 2, 3, 90, *rules, 7], [1, 2, 3, 91, 92, *rules, 8])
    assert (found.num_a, found.num_b) == (55, 56)
    assert (found.num_shared, found.num_shared_blocks) == (3, 0)
    assert (found.again_a, found.again_b, found.num_again) == (4, 5, 50)
    assert not found.is_same


def test_two_prompts_of_which_one_goes_on() -> None:
    found = explain_pair(A[:40], A)
    assert (found.num_shared, found.num_shared_blocks, found.num_again) == (40, 2, 0)
    assert not found.is_same
    assert explain_pair(A, A).is_same
    assert explain_pair([], []).is_same


@given(texts, texts)
def test_two_prompts_as_the_cache_sees_them(one: list[int], other: list[int]) -> None:
    case = Case()
    case.store(one)
    found = explain_pair(one, other)
    assert begin(case.cache, other)[2] == min(found.num_shared, len(other) - 1)
    again = slice(found.again_a, found.again_a + found.num_again)
    assert one[again] == other[found.again_b : found.again_b + found.num_again]


@given(st.lists(st.integers(0, 2), max_size=14), st.lists(st.integers(0, 2), max_size=14))
def test_the_longest_stretch(a: list[int], b: list[int]) -> None:
    at_a, at_b, size = longest_stretch(a, b)
    assert a[at_a : at_a + size] == b[at_b : at_b + size]
    stretches = {tuple(a[start:end]) for start in range(len(a)) for end in range(start + 1, len(a) + 1)}
    assert not any(tuple(b[at : at + size + 1]) in stretches for at in range(len(b) - size))


def test_a_stretch_of_tokens_that_repeat() -> None:
    digits = [3, 4] * 10_000
    assert longest_stretch([1, 2, *digits], [5, *digits, 6]) == (2, 1, 20_000)
