"""An engine with a thread of its own, for programs that wait for many things at once.

async for event in engine.stream(request): ...

The thread steps for as long as there are requests, and sleeps otherwise. It holds no GIL while kernels run, and hands
each step's events to the loops that wait for them in one call each.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from kvist.engine.engine import Engine
from kvist.engine.request import Request
from kvist.engine.result import Result, TokenEvent
from kvist.engine.stats import Stats
from kvist.engine.ticket import Ticket
from kvist.engine.values import whole_number, wrong
from kvist.errors import RequestError, SpecError

if TYPE_CHECKING:
    from typing_extensions import Self


class Stream:
    """A request under way: iterate over it for its events, once; then read ``result``.

    Who leaves the iteration, is cancelled in it, or lets go of the stream ends the request. Made by an ``AsyncEngine``,
    in the loop that is going to iterate.
    """

    def __init__(self, ticket: Ticket, loop: asyncio.AbstractEventLoop, cancel: Callable[[int], object]) -> None:
        self.request_id = ticket.id
        self.news = News(ticket, loop)
        self._abandon = weakref.finalize(self, cancel, ticket.id)

    @property
    def result(self) -> Result:
        """The answer so far; whole once the iteration has ended."""
        return self.news.ticket.result

    def close(self) -> None:
        """End the request here; its blocks are given back."""
        self._abandon()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenEvent:
        ticket, news = self.news.ticket, self.news
        while not ticket.events:
            if news.failure is not None:
                raise news.failure
            if ticket.is_finished:
                if ticket.error is not None:
                    raise ticket.error
                raise StopAsyncIteration
            news.has_come.clear()
            if not news.is_due:
                await self._wait()
        return ticket.events.popleft()

    async def _wait(self) -> None:
        try:
            await self.news.has_come.wait()
        except asyncio.CancelledError:
            self.close()
            raise


class News:
    """What the engine's thread tells a stream, in the stream's loop."""

    def __init__(self, ticket: Ticket, loop: asyncio.AbstractEventLoop) -> None:
        self.ticket = ticket
        self.loop = loop
        self.has_come = asyncio.Event()
        self.failure: BaseException | None = None

    @property
    def is_due(self) -> bool:
        """Whether there is something to tell."""
        return bool(self.ticket.events) or self.ticket.is_finished or self.failure is not None


class AsyncEngine:
    """Wraps an ``Engine`` (``llm.engine``), which others may use besides. Close it, or use it in a ``with``.

    Raises SpecError for anything but an ``Engine``.
    """

    def __init__(self, engine: Engine) -> None:
        if not isinstance(engine, Engine):
            raise wrong("the engine of an AsyncEngine", "an Engine, such as llm.engine", engine, SpecError)
        self._engine = engine
        self._changed = threading.Condition()
        self._news: dict[int, News] = {}
        self._cancelled: deque[int] = deque()
        self._is_closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kvist-engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is under way here and end the thread; may be called again."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def stream(self, request: Request) -> Stream:
        """Return the answer to iterate over, a ``TokenEvent`` a token. The request waits for its turn from now on.

        Raises:
            RequestError, CapacityError: at once, where it can't be served, or no loop runs in this thread.
            NumericsError: in the iteration, where the model's numbers overflow.
        """
        loop = _running_loop()
        with self._changed:
            if self._failure is not None:
                raise RequestError(f"this engine's thread has failed ({self._failure!r:.200}); make a new one")
            if self._is_closed:
                raise RequestError("this engine is closed; make a new one")
            ticket = self._engine.add(request, is_heard=True)
            stream = Stream(ticket, loop, self.cancel)
            self._news[ticket.id] = stream.news
            self._changed.notify()
        return stream

    async def generate(self, request: Request) -> Result:
        """Return the answer when it is whole."""
        stream = self.stream(request)
        async for _ in stream:
            pass
        return stream.result

    def cancel(self, request_id: int) -> None:
        """End a request, if it hasn't ended, and so its stream; its blocks go back when the pass that runs is over.

        Raises RequestError for what is no number.
        """
        number = whole_number("request_id", request_id)
        with self._changed:
            self._cancelled.append(number)
            self._changed.notify()

    def stats(self) -> Stats:
        """Return counts, times and gauges as they are between two steps; waits for the end of one."""
        return self._engine.stats()

    # ---- in the engine's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Serve until closed. Should that itself fail, the streams under way hear of it, and no other is begun."""
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 (whoever waits gets it)
            with self._changed:
                self._failure = error
                for news in self._news.values():
                    news.failure = error
            self._tell()

    def _serve(self) -> None:
        while self._wait():
            try:
                self._engine.step()
            except BaseException as error:  # noqa: BLE001 (whoever waits gets it)
                self._fail(error)
            self._tell()
        self._cancel_all()
        self._tell()

    def _wait(self) -> bool:
        """Sleep until there is something to do; pass on what was cancelled. Returns False once closed."""
        with self._changed:
            while not (self._engine.has_work or self._cancelled or self._is_closed):
                self._changed.wait()
            cancelled = [self._cancelled.popleft() for _ in range(len(self._cancelled))]
            is_open = not self._is_closed
        for request_id in cancelled:
            self._engine.cancel(request_id)
        self._tell()
        return is_open

    def _tell(self) -> None:
        """Wake those that have news, each loop with one call."""
        due: dict[asyncio.AbstractEventLoop, list[News]] = {}
        with self._changed:
            for news in [*self._news.values()]:
                if news.is_due:
                    due.setdefault(news.loop, []).append(news)
                if news.ticket.is_finished or news.failure is not None:
                    del self._news[news.ticket.id]
        for loop, several in due.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(_wake, several)

    def _fail(self, error: BaseException) -> None:
        """A step went wrong in a way that it shouldn't: everybody hears of it, and nothing of it goes on."""
        with self._changed:
            for news in self._news.values():
                news.failure = error
        self._cancel_all()

    def _cancel_all(self) -> None:
        with self._changed:
            request_ids = [*self._news]
        for request_id in request_ids:
            self._engine.cancel(request_id)


def _running_loop() -> asyncio.AbstractEventLoop:
    """The loop that this thread runs. Raises RequestError where it runs none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RequestError("a stream needs a running event loop; ask in an async function, or use LLM.stream") from None


def _wake(several: list[News]) -> None:
    for news in several:
        news.has_come.set()
