"""An answer to iterate over: its events as they come, while other requests are served beside it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator

from kvist.engine.engine import Engine
from kvist.engine.request import Request
from kvist.engine.result import Result, TokenEvent
from kvist.engine.ticket import Ticket


class Generation:
    """A request under way: iterate over it for its events, once; then (or after stopping early) read ``result``.

    The engine steps while somebody iterates, and all requests under way go on with each step. ``is_cancelled`` is asked
    before each step; the answer then ends with what there is. Who lets go of it without closing it ends it, too.

    Raises:
        RequestError, CapacityError: at once, where the request can't be served.
        NumericsError: in the iteration, where the model's numbers overflow.
    """

    def __init__(self, engine: Engine, request: Request, *, is_cancelled: Callable[[], bool] = bool) -> None:
        self._engine = engine
        self._ticket = engine.add(request, is_heard=True)
        self._abandon = weakref.finalize(self, engine.cancel, self._ticket.id)
        self._events = _events(engine, self._ticket, is_cancelled)

    @property
    def request_id(self) -> int:
        """The engine's number for it."""
        return self._ticket.id

    def __iter__(self) -> Iterator[TokenEvent]:
        return self  # not the events: a loop over a stream that nobody else holds would let go of it at once

    def __next__(self) -> TokenEvent:
        return next(self._events)

    def close(self) -> None:
        """End the answer here; its blocks are given back."""
        self._events.close()
        self._abandon()

    @property
    def result(self) -> Result:
        """The answer so far; whole once the iteration has ended."""
        return self._ticket.result


def _events(engine: Engine, ticket: Ticket, is_cancelled: Callable[[], bool]) -> Generator[TokenEvent, None, None]:
    """Yield a request's events; closing the generator ends the request."""

    def is_over() -> bool:
        return bool(ticket.events) or ticket.is_finished

    def before_step() -> None:
        if is_cancelled():
            engine.cancel(ticket.id)

    try:
        while True:
            engine.wait(is_over, before_step)
            if not ticket.events:
                break
            yield ticket.events.popleft()
    finally:
        if not ticket.is_finished:
            engine.cancel(ticket.id)
    if ticket.error is not None:
        raise ticket.error
