"""Beam search: against the plainest way to write it, beside requests, in a pool that is too small."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
from fakes.decoder import FakeDecoder
from fakes.model import END, byte_tokenizer, fake_spec, install
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist import LLM
from kvist.cache.kv_cache import KvCache
from kvist.engine.beam import Beam
from kvist.engine.engine import Engine
from kvist.engine.request import Request, SamplingParams
from kvist.engine.sampling import token_logprobs
from kvist.errors import RequestError
from kvist.spec.cache import CacheSpec

CONTEXT = 80


def new_engine(num_sequences: int = 4, step_tokens: int = 256) -> Engine:
    spec = fake_spec(CONTEXT)
    cache = KvCache(spec, CacheSpec(), num_tokens=CONTEXT, num_sequences=num_sequences)
    decoder = FakeDecoder(spec, step_tokens=step_tokens)
    return Engine(
        decoder, cache, CacheSpec(), context_length=CONTEXT, tokenizer=byte_tokenizer(), end_token_ids=frozenset({END})
    )


def plain(engine: Engine, prompt: list[int], width: int, max_tokens: int, penalty: float, ends: set[int]) -> list[Beam]:
    """Every beginning computed whole at every step, and no early end."""
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[Beam] = []
    for length in range(1, max_tokens + 1):
        found = []
        for number, (logprob, token_ids) in enumerate(beams):
            row = engine.logits([*prompt, *token_ids])[-1]
            found += [(logprob + own, number, n, (*token_ids, n)) for n, own in token_logprobs(row, 0, 2 * width).top]
        found.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
        beams = []
        for logprob, _, token_id, token_ids in found[: 2 * width]:
            if token_id in ends or length == max_tokens:
                done.append(Beam(token_ids, logprob, logprob / length**penalty))
            elif len(beams) < width:
                beams.append((logprob, token_ids))
        done.sort(key=lambda beam: -beam.score)
        del done[width:]
    return done


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from([0.0, 1.0, 1.7]),
    st.sampled_from([1, 4]),
)
def test_finds_what_the_plain_way_finds(
    prompt: list[int], width: int, max_tokens: int, penalty: float, num_sequences: int
) -> None:
    engine = new_engine(num_sequences)
    engine.end_token_ids = frozenset({*range(97, 104)})
    expected = plain(engine, prompt, width, max_tokens, penalty, {*range(97, 104)})
    assert engine.beam_search(prompt, width=width, max_tokens=max_tokens, length_penalty=penalty) == expected
    engine._cache.check()
    assert not any(pool.num_used for pool in engine._cache.pools)


def test_one_beam_is_greedy() -> None:
    engine = new_engine()
    prompt = tuple(b"once")
    ticket = engine.add(Request(prompt, SamplingParams(max_tokens=9)))
    while not ticket.is_finished:
        engine.step()
    (beam,) = engine.beam_search(prompt, width=1, max_tokens=9)
    assert beam.token_ids == ticket.result.token_ids


def test_what_is_shared_is_computed_once() -> None:
    engine = new_engine()
    engine.beam_search(list(range(50)), width=4, max_tokens=5)
    assert engine._decoder.num_forward_tokens == 50 + 4 * 4
    assert engine._decoder.steps == [50, 4, 4, 4, 4]  # type: ignore[attr-defined]


def test_beside_requests_in_a_pool_for_one() -> None:
    engine = new_engine(num_sequences=1)
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    expected_beams = engine.beam_search(tuple(b"beams"), width=3, max_tokens=12)
    requests = [Request((number,) * 30, params, has_digest=True) for number in range(3)]
    results = []
    for request in requests:
        ticket = engine.add(request)
        engine.wait(lambda ticket=ticket: ticket.is_finished)  # type: ignore[misc]
        results.append(ticket.result)
    found: list[list[Beam]] = []
    thread = threading.Thread(target=lambda: found.append(engine.beam_search(tuple(b"beams"), width=3, max_tokens=12)))
    tickets = [engine.add(request) for request in requests]
    thread.start()
    engine.wait(lambda: all(ticket.is_finished for ticket in tickets))
    thread.join(timeout=60)
    assert found == [expected_beams]
    for ticket, result in zip(tickets, results, strict=True):
        assert ticket.result.logits_sha256 == result.logits_sha256
    engine._cache.check()
    assert not any(pool.num_used for pool in engine._cache.pools)


def test_refusals() -> None:
    engine = new_engine()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"width": 0}, "width must be from 1 to 50, got 0"),
        ({"width": 51}, "width"),
        ({"width": 2.5}, "width must be a whole number, from 1 to 50, got 2.5"),
        ({"width": "2"}, "width"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"length_penalty": 1e5}, "length_penalty must be from -32 to 32, got 100000.0"),
        ({"length_penalty": -1e5}, "length_penalty"),
        ({"length_penalty": -math.inf}, "length_penalty must be a finite number"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"salt": "\ud800"}, "salt must be a text without half characters"),
    ]
    for asked, said in wrong:
        with pytest.raises(RequestError, match=said):
            engine.beam_search([1], **{"width": 1, "max_tokens": 1, **asked})
    with pytest.raises(RequestError, match="empty"):
        engine.beam_search([], width=1, max_tokens=1)


@pytest.mark.parametrize("penalty", [-32, 32])
def test_the_largest_penalties(penalty: float) -> None:
    engine = new_engine()
    found = engine.beam_search(np.arange(3), width=np.int8(50), max_tokens=np.int8(70), length_penalty=penalty)
    assert len(found) == 50
    assert all(math.isfinite(beam.score) for beam in found)


def test_the_library_gives_text(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, answer=[*b"yes", END])
    with LLM("any") as model:
        best = model.beam_search("Hello", width=2, max_tokens=8)[0]
        assert (best.text, best.token_ids[-1]) == ("yes", END)
