"""Threads that take turns, and lines that Ctrl-C doesn't cut."""

from __future__ import annotations

import signal
import threading
from contextlib import nullcontext

import pytest
from fakes.decoder import FakeDecoder
from fakes.model import fake_spec

from kvist.cache.kv_cache import KvCache
from kvist.engine import answer
from kvist.engine.engine import Engine
from kvist.engine.generation import Generation
from kvist.engine.request import Request, SamplingParams
from kvist.engine.turns import Turns
from kvist.engine.unbroken import Unbroken
from kvist.spec.cache import CacheSpec


def new_engine(**decoder: float) -> Engine:
    spec = fake_spec(256)
    cache = KvCache(spec, CacheSpec(), num_tokens=256, num_sequences=4)
    return Engine(FakeDecoder(spec, **decoder), cache, CacheSpec(), context_length=256)  # type: ignore[arg-type]


def test_threads_that_stream_are_computed_together() -> None:
    engine = new_engine(step_s=0.003)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    streams = [Generation(engine, Request((number,) * 10, params)) for number in range(6)]
    counts: dict[int, int] = {}

    def read(number: int) -> None:
        counts[number] = sum(1 for _ in streams[number])

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert counts == dict.fromkeys(range(6), 40)
    assert len(engine._decoder.steps) < 60  # type: ignore[attr-defined]


def test_one_steps_at_a_time_and_an_error_goes_to_who_stepped() -> None:
    inside, most = 0, 0
    left = [30]

    def step() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        left[0] -= 1
        inside -= 1
        if left[0] == 10:
            raise ValueError("once")

    turns, errors = Turns(step), []

    def wait() -> None:
        try:
            turns.wait(lambda: left[0] <= 0)
        except ValueError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert (most, len(errors), left[0]) == (1, 1, 0)


def test_ctrl_c_waits_for_the_end_of_the_lines() -> None:
    done = []

    def lines() -> None:
        with Unbroken():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        lines()
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_tokens_are_chosen_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = new_engine()
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    requests = [Request((number,) * 10, params, has_digest=True) for number in range(3)]
    expected = []
    for request in requests:
        generation = Generation(engine, request)
        list(generation)
        expected.append(generation.result.logits_sha256)
    engine.reset()
    streams = [Generation(engine, request) for request in requests]
    check, calls = answer.check_finite, []

    def interrupted(*arguments: object) -> None:
        calls.append(1)
        if len(calls) % 5 == 0:
            signal.raise_signal(signal.SIGINT)
        check(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(answer, "check_finite", interrupted)
    num_interrupted = 0
    while engine.has_work:
        before = len(calls)
        is_due = any(number % 5 == 0 for number in range(before + 1, before + 1 + 3))
        with pytest.raises(KeyboardInterrupt) if is_due else nullcontext():
            engine.step()
        num_interrupted += is_due
    assert num_interrupted > 3
    assert [len(list(stream)) for stream in streams] == [12, 12, 12]
    assert [stream.result.logits_sha256 for stream in streams] == expected


def test_a_request_that_cannot_be_computed_ends_alone() -> None:
    engine = new_engine(bad_token=7)
    params = SamplingParams(max_tokens=5, ignore_eos=True, n=2)
    good, bad = engine.add(Request((1, 2, 3), params)), engine.add(Request((1, 7), params))
    while engine.has_work:
        engine.step()
    assert [choice.finish_reason for choice in good.result.choices] == ["length", "length"]
    assert [choice.finish_reason for choice in bad.result.choices] == ["error", "error"]
    assert bad.result.error is not None and "damaged" in bad.result.error
    assert engine.stats().blocks_used == 0
