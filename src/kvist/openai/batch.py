"""Running a file of requests: many under way at once, each result written as soon as it is there.

Requests are read as there is room for them, so that neither a file's length nor its answers' fill the memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvist.engine.engine import Engine
from kvist.engine.files import ModelFiles
from kvist.engine.ticket import Ticket
from kvist.errors import CapacityError, CheckpointError, KvistError, RequestError, SpecError
from kvist.openai.answer import answer_body
from kvist.openai.batch_lines import BatchLine, read_lines
from kvist.openai.batch_results import ResultFile
from kvist.openai.body import Asked, read_body

DEFAULT_IN_FLIGHT = 256
"""As many as a step has rows: more wouldn't be computed together."""


@dataclass
class Totals:
    """What came of a run. ``num_skipped`` lines had their results before."""

    num_skipped: int = 0
    num_succeeded: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0

    def count(self, usage: dict[str, Any]) -> None:
        """Add an answer's usage."""
        self.num_succeeded += 1
        self.prompt_tokens += usage["prompt_tokens"]
        self.generated_tokens += usage["completion_tokens"]
        self.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]


@dataclass(frozen=True)
class Underway:
    """A line whose requests the engine has."""

    line: BatchLine
    asked: Asked
    tickets: tuple[Ticket, ...]

    @property
    def is_finished(self) -> bool:
        return all(ticket.is_finished for ticket in self.tickets)

    @property
    def error(self) -> KvistError | None:
        return next((ticket.error for ticket in self.tickets if ticket.error is not None), None)


@dataclass
class BatchRun:
    """One run over a file. ``on_line`` is called for each line that is done, skipped ones too."""

    engine: Engine
    files: ModelFiles
    results: ResultFile
    in_flight: int = DEFAULT_IN_FLIGHT
    on_line: Callable[[int], object] = bool
    wall_clock: Callable[[], float] = time.time
    totals: Totals = field(default_factory=Totals)

    def run(self, path: Path) -> Totals:
        """Answer every line of ``path`` that has no result yet. Broken off, what is under way is cancelled."""
        lines = read_lines(path)
        underway: list[Underway] = []
        try:
            while self._fill(underway, lines):
                self.engine.wait(lambda: any(one.is_finished for one in underway))
                for one in [one for one in underway if one.is_finished]:
                    underway.remove(one)
                    self._settle(one)
        finally:
            for one in underway:
                self._cancel(one.tickets)
        return self.totals

    def _fill(self, underway: list[Underway], lines: Iterator[BatchLine]) -> bool:
        """Give the engine requests until as many lines are under way as may be; return whether any is."""
        while len(underway) < self.in_flight:
            line = next(lines, None)
            if line is None:
                break
            if self.results.has(line.id):
                self.totals.num_skipped += 1
                self.on_line(1)
                continue
            try:
                underway.append(self._begin(line))
            except KvistError as error:
                self._fail(line, error)
        return bool(underway)

    def _begin(self, line: BatchLine) -> Underway:
        if line.error is not None:
            raise line.error
        asked = read_body(self.files, line.url, line.body)
        tickets: list[Ticket] = []
        try:
            tickets += (self.engine.add(request) for request in asked.requests)
        except BaseException:
            self._cancel(tickets)
            raise
        return Underway(line, asked, tuple(tickets))

    def _cancel(self, tickets: list[Ticket] | tuple[Ticket, ...]) -> None:
        for ticket in tickets:
            if not ticket.is_finished:
                self.engine.cancel(ticket.id)

    def _settle(self, one: Underway) -> None:
        """Write the result of a line that is answered."""
        if one.error is not None:
            self._fail(one.line, one.error)
            return
        body = answer_body(
            one.asked,
            [ticket.result for ticket in one.tickets],
            tokenizer=self.files.require_tokenizer(),
            model=self.files.name,
            request_id=one.line.id.replace("batch_req", "chatcmpl" if one.asked.is_chat else "cmpl"),
            created_s=int(self.wall_clock()),
        )
        self._write(one.line, 200, body, None)
        self.totals.count(body["usage"])

    def _fail(self, line: BatchLine, error: KvistError) -> None:
        """Write what is wrong with a line, and go on."""
        status, code = next((said for kind, said in _STATUS.items() if isinstance(error, kind)), _SERVER_ERROR)
        said = {"code": code, "message": str(error)}
        self._write(line, status, {"error": {"message": str(error), "type": code, "code": code}}, said)
        self.totals.num_failed += 1

    def _write(self, line: BatchLine, status: int, body: dict[str, Any], error: dict[str, str] | None) -> None:
        self.results.append(
            {
                "id": line.id,
                "custom_id": line.custom_id,
                "line": line.number,
                "response": {"status_code": status, "request_id": line.id, "body": body},
                "error": error,
            }
        )
        self.on_line(1)


_STATUS: dict[type[KvistError], tuple[int, str]] = {
    CapacityError: (400, "insufficient_capacity"),
    RequestError: (400, "invalid_request_error"),
    SpecError: (400, "invalid_request_error"),  # a retention that isn't one
    CheckpointError: (400, "invalid_request_error"),  # a chat template that refuses the messages
}
_SERVER_ERROR = (500, "server_error")
