"""What comes back: an event for each token, and the result with its counts, times and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvist.cache.explain import Miss

FinishReason = Literal["stop", "length", "context", "cancelled", "error"]
"""stop: an end token or stop string; length: ``max_tokens``; context: no room for another token; error: see there."""


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural log-probabilities at one position: the chosen token's, and ``top`` as (token id, logprob), best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class TokenEvent:
    """One more token. ``text`` is what can be shown now: it may be empty while a character or a stop string is open.

    ``index`` counts from 0. ``finish_reason`` is set on the last event only. ``request_id`` is the engine's number for
    the request, ``choice`` says to which of its answers the token belongs.
    """

    index: int
    token_id: int
    text: str
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None
    request_id: int = 0
    choice: int = 0


@dataclass(frozen=True)
class KvUsage:
    """The cache's codecs and sizes in bytes, as the answer ended (``pool_bytes`` is what is reserved)."""

    k: str
    v: str
    bytes_per_token: int
    logical_bytes: int
    allocated_bytes: int
    pool_bytes: int


@dataclass(frozen=True)
class Result:
    """An answer.

    ``token_ids`` are all tokens chosen, an end token included; ``text`` leaves out end tokens and the stop string.
    ``forward_tokens`` counts rows that entered the model for this answer, ``cached_tokens`` the prompt's tokens that
    didn't have to. ``ttft_s`` is from the request to its first token, ``tpot_s`` the mean of the further ones (None
    where there are none). ``logits_sha256`` is over the float32 bytes of each row of logits sampled from.

    ``queue_s`` is from the request to when its first row could be computed. ``num_preemptions`` says how often its
    blocks were taken away in between. ``dropped_tokens`` of prompt and answer were forgotten at the end: cut off at the
    context's limit, or no longer seen because not all are kept. Of ``drafted_tokens`` guessed ahead ``accepted_tokens``
    were right. ``choices`` are all answers where several were asked for, this one the first of them. ``miss`` says why
    no more of the prompt was in the cache. ``error`` says what went wrong.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    forward_tokens: int
    finish_reason: FinishReason
    ttft_s: float | None
    tpot_s: float | None
    seed: int
    kv: KvUsage
    logprobs: tuple[TokenLogprobs, ...] | None = None
    logits_sha256: str | None = None
    queue_s: float | None = None
    num_preemptions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    dropped_tokens: int = 0
    choices: tuple[Result, ...] = ()
    miss: Miss | None = None
    error: str | None = None

    @property
    def generated_tokens(self) -> int:
        return len(self.token_ids)
