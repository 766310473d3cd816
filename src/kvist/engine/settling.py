"""What a pass computed is written down: tokens chosen, blocks recorded, forks made, drafts judged, endings noted."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from kvist.engine.answer import Answer, Row
from kvist.engine.batch import Batch
from kvist.engine.plan import Feed
from kvist.engine.result import FinishReason, TokenEvent
from kvist.engine.scheduler import Scheduler
from kvist.engine.stats import Counters
from kvist.engine.ticket import Ticket
from kvist.errors import KvistError, NumericsError

Logits = npt.NDArray[np.float32]


class Settling:
    """``tickets`` are the requests under way, by their number."""

    def __init__(self, scheduler: Scheduler, counters: Counters) -> None:
        self.tickets: dict[int, Ticket] = {}
        self._scheduler = scheduler
        self._counters = counters
        self._events: list[TokenEvent] = []

    def begin(self, ticket: Ticket) -> None:
        """Let a request wait for its turn. Choices wait for the first one's prompt; the yardstick shares nothing."""
        self.tickets[ticket.id] = ticket
        first, *others = ticket.answers
        if first.request.is_cached:
            first.followers = tuple(others)
            others = []
        for answer in (first, *others):
            self._scheduler.add(answer)

    def settle(self, batch: Batch, logits: Logits, best: list[int], now_s: float) -> list[TokenEvent]:
        """Note what was computed, choose tokens, and let those go who have ended; returns the tokens' events.

        ``best`` is the id of each row's largest logit.
        """
        self._events = []
        for feed, row in batch.rows():
            answer, num_tokens, draft = feed
            sequence, start, num_rows = answer.held, answer.num_recorded, num_tokens + len(draft.token_ids)
            self._counters.forward_tokens += num_rows
            answer.num_forward += num_rows
            answer.num_recorded = end = start + num_tokens
            sequence.record(answer.context[start:end])
            if row is None:
                sequence.drop_unseen()
                continue
            if answer.followers:
                self._fork(answer, logits[row], best[row], now_s)
            self._take(answer, logits[row], best[row], now_s)
            if draft.token_ids:
                self._judge(feed, logits, best, row, now_s)
            self._go_on(answer)
        return self._events

    def _fork(self, answer: Answer, logits: Row, best: int, now_s: float) -> None:
        """Let the other choices begin, from the prompt that has just been computed, with what is kept of it."""
        answer.held.drop_unseen()
        for follower in answer.followers:
            follower.sequence, follower.num_recorded = answer.held.fork(), answer.num_recorded
            follower.num_cached, follower.admitted_s = follower.num_prompt, answer.admitted_s
            self._scheduler.join(follower)
            self._take(follower, logits, best, now_s)
            self._go_on(follower)
        answer.followers = ()

    def _take(self, answer: Answer, logits: Row, best: int, now_s: float) -> None:
        """Choose one token."""
        before_s = None if answer.first_s is None else answer.last_s
        try:
            event = answer.take(logits, best, now_s)
        except NumericsError as error:  # a bias beyond all numbers: this answer's own doing
            answer.end("error", error)
            return
        self._events.append(event)
        self._counters.note_token(answer, before_s, now_s)
        ticket = self.tickets[answer.request_id]
        if ticket.is_heard:
            ticket.events.append(event)

    def _judge(self, feed: Feed, logits: Logits, best: list[int], row: int, now_s: float) -> None:
        """Take further tokens for as long as the draft was right, and forget the rest of it."""
        answer, draft, num_right = feed.answer, feed.draft.token_ids, 0
        while answer.finish_reason is None and num_right < len(draft) and answer.ids[-1] == draft[num_right]:
            num_right += 1
            self._take(answer, logits[row + num_right], best[row + num_right], now_s)
        answer.learn(feed.draft, num_right)
        sequence, end = answer.held, answer.num_recorded + num_right
        sequence.truncate(end)
        sequence.record(draft[:num_right])
        answer.num_recorded = end

    def _go_on(self, answer: Answer) -> None:
        """What follows a token: the end, or the next one.

        For that one the yardstick forgets everything, and so does a context that is full and to be computed anew.
        """
        if answer.finish_reason is not None:
            answer.held.drop_unseen()  # what it held is told as it is between two steps
            self._finish(answer)
        elif not answer.slide() and answer.request.is_cached:
            answer.held.drop_unseen()
        else:
            answer.held.release()
            answer.num_recorded = 0

    def end(self, answers: Iterable[Answer], reason: FinishReason, error: KvistError | None = None) -> None:
        """End those answers that haven't ended, and those that were to fork from them."""
        for answer in answers:
            for each in (answer, *answer.followers):
                if each.finish_reason is None:
                    each.end(reason, error)
                    self._finish(each)

    def _finish(self, answer: Answer) -> None:
        """An answer has ended: its blocks go back."""
        self._scheduler.remove(answer)
        self._counters.note_end(answer)
        ticket = self.tickets.get(answer.request_id)
        if ticket is not None and ticket.is_finished:
            del self.tickets[ticket.id]
