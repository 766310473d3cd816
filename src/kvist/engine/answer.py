"""One answer under way: its tokens, their text, what ends it, and what is measured. Knows no scheduler and no pool.

Everything is told by two lengths: ``ids`` are all tokens known, prompt and answer; its sequence holds the first of
them; the rest has still to enter the model. One is left in a decode, many in a prefill, all after a preemption. Where
the oldest were lost at the context's limit, ``context`` are those that are left, else all of them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvist.cache.explain import Miss
from kvist.cache.sequence import Sequence
from kvist.cache.swap import Swapped
from kvist.checkpoint.tokenizer import Tokenizer
from kvist.engine.limit import Fitted, Limit, OnLimit, fit
from kvist.engine.request import Request
from kvist.engine.result import FinishReason, KvUsage, Result, TokenEvent, TokenLogprobs
from kvist.engine.sampling import History, check_finite, choose_token, token_logprobs
from kvist.engine.speculation import Draft, Drafter
from kvist.engine.text import ShownText
from kvist.errors import KvistError
from kvist.spec.retention import ALL, RetentionSpec

Row = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Terms:
    """What holds for every answer of an engine."""

    vocab_size: int
    context_length: int
    tokenizer: Tokenizer | None
    end_token_ids: frozenset[int]
    usage: Callable[[Sequence | None], KvUsage]
    on_limit: OnLimit = "stop"
    has_learned_positions: bool = False
    retention: RetentionSpec = ALL

    def fit(self, request: Request) -> Fitted:
        """Return what becomes of a request's prompt; raises RequestError where it can't be served."""
        on_limit = request.on_limit or self.on_limit
        limit = Limit(self.context_length, on_limit, self.has_learned_positions, request.num_first)
        return fit(request.token_ids, request.params.max_tokens, limit, request.retention or self.retention)


class Answer:
    """One choice of a request.

    ``sequence`` is None while it holds no blocks; of its tokens the first ``num_recorded`` are settled. ``swapped`` is
    where they wait, if they do. ``arrival`` and
    ``admission`` are numbers that the scheduler gives. ``followers`` are the other choices of its request, which fork
    from this one when its prompt is computed.
    """

    def __init__(
        self,
        request: Request,
        terms: Terms,
        fitted: Fitted,
        *,
        choice: int,
        seed: int,
        request_id: int,
        added_s: float,
    ):
        params = request.params
        self.limit, self.retention = fitted.limit, fitted.retention
        self.request, self.params, self.choice, self.seed = request, params, choice, seed
        self.request_id = request_id
        self.ids = list(fitted.token_ids)
        self.num_prompt = len(self.ids)
        self.num_dropped = fitted.num_dropped
        self.num_lost = 0
        self.context = self.ids
        self.slide()
        self.sequence: Sequence | None = None
        self.swapped: Swapped | None = None
        self.followers: tuple[Answer, ...] = ()
        self.arrival = self.admission = self.arrival_step = self.admission_step = self.num_recorded = 0
        self.finish_reason: FinishReason | None = None
        self.error: KvistError | None = None
        self.miss: Miss | None = None
        self.num_cached = self.num_forward = self.num_preemptions = self.num_drafted = self.num_accepted = 0
        self.added_s, self.last_s = added_s, added_s
        self.admitted_s: float | None = None
        self.first_s: float | None = None
        self.sum_logprob = 0.0
        self.drafter = Drafter(request.token_ids) if params.speculation else None
        self._terms = terms
        self._max_ids = self.num_prompt + params.max_tokens
        if not fitted.limit.is_endless:
            self._max_ids = min(self._max_ids, terms.context_length + 1)
        self._ends = params.stop_token_ids if params.ignore_eos else {*terms.end_token_ids, *params.stop_token_ids}
        self._text = ShownText(terms.tokenizer, params.stop_strings)
        self._history = History(terms.vocab_size, request.token_ids) if params.has_penalty else None
        self._digest = hashlib.sha256() if request.has_digest else None
        self._logprobs: list[TokenLogprobs] = []
        self._has_scores = params.best_of is not None and params.best_of > params.n
        self._usage: KvUsage | None = None
        self._num_unseen = 0

    @property
    def num_held(self) -> int:
        """Tokens whose keys and values are in the cache."""
        return self.sequence.num_tokens if self.sequence is not None else 0

    @property
    def is_shared(self) -> bool:
        """Whether it finds blocks of others and lets them find its own; the yardstick does neither.

        Nor does what keeps tokens by the attention they get: that begins with the first one.
        """
        return self.request.is_shared and self.request.is_cached and not self.retention.is_scored

    @property
    def held(self) -> Sequence:
        """The sequence of an answer that holds blocks."""
        assert self.sequence is not None, self.request_id
        return self.sequence

    @property
    def num_left(self) -> int:
        """Tokens that have to enter the model before the next one can be chosen."""
        return len(self.context) - self.num_held

    @property
    def is_decoding(self) -> bool:
        return len(self.ids) > self.num_prompt and self.num_left == 1

    @property
    def most_drafted(self) -> int:
        """Tokens that can be drafted and, were they all right, leave one more to choose.

        None where tokens are kept by the attention they get: wrong ones could not be taken back.
        """
        if self.retention.is_scored:
            return 0
        most = min(self.params.speculation, self._max_ids - len(self.ids) - 1, self.rows_to_stop(len(self.context)))
        return min(most, self.limit.num_tokens - len(self.context)) if self.limit.recomputes else most

    def rows_to_stop(self, num_held: int) -> int:
        """Rows that a pass may have after ``num_held`` tokens before something is decided about what is kept."""
        stop = self.retention.next_stop(num_held, self.num_prompt)
        return sys.maxsize if stop is None else stop - num_held

    def slide(self) -> bool:
        """Lose the oldest tokens where the context is full and the rest has to be computed anew; whether it did."""
        if not self.limit.recomputes or len(self.context) <= self.limit.num_tokens:
            return False
        self.num_lost = self.limit.num_dropped(len(self.ids))
        self.context = self.limit.held(self.ids, self.num_lost)
        return True

    @property
    def num_generated(self) -> int:
        return len(self.ids) - self.num_prompt

    @property
    def mean_logprob(self) -> float:
        return self.sum_logprob / max(1, self.num_generated)

    def take(self, logits: Row, best: int, now_s: float) -> TokenEvent:
        """Choose the next token from ``logits`` [V], of which ``best`` is the largest's place; return its event.

        Raises NumericsError, having changed nothing, where a logit isn't finite.
        """
        params, position = self.params, len(self.ids)
        if params.is_plain:
            check_finite(logits[best], position)
            token_id = best
        else:
            token_id = choose_token(
                logits, params, self._history, seed=self.seed, choice=self.choice, position=position
            )
        logprobs = self._note(logits, token_id)
        self.ids.append(token_id)
        if self.context is not self.ids:
            self.context.append(token_id)
        if self.drafter is not None:
            self.drafter.add(token_id)
        if self.first_s is None:
            self.first_s = now_s
        self.last_s = now_s
        is_end = token_id in self._ends
        text = "" if is_end else self._text.push(token_id)
        if is_end or self._text.is_stopped:
            self.finish_reason = "stop"
        elif len(self.ids) == self._max_ids:
            self.finish_reason = "length" if self.num_generated == params.max_tokens else "context"
        if self.finish_reason is not None:
            text += self._text.finish()
        index = position - self.num_prompt
        return TokenEvent(index, token_id, text, logprobs, self.finish_reason, self.request_id, self.choice)

    def end(self, reason: FinishReason, error: KvistError | None = None) -> None:
        """End here, unless it has ended."""
        if self.finish_reason is None:
            self.finish_reason, self.error = reason, error

    def learn(self, draft: Draft, num_right: int) -> None:
        """Note how much of a draft was right."""
        self.num_drafted += len(draft.token_ids)
        self.num_accepted += num_right
        if self.drafter is not None:
            self.drafter.learn(draft, num_right)

    def let_go(self) -> None:
        """Give the blocks back, and keep what they came to."""
        if self.sequence is not None:
            self._usage = self._terms.usage(self.sequence)
            self._num_unseen = self._count_unseen()
            self.sequence.release()
            self.sequence = None
            self.num_recorded = 0

    def _count_unseen(self) -> int:
        """Tokens of the sequence that its last query no longer saw, by the retention it has."""
        return self.retention.num_dropped(self.num_held, self.num_prompt)

    def result(self) -> Result:
        """The answer so far; whole once it has ended."""
        num_further = self.num_generated - 1
        usage = None if self.sequence is not None else self._usage
        return Result(
            text=self._text.text,
            token_ids=tuple(self.ids[self.num_prompt :]),
            prompt_tokens=self.num_prompt + self.num_dropped,
            cached_tokens=self.num_cached,
            forward_tokens=self.num_forward,
            finish_reason=self.finish_reason or "cancelled",
            ttft_s=None if self.first_s is None else self.first_s - self.added_s,
            tpot_s=(self.last_s - self.first_s) / num_further if self.first_s is not None and num_further else None,
            seed=self.seed,
            kv=usage or self._terms.usage(self.sequence),
            logprobs=tuple(self._logprobs) if self.params.logprobs is not None else None,
            logits_sha256=self._digest.hexdigest() if self._digest is not None else None,
            queue_s=None if self.admitted_s is None else self.admitted_s - self.added_s,
            num_preemptions=self.num_preemptions,
            drafted_tokens=self.num_drafted,
            accepted_tokens=self.num_accepted,
            dropped_tokens=self.num_dropped + self.num_lost + (self._count_unseen() or self._num_unseen),
            miss=self.miss,
            error=None if self.error is None else str(self.error),
        )

    def _note(self, logits: Row, token_id: int) -> TokenLogprobs | None:
        """Keep what was asked for besides the token."""
        if self._digest is not None:
            self._digest.update(logits.astype("<f4", copy=False).tobytes())
        if self._history is not None:
            self._history.add(token_id)
        if self.params.logprobs is None and not self._has_scores:
            return None
        found = token_logprobs(logits, token_id, self.params.logprobs or 0)
        self.sum_logprob += found.logprob
        if self.params.logprobs is None:
            return None
        self._logprobs.append(found)
        return found
