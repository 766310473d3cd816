"""Many requests, one model: each step computes a row for everyone who decodes and as much of the prompts as fits.

``add`` takes a request, ``step`` does one pass and returns the tokens that came of it, ``cancel`` ends a request. Any
thread may call any of them; one steps at a time. What a request gets doesn't depend on who else is there.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as TokenIds
from dataclasses import replace
from time import perf_counter

import numpy as np
import numpy.typing as npt

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.cache.swap import SwapSpace
from kvist.checkpoint.tokenizer import Tokenizer
from kvist.engine.answer import Answer, Terms
from kvist.engine.batch import Batch, lower
from kvist.engine.beam import Beam, beam_search, search_of
from kvist.engine.checks import Uncut, check_choices, check_fits, check_prompt
from kvist.engine.cost import CostModel, first_guess
from kvist.engine.guest import Guest, Guests
from kvist.engine.limit import Fitted, Limit, OnLimit
from kvist.engine.planning import DEFAULT_SETTINGS, Settings
from kvist.engine.policy import policy_of
from kvist.engine.request import Request, SamplingParams
from kvist.engine.result import KvUsage, TokenEvent, TokenLogprobs
from kvist.engine.sampling import token_logprobs
from kvist.engine.scheduler import Scheduler
from kvist.engine.settling import Settling
from kvist.engine.stats import Counters, Stats
from kvist.engine.ticket import Ticket
from kvist.engine.turns import Turns
from kvist.engine.unbroken import Unbroken
from kvist.engine.values import prompt_ids, truth_value, whole_number, wrong
from kvist.errors import NumericsError, RequestError
from kvist.model.decoder import Decoder
from kvist.spec.cache import CacheSpec, bytes_per_token, check_retention

Logits = npt.NDArray[np.float32]


def _nobody(batch: Batch, decoder: Decoder) -> None:
    """Nobody watches."""


class Engine:
    """``context_length`` is the most tokens of a request; ``end_token_ids`` end it. ``clock`` gives seconds.

    ``uncut`` is the context that was wanted, where memory has cut it short.
    With ``swap`` a request that has to give its blocks up leaves a copy there; without, it is computed again.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KvCache,
        spec: CacheSpec,
        *,
        context_length: int,
        tokenizer: Tokenizer | None = None,
        end_token_ids: frozenset[int] = frozenset(),
        policy: str = "fcfs",
        settings: Settings = DEFAULT_SETTINGS,
        swap: SwapSpace | None = None,
        prefix_reuse: bool = True,
        on_limit: OnLimit = "stop",
        has_learned_positions: bool = False,
        uncut: Uncut | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.context_length = context_length
        self.on_limit = on_limit
        self.tokenizer = tokenizer
        self.end_token_ids = end_token_ids
        self.clock = clock
        self.on_pass: Callable[[Batch, Decoder], object] = _nobody
        """Hears of each pass that was computed, before what comes of it: for those who watch."""
        self._decoder, self._cache, self._spec = decoder, cache, spec
        self._prefix_reuse = prefix_reuse
        self._uncut = uncut
        self._bytes_per_token = bytes_per_token(decoder.spec, spec)
        self._terms = Terms(
            self.vocab_size,
            context_length,
            tokenizer,
            end_token_ids,
            self.usage,
            on_limit,
            has_learned_positions,
            spec.retention,
        )
        self._cost = CostModel(first_guess(decoder.weights_bytes, self._bytes_per_token, 4 * self.vocab_size))
        self._scheduler = Scheduler(
            cache, self._cost, policy_of(policy), settings, step_tokens=self.step_tokens, swap=swap
        )
        self._counters = Counters()
        self._settling = Settling(self._scheduler, self._counters)
        self._guests = Guests(decoder, cache, self._scheduler)
        self._turns = Turns(self.step)
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._num_requests = 0
        self._added: deque[Ticket] = deque()
        self._cancelled: deque[int] = deque()

    @property
    def vocab_size(self) -> int:
        return self._decoder.spec.vocab_size

    @property
    def step_tokens(self) -> int:
        return self._decoder.step_tokens

    @property
    def has_work(self) -> bool:
        """Whether some request hasn't ended."""
        return bool(self._settling.tickets or self._added or self._cancelled)

    # ---- requests --------------------------------------------------------------------------------------------------

    def add(self, request: Request, *, is_heard: bool = False) -> Ticket:
        """Take a request; it waits for its turn from now on. ``is_heard`` keeps its events in ``ticket.events``, too.

        Raises:
            RequestError: it can't be served as it is.
            CapacityError: it can never fit, even alone; names the bytes that it needs, and those there are.
        """
        if not isinstance(request, Request):
            raise wrong("what is added", "a Request", request)
        check_prompt(request.token_ids, self.vocab_size)
        if self._uncut is not None:
            self._uncut.check(len(request.token_ids), self.context_length, request.on_limit or self.on_limit)
        fitted = self._terms.fit(request)
        request.params.check_token_ids(self.vocab_size)
        if request.params.stop_strings and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and this model has none; use stop token ids")
        check_choices(request, self.step_tokens)
        check_retention(self._cache.groups, fitted.retention)
        check_fits(request, fitted, self._cache)
        with self._counting:
            self._num_requests += 1
            number = self._num_requests
        ticket = Ticket(number, request, self._new_answers(request, fitted, number), is_heard=is_heard)
        self._added.append(ticket)
        return ticket

    def _new_answers(self, request: Request, fitted: Fitted, request_id: int) -> tuple[Answer, ...]:
        if not self._prefix_reuse:
            request = replace(request, is_shared=False)
        params, added_s = request.params, self.clock()
        seed = params.seed if params.seed is not None else 0 if params.is_greedy else secrets.randbits(32)
        return tuple(
            Answer(request, self._terms, fitted, choice=choice, seed=seed, request_id=request_id, added_s=added_s)
            for choice in range(request.choice, request.choice + params.num_choices)
        )

    def cancel(self, request_id: int) -> None:
        """End a request, if it hasn't ended, and give its blocks back: at once, or when the pass that runs is over.

        Raises RequestError for what is no number.
        """
        self._cancelled.append(whole_number("request_id", request_id))
        self._take_cancelled()

    def _take_cancelled(self) -> None:
        """Whoever holds the lock looks here after it let go, so that no request is overlooked, and nobody waits.

        The lock isn't reentrant: a collected ``Generation`` cancels in the midst of whatever this thread does.
        """
        while self._cancelled and self._lock.acquire(blocking=False):
            try:
                with Unbroken():
                    self._take_in()
            finally:
                self._lock.release()

    def _take_in(self) -> None:
        """Let new requests wait, and end those that were cancelled."""
        while self._added:
            self._settling.begin(self._added.popleft())
        while self._cancelled:
            ticket = self._settling.tickets.get(self._cancelled.popleft())
            if ticket is not None:
                self._settling.end(ticket.answers, "cancelled")

    def reset(self) -> None:
        """Cancel everything and forget what is cached."""
        with self._lock, Unbroken():
            self._take_in()
            for ticket in list(self._settling.tickets.values()):
                self._settling.end(ticket.answers, "cancelled")
            self._cache.clear()

    # ---- steps -----------------------------------------------------------------------------------------------------

    def step(self) -> list[TokenEvent]:
        """Compute one pass and return the tokens that came of it; none where there is nothing to do.

        A request that the model can't compute (NaN) ends with an error, and no other does. Ctrl-C raises
        KeyboardInterrupt at the end of the step, a pass of bounded time: everything is as it is after it.
        """
        try:
            with self._lock, Unbroken():
                return self._step()
        finally:
            self._take_cancelled()

    def _step(self) -> list[TokenEvent]:
        started_s = self.clock()
        self._take_in()
        self._scheduler.undo_unsettled()
        self._guests.give_way()
        plan = self._scheduler.plan_step()
        self._scheduler.commit(plan, started_s)
        if not plan.feeds:
            return []
        batch = lower(plan)
        try:
            logits = self._decoder.forward(batch.parts, is_copied=False)
        except NumericsError:
            return self._step_alone(batch)
        self.on_pass(batch, self._decoder)
        events = self._settling.settle(batch, logits, self._decoder.best_ids(), self.clock())
        self._cost.observe(plan.load, self.clock() - started_s)
        return events

    def _step_alone(self, batch: Batch) -> list[TokenEvent]:
        """Compute each part by itself, and end the answers of those that fail."""
        events: list[TokenEvent] = []
        for alone in batch.alone():
            events += self._compute_one(alone)
        return events

    def _compute_one(self, alone: Batch) -> list[TokenEvent]:
        try:
            logits = self._decoder.forward(alone.parts, is_copied=False)
        except NumericsError as error:
            self._settling.end((alone.feeds[0].answer,), "error", error)
            return []
        return self._settling.settle(alone, logits, self._decoder.best_ids(), self.clock())

    def wait(self, is_over: Callable[[], bool], before_step: Callable[[], object] = bool) -> None:
        """Step the engine, or wait while another thread does, until ``is_over``; ``before_step`` is called between."""
        self._turns.wait(is_over, before_step)

    # ---- what is there ---------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Return counts, times and gauges as they are between two steps."""
        with self._lock:
            return self._counters.snapshot(self._cache, self._scheduler)

    def usage(self, sequence: Sequence | None) -> KvUsage:
        """Return what ``sequence`` (None: one not begun yet) takes of the cache now."""
        return KvUsage(
            k=self._spec.k_codec,
            v=self._spec.v_codec,
            bytes_per_token=self._bytes_per_token,
            logical_bytes=sequence.logical_bytes if sequence else 0,
            allocated_bytes=sequence.allocated_bytes if sequence else 0,
            pool_bytes=self._cache.pool_bytes,
        )

    # ---- beside the requests ---------------------------------------------------------------------------------------

    def logits(self, token_ids: TokenIds[int], *, is_cached: bool = True, chunk: int | None = None) -> Logits:
        """Return the logits after each of ``token_ids`` [T, V]; requests under way wait meanwhile.

        ``chunk`` is the most rows that enter the model together. Uncached, each position's prefix is computed anew.
        """
        token_ids = prompt_ids("token_ids", token_ids)
        check_prompt(token_ids, self.vocab_size)
        Limit(self.context_length).prompt(token_ids, 1)
        is_cached = truth_value("cache", is_cached)
        step = self.step_tokens
        if chunk is not None:
            step = min(step, whole_number("chunk", chunk, "at least 1 token, or None", least=1))
        logits = np.empty((len(token_ids), self.vocab_size), np.float32)
        with self._lock:
            if is_cached:
                self._guests.fill(logits, token_ids, step)
            else:
                for end in range(1, len(token_ids) + 1):
                    self._guests.fill(logits[end - 1 : end], token_ids[:end], step)
        return logits

    def beam_search(
        self, token_ids: TokenIds[int], *, width: int, max_tokens: int, length_penalty: float = 1.0, salt: str = ""
    ) -> list[Beam]:
        """Return up to ``width`` of the likeliest continuations of at most ``max_tokens``, the best first.

        Between its steps those of requests go on, and take its blocks where they need them.
        """
        width, max_tokens, length_penalty = search_of(width, max_tokens, length_penalty, self.step_tokens)
        token_ids = prompt_ids("token_ids", token_ids)
        check_prompt(token_ids, self.vocab_size)
        request = Request(token_ids, SamplingParams(max_tokens=max_tokens), salt=salt, on_limit="stop")
        check_fits(request, self._terms.fit(request), self._cache)
        first = Guest(token_ids, salt=salt, is_shared=self._prefix_reuse)
        guests = [first]

        def look(num_top: int) -> list[TokenLogprobs]:
            with self._lock:
                return [token_logprobs(row, 0, num_top) for row in self._guests.last_rows(guests)]

        with self._guests.staying(guests, self._lock):
            return beam_search(
                look,
                guests,
                width=width,
                max_tokens=min(max_tokens, self.context_length - len(token_ids) + 1),
                length_penalty=length_penalty,
                ends=self.end_token_ids,
            )
