"""Running many requests to their end, with a bar on the terminal."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence as Many
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvist.engine.engine import Engine
from kvist.engine.request import Request
from kvist.engine.result import Result
from kvist.engine.ticket import Ticket

REDRAW_S = 0.2


def run_all(engine: Engine, requests: Many[Request], *, show: bool | None = None) -> list[Result]:
    """Return the results of ``requests``, in their order; ``show`` None shows the bar where stderr is a terminal.

    Raises:
        RequestError, CapacityError: one of them can't be served; then none is.
        NumericsError: the model's numbers overflow in one of them; then all that haven't ended are cancelled.
    """
    tickets: list[Ticket] = []
    is_shown = sys.stderr.isatty() if show is None else show
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    ) if is_shown else None  # fmt: skip
    shown: AbstractContextManager[object] = bar or nullcontext()
    try:
        tickets.extend(engine.add(request) for request in requests)
        with shown:
            _run(engine, tickets, bar)
    finally:
        for ticket in tickets:
            if not ticket.is_finished:
                engine.cancel(ticket.id)
    return [ticket.result for ticket in tickets]


def _run(engine: Engine, tickets: list[Ticket], bar: Progress | None) -> None:
    """Step until all have ended, or one has failed."""
    left = deque(tickets)
    task = bar.add_task("generating", total=len(tickets)) if bar is not None else None
    shown_s = engine.clock()

    def is_over() -> bool:
        nonlocal shown_s
        while left and left[0].is_finished:
            error = left.popleft().error
            if error is not None:
                raise error
        if bar is not None and task is not None and engine.clock() > shown_s + REDRAW_S:
            shown_s = engine.clock()
            bar.update(task, completed=len(tickets) - sum(not ticket.is_finished for ticket in left))
        return not left

    engine.wait(is_over)
