"""One answer under way: the loop from logits to token to event, until something ends it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Generator, Iterator
from collections.abc import Sequence as TokenIds
from time import perf_counter

from kvist.cache.sequence import Sequence
from kvist.engine.engine import Engine, Logits, pieces
from kvist.engine.request import Request
from kvist.engine.result import FinishReason, Result, TokenEvent, TokenLogprobs
from kvist.engine.sampling import History, choose_token, token_logprobs
from kvist.engine.text import ShownText
from kvist.engine.transcript import Transcript
from kvist.errors import RequestError


def _never() -> bool:
    return False


class Generation:
    """An answer: iterate over it for its events, once; then (or after stopping early) read ``result``.

    With a ``transcript`` only the tokens it doesn't hold yet enter the model, and it holds prompt and answer after.
    ``is_cancelled`` is asked before each step of the model; the answer then ends with what there is.

    Raises RequestError at once where the request can't be served.
    """

    def __init__(
        self,
        engine: Engine,
        request: Request,
        *,
        transcript: Transcript | None = None,
        is_cancelled: Callable[[], bool] = _never,
    ) -> None:
        engine.check_prompt(request.token_ids)
        request.params.check_token_ids(engine.vocab_size)
        if request.params.stop_strings and engine.tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and this model has none; use stop token ids")
        self._engine = engine
        self._request = request
        self._transcript = transcript
        self._is_cancelled = is_cancelled
        self._text = ShownText(engine.tokenizer, request.params.stop_strings)
        self._history = History(engine.vocab_size, request.token_ids)
        self._seed = _seed(request)
        self._digest = hashlib.sha256()
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._times: list[float] = []
        self._num_cached = self._num_forward = 0
        self._reason: FinishReason = "cancelled"
        self._sequence: Sequence | None = None  # while it holds blocks
        self._usage = engine.usage(None)
        self._events = self._run()

    def __iter__(self) -> Iterator[TokenEvent]:
        return self._events

    def close(self) -> None:
        """End the answer here; its blocks are given back."""
        self._events.close()

    @property
    def result(self) -> Result:
        """The answer so far; whole once the iteration has ended."""
        params = self._request.params
        started, *times = self._times or [0.0]
        return Result(
            text=self._text.text,
            token_ids=tuple(self._token_ids),
            prompt_tokens=len(self._request.token_ids),
            cached_tokens=self._num_cached,
            forward_tokens=self._num_forward,
            finish_reason=self._reason,
            ttft_s=times[0] - started if times else None,
            tpot_s=(times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None,
            seed=self._seed,
            kv=self._engine.usage(self._sequence) if self._sequence else self._usage,
            logprobs=tuple(self._logprobs) if params.logprobs is not None else None,
            logits_sha256=self._digest.hexdigest() if self._request.has_digest else None,
        )

    def _run(self) -> Generator[TokenEvent, None, None]:
        self._times.append(perf_counter())
        steps = self._cached_steps() if self._request.is_cached else self._uncached_steps()
        try:
            for logits in steps:
                event = self._take(logits)
                yield event
                if event.finish_reason:
                    return
        finally:
            steps.close()

    def _take(self, logits: Logits) -> TokenEvent:
        """Choose a token from ``logits`` [V] and note everything about it."""
        params, index = self._request.params, len(self._token_ids)
        position = len(self._request.token_ids) + index
        if self._request.has_digest:
            self._digest.update(logits.astype("<f4", copy=False).tobytes())
        token_id = choose_token(
            logits, params, self._history, seed=self._seed, choice=self._request.choice, position=position
        )
        logprobs = None
        if params.logprobs is not None:
            logprobs = token_logprobs(logits, token_id, params.logprobs)
            self._logprobs.append(logprobs)
        self._history.add(token_id)
        self._token_ids.append(token_id)
        self._times.append(perf_counter())
        is_end = self._is_end(token_id)
        text = "" if is_end else self._text.push(token_id)
        reason = self._finish_reason(is_end)
        if reason is not None:
            self._reason = reason
            text += self._text.finish()
        return TokenEvent(index, token_id, text, logprobs, reason)

    def _is_end(self, token_id: int) -> bool:
        params = self._request.params
        is_model_end = token_id in self._engine.end_token_ids and not params.ignore_eos
        return is_model_end or token_id in params.stop_token_ids

    def _finish_reason(self, is_end: bool) -> FinishReason | None:
        if is_end or self._text.is_stopped:
            return "stop"
        if len(self._token_ids) == self._request.params.max_tokens:
            return "length"
        num_in_cache = len(self._request.token_ids) + len(self._token_ids) - 1
        return "context" if num_in_cache >= self._engine.context_length else None

    def _cached_steps(self) -> Generator[Logits, None, None]:
        """Yield the logits [V] for each next token; each row enters the model once."""
        transcript = self._transcript or self._engine.new_transcript()
        self._sequence = transcript.sequence
        try:
            self._num_cached = transcript.rewind_to(self._request.token_ids)
            new_ids: TokenIds[int] = self._request.token_ids[self._num_cached :]
            while True:
                logits = self._feed(transcript.sequence, new_ids, transcript.token_ids)
                if logits is None:
                    return
                yield logits
                new_ids = self._token_ids[-1:]
        finally:
            self._note_usage()
            if transcript is not self._transcript:
                transcript.release()

    def _uncached_steps(self) -> Generator[Logits, None, None]:
        """The same, computing prompt and answer anew for each token, in a sequence that no later step reads."""
        while True:
            scratch = self._engine.new_transcript()
            self._sequence = scratch.sequence
            try:
                logits = self._feed(scratch.sequence, [*self._request.token_ids, *self._token_ids], scratch.token_ids)
                if logits is None:
                    return
                yield logits
            finally:
                self._note_usage()
                scratch.release()

    def _note_usage(self) -> None:
        """Keep what the sequence takes, which is about to be given back."""
        self._usage = self._engine.usage(self._sequence)
        self._sequence = None

    def _feed(self, sequence: Sequence, token_ids: TokenIds[int], held: list[int]) -> Logits | None:
        """Append ``token_ids``, noting them in ``held``; return the last row's logits [V], None if cancelled."""
        row = None
        for start, piece in pieces(token_ids, self._engine.step_tokens):
            if self._is_cancelled():
                return None
            is_last = start + len(piece) == len(token_ids)
            rows, num_rows = self._engine.forward(sequence, piece, "last" if is_last else "none")
            held.extend(piece)
            self._num_forward += num_rows
            row = rows[-1] if is_last else None
        return row


def _seed(request: Request) -> int:
    if request.params.seed is not None:
        return request.params.seed
    return 0 if request.params.is_greedy else secrets.randbits(32)
