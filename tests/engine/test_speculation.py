"""Drafts: what they guess, how long they are, and that the answer is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fakes.decoder import FakeDecoder
from fakes.model import byte_tokenizer, fake_spec
from hypothesis import given
from hypothesis import strategies as st

from kvist.cache.kv_cache import KvCache
from kvist.engine.engine import Engine
from kvist.engine.request import Request, SamplingParams
from kvist.engine.result import Result
from kvist.engine.speculation import LONGEST, NO_DRAFT, PROBE_EVERY, RESUME_WITHIN, Draft, Drafter
from kvist.spec.cache import CacheSpec


def test_it_takes_what_followed_the_longest_and_latest() -> None:
    drafter = Drafter([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3])
    assert drafter.draft(3) == Draft(3, (4, 9, 2), 3)
    drafter.add(7)
    assert drafter.draft(3) == NO_DRAFT
    for token_id in (9, 2):
        drafter.add(token_id)
    assert drafter.draft(2) == Draft(2, (3, 5), 6)


def test_a_repetition_goes_round() -> None:
    assert Drafter([5, 6, 5, 6, 5]).draft(6).token_ids == (6, 5, 6, 5, 6, 5)


def test_a_copy_goes_on_where_it_was_after_another_word() -> None:
    """Of two places alike, the one in step with the copy is taken, not the latest."""
    source = [1, 2, 3, 4, 5, 6, 7, 20, 21, 9, 30, 31, 32, 20, 21, 8]
    drafter = Drafter([*source, 1, 2, 3])
    draft = drafter.draft(3)
    assert draft == Draft(3, (4, 5, 6), 3)
    for token_id in (4, 5, 6):
        drafter.add(token_id)
    drafter.add(40)  # instead of 7
    drafter.learn(draft, 3)
    for token_id in (20, 21):
        drafter.add(token_id)
    assert drafter.draft(1).token_ids == (9,)
    assert Drafter([*source, 20, 21]).draft(1).token_ids == (8,)


def test_one_equal_token_near_where_it_would_go_on_resumes_a_copy() -> None:
    """Another word, and the one after it: it goes on there, not at the same token elsewhere."""
    source = [1, 2, 3, 4, 5, 6, 7, 20, 21, 9, 30, 31, 32, 33, 34, 35, 36, 20, 22, 8, *range(50, 60)]
    drafter = Drafter([*source, 1, 2, 3])
    draft = drafter.draft(3)
    for token_id in (4, 5, 6):
        drafter.add(token_id)
    drafter.add(40)  # instead of 7
    drafter.learn(draft, 3)
    assert drafter.draft(2) == NO_DRAFT
    drafter.add(20)
    assert drafter.draft(2) == Draft(1, (21, 9), 8)
    for token_id in (41, 55):  # the source has this one too far away
        drafter.add(token_id)
        assert drafter.draft(2) == NO_DRAFT
    assert Drafter([*source, 41, 20]).draft(2) == NO_DRAFT


def test_a_copy_is_given_up_after_a_while() -> None:
    drafter = Drafter([1, 2, 3, 4, 5, *range(100, 130), 1, 2, 3])
    draft = drafter.draft(1)
    drafter.add(4)
    drafter.learn(draft, 1)
    for number in range(200, 200 + RESUME_WITHIN):
        drafter.add(number)
    drafter.add(101 + RESUME_WITHIN)  # just where it would be by now
    assert drafter.draft(1) == NO_DRAFT


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 12))
def test_a_draft_did_follow_the_same_tokens(ids: list[int], most: int) -> None:
    match, token_ids, place = Drafter(ids).draft(most)
    assert len(token_ids) in (0, most)
    if token_ids:
        assert ids[place - match : place] == ids[-match:]
        assert token_ids[0] == ids[place]
        end = tuple(ids[-min(match, LONGEST) :])
        places = [at for at in range(len(end), len(ids)) if tuple(ids[at - len(end) : at]) == end]
        assert place == places[-1]


def test_a_draft_is_as_long_as_it_is_worth() -> None:
    drafter = Drafter([1, 2])
    draft = Draft(3, tuple(range(20)))
    lengths = [len(drafter.cut(draft, 1.0, row_s).token_ids) for row_s in (0.01, 0.2, 0.9)]
    assert lengths[0] > lengths[1] > lengths[2] == 0
    for _ in range(20):
        drafter.learn(draft, 0)
    assert drafter.acceptance(3) < 0.05
    assert drafter.cut(draft, 1.0, 0.1).token_ids == ()
    assert drafter.acceptance(4) > 0.6
    for _ in range(20):
        drafter.learn(draft, 20)
    assert len(drafter.cut(draft, 1.0, 0.1).token_ids) == 20


@given(st.integers(2, 9), st.lists(st.integers(0, 12), max_size=20), st.floats(1e-3, 1.0), st.floats(1e-5, 1.0))
def test_no_other_length_gives_more_tokens_a_second(
    match: int, rights: list[int], token_s: float, row_s: float
) -> None:
    drafter = Drafter([1])
    draft = Draft(match, tuple(range(12)))
    for num_right in rights:
        drafter.learn(draft, num_right)

    def rate(count: int) -> float:
        likely, tokens = 1.0, 1.0
        for number in range(count):
            likely *= drafter.acceptance(match + number)
            tokens += likely
        return tokens / (token_s + count * row_s)

    chosen = len(drafter.cut(draft, token_s, row_s).token_ids)
    assert rate(chosen) >= max(rate(count) for count in range(13)) * (1 - 1e-9)


def test_inside_a_run_a_draft_grows_at_once() -> None:
    drafter = Drafter([1])
    lengths = [len(drafter.cut(Draft(match, tuple(range(32))), 6.0, 1.0).token_ids) for match in (2, 3, 4, 9)]
    assert lengths[0] < lengths[1] < lengths[2] < lengths[3]


def test_now_and_then_it_tries_again() -> None:
    drafter = Drafter([1] * (PROBE_EVERY - 1))
    draft = Draft(2, (1, 1, 1))
    assert drafter.cut(draft, 1.0, 10.0).token_ids == ()
    drafter.add(1)
    assert drafter.cut(draft, 1.0, 10.0).token_ids == (1,)


def answer(params: SamplingParams, **decoder: Any) -> tuple[Result, FakeDecoder]:
    spec = fake_spec(256)
    fake = FakeDecoder(spec, **decoder)
    cache = KvCache(spec, CacheSpec(), num_tokens=256)
    engine = Engine(fake, cache, CacheSpec(), context_length=256, tokenizer=byte_tokenizer())  # type: ignore[arg-type]
    ticket = engine.add(Request(tuple(b"say it again: one two three. "), params, has_digest=True))
    while not ticket.is_finished:
        engine.step()
        engine._cache.check()
    return ticket.result, fake


def test_an_answer_that_repeats_takes_fewer_steps_and_is_the_same() -> None:
    text = list(b"say it again: one two three. four five.")
    params = SamplingParams(max_tokens=39)
    plain, slow = answer(params, answer=text, step_s=0.002)
    guessed, fast = answer(replace(params, speculation=8), answer=text, step_s=0.002)
    assert (guessed.text, guessed.logits_sha256) == (plain.text, plain.logits_sha256)
    assert "say it again: one two three." in guessed.text
    assert len(fast.steps) < len(slow.steps) / 2
    assert guessed.accepted_tokens > 20
    assert guessed.forward_tokens == plain.forward_tokens + guessed.drafted_tokens - guessed.accepted_tokens


def test_a_stop_inside_a_draft_ends_there() -> None:
    text = list(b"say it again: one two three. four five.")
    params = SamplingParams(max_tokens=39, stop="two th")
    plain, _ = answer(params, answer=text, step_s=0.002)
    guessed, _ = answer(replace(params, speculation=16), answer=text, step_s=0.002)
    assert plain.text == "four five.say it again: one "
    assert (guessed.text, guessed.token_ids) == (plain.text, plain.token_ids)
    assert guessed.logits_sha256 == plain.logits_sha256
