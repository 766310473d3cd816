"""A request that an engine has taken, and what comes of it."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from kvist.engine.answer import Answer
from kvist.engine.request import Request
from kvist.engine.result import Result, TokenEvent
from kvist.errors import KvistError


class Ticket:
    """``answers`` are one for each choice. ``events`` that nobody has taken yet are kept where somebody listens."""

    def __init__(self, request_id: int, request: Request, answers: tuple[Answer, ...], *, is_heard: bool) -> None:
        self.id = request_id
        self.request = request
        self.answers = answers
        self.is_heard = is_heard
        self.events: deque[TokenEvent] = deque()

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended."""
        return all(answer.finish_reason is not None for answer in self.answers)

    @property
    def error(self) -> KvistError | None:
        """What went wrong, with the first choice that something went wrong with."""
        return next((answer.error for answer in self.answers if answer.error is not None), None)

    @property
    def result(self) -> Result:
        """The answer so far, whole when it has ended: of several choices the first, or with ``best_of`` the best."""
        answers, params = list(self.answers), self.request.params
        if params.best_of is not None:
            answers.sort(key=lambda answer: -answer.mean_logprob)  # stable: ties to the lower choice
        results = tuple(answer.result() for answer in answers[: params.n])
        return results[0] if params.n == 1 else replace(results[0], choices=results)
