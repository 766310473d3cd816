"""The engine in a thread of its own: streams, cancelling, closing, several at once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fakes.decoder import FakeDecoder
from fakes.model import byte_tokenizer, fake_spec

from kvist.cache.kv_cache import KvCache
from kvist.engine.async_engine import AsyncEngine
from kvist.engine.engine import Engine
from kvist.engine.request import Request, SamplingParams
from kvist.errors import NumericsError, RequestError, SpecError
from kvist.spec.cache import CacheSpec

LONG = SamplingParams(max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(max_tokens=8, ignore_eos=True)


def new_engine(**decoder: Any) -> Engine:
    spec = fake_spec(256)
    cache = KvCache(spec, CacheSpec(), num_tokens=256, num_sequences=4)
    return Engine(FakeDecoder(spec, **decoder), cache, CacheSpec(), context_length=256, tokenizer=byte_tokenizer())


@asynccontextmanager
async def running(**decoder: Any) -> AsyncIterator[AsyncEngine]:
    """An engine under way; afterwards nobody holds a block."""
    engine = new_engine(**decoder)
    with AsyncEngine(engine) as asynchronous:
        yield asynchronous
    assert not engine.has_work
    assert not any(pool.num_used for pool in engine._cache.pools)


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(asyncio.wait_for(test(), timeout=60))


def prompt(text: str, params: SamplingParams = SHORT) -> Request:
    return Request(tuple(text.encode()), params, has_digest=True)


async def until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        await asyncio.sleep(0.001)


@in_a_loop
async def test_many_streams_at_once() -> None:
    texts = ["one", "two", "three", "four", "five"]
    async with running() as engine:
        results = await asyncio.gather(*(engine.generate(prompt(text)) for text in texts))
        for text, result in zip(texts, results, strict=True):
            stream = engine.stream(prompt(text))
            events = [event async for event in stream]
            assert tuple(event.token_id for event in events) == result.token_ids
            assert stream.result.logits_sha256 == result.logits_sha256
            assert "".join(event.text for event in events) == result.text
        assert engine.stats().num_finished == 10


@in_a_loop
async def test_leaving_a_stream_frees_its_blocks() -> None:
    async with running(step_s=0.001) as engine:
        async for _ in engine.stream(prompt("left", LONG)):
            break
        gc.collect()
        await until(lambda: engine.stats().num_running == 0)
        stream = engine.stream(prompt("never begun", LONG))
        del stream
        await until(lambda: engine.stats().num_running + engine.stats().num_waiting == 0)
        assert engine.stats().blocks_used == 0


@in_a_loop
async def test_cancelling() -> None:
    async with running(step_s=0.001) as engine:
        stream = engine.stream(prompt("cancelled", LONG))
        num_seen = 0
        async for _ in stream:
            num_seen += 1
            if num_seen == 3:
                engine.cancel(stream.request_id)
        assert stream.result.finish_reason == "cancelled"
        assert 3 <= num_seen < 200
        task = asyncio.create_task(engine.generate(prompt("a task", LONG)))
        await until(lambda: engine.stats().num_running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: engine.stats().blocks_used == 0)


@in_a_loop
async def test_closing_ends_streams() -> None:
    engine = AsyncEngine(new_engine(step_s=0.001))
    stream = engine.stream(prompt("closed", LONG))
    await until(lambda: engine.stats().generated_tokens > 2)
    engine.close()
    events = [event async for event in stream]
    assert stream.result.finish_reason == "cancelled"
    assert len(events) == stream.result.generated_tokens
    with pytest.raises(RequestError, match="closed"):
        engine.stream(prompt("too late"))
    engine.close()


@in_a_loop
async def test_an_error_is_of_one_alone() -> None:
    async with running(bad_token=7) as engine:
        good = asyncio.create_task(engine.generate(prompt("good")))
        with pytest.raises(NumericsError, match="damaged"):
            await engine.generate(Request((1, 7), SHORT))
        assert (await good).generated_tokens == 8
        with pytest.raises(RequestError, match="empty"):
            engine.stream(Request((), SHORT))


@in_a_loop
async def test_a_failure_of_our_own_is_told_to_everybody() -> None:
    async with running() as engine:
        engine._engine._decoder.close()  # what no user can do: the fake then asserts
        with pytest.raises(AssertionError):
            await engine.generate(prompt("nobody"))


def test_a_stream_outside_a_loop_is_refused_and_leaves_nothing() -> None:
    engine = new_engine()
    with AsyncEngine(engine) as asynchronous:
        with pytest.raises(RequestError, match="needs a running event loop"):
            asynchronous.stream(prompt("nowhere"))
        assert not engine.has_work


@pytest.mark.parametrize("request_id", [[1], None, "1", 1.5, True])
def test_what_is_no_request_to_cancel(request_id: Any) -> None:
    engine = new_engine()
    with AsyncEngine(engine) as asynchronous:
        for cancel in (engine.cancel, asynchronous.cancel):
            with pytest.raises(RequestError, match="request_id must be a whole number, got"):
                cancel(request_id)
        assert asyncio.run(asynchronous.generate(prompt("unharmed"))).generated_tokens == 8


def test_what_is_no_engine() -> None:
    with pytest.raises(SpecError, match=r"must be an Engine, such as llm\.engine, got 'llm'"):
        AsyncEngine("llm")  # type: ignore[arg-type]


@in_a_loop
async def test_a_thread_that_has_failed_serves_nobody() -> None:
    engine = new_engine(step_s=0.001)

    def fail(_request_id: int) -> None:
        raise ZeroDivisionError

    asynchronous = AsyncEngine(engine)
    stream = asynchronous.stream(prompt("under way", LONG))
    engine.cancel = fail  # type: ignore[method-assign]
    asynchronous.cancel(stream.request_id)
    with pytest.raises(ZeroDivisionError):
        async for _ in stream:
            pass
    with pytest.raises(RequestError, match=r"thread has failed \(ZeroDivisionError\(\)\); make a new one"):
        asynchronous.stream(prompt("too late"))
    asynchronous.close()


@in_a_loop
async def test_two_engines() -> None:
    async with running() as one, running() as other:
        found = await asyncio.gather(*(engine.generate(prompt("twin")) for engine in (one, other)))
        assert found[0].logits_sha256 == found[1].logits_sha256
