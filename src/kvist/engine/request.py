"""What a caller may ask for: sampling settings, checked once, and a request made of token ids."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from numbers import Integral
from typing import Any

from kvist.engine.limit import OnLimit, check_on_limit
from kvist.errors import RequestError
from kvist.spec.retention import RetentionSpec

MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 100
MAX_CHOICES = 128
MAX_DRAFT = 32


def _check(is_allowed: bool, name: str, got: object, allowed: str) -> None:
    if not is_allowed:
        raise RequestError(f"{name} must be {allowed}, got {got!r}")


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to end; by default the likeliest token, 256 times.

    The steps, in this order: ``logit_bias`` is added; ``repetition_penalty`` divides positive and multiplies negative
    logits of tokens in the prompt or the answer; ``frequency_penalty`` times its count and ``presence_penalty`` are
    subtracted from tokens of the answer; ``temperature`` divides (0: take the largest, ties to the lower id);
    ``top_k`` (0: all), ``min_p`` (relative to the likeliest) and ``top_p`` keep the likeliest; one is drawn.

    ``seed`` None draws a new one, which the result names. ``stop`` strings end the answer before themselves.
    ``logprobs`` N asks for the N likeliest tokens at each position besides the chosen one, under the model's own
    distribution (before any of the steps above).

    ``n`` answers are drawn to one prompt, which is computed once; with ``best_of`` that many are drawn and the ``n`` of
    the highest mean log-probability are given. ``speculation`` N drafts up to N tokens at once from text that repeats
    what came before (0: none); the answer is the same to the bit, only sooner.

    Raises RequestError for a value out of its range.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: str | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False
    n: int = 1
    best_of: int | None = None
    speculation: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            _check(isfinite(getattr(self, name)), name, getattr(self, name), "a finite number")
        _check(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _check(self.temperature >= 0, "temperature", self.temperature, "0 (greedy) or more")
        _check(self.top_k >= 0, "top_k", self.top_k, "0 (all tokens) or more")
        _check(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _check(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 to 1")
        _check(
            self.repetition_penalty > 0, "repetition_penalty", self.repetition_penalty, "above 0 (1 changes nothing)"
        )
        _check(self.seed is None or 0 <= self.seed <= MAX_SEED, "seed", self.seed, "from 0 to 2**64 - 1")
        _check(all(isfinite(b) for b in self.logit_bias.values()), "logit_bias", self.logit_bias, "finite numbers")
        _check("" not in self.stop, "stop", "", "a text of at least one character")
        is_countable = self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS
        _check(is_countable, "logprobs", self.logprobs, f"from 0 to {MAX_LOGPROBS}")
        _check(1 <= self.n <= MAX_CHOICES, "n", self.n, f"from 1 to {MAX_CHOICES}")
        is_enough = self.best_of is None or self.n <= self.best_of <= MAX_CHOICES
        _check(is_enough, "best_of", self.best_of, f"from n ({self.n}) to {MAX_CHOICES}")
        _check(0 <= self.speculation <= MAX_DRAFT, "speculation", self.speculation, f"from 0 (none) to {MAX_DRAFT}")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple, however it was given."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def num_choices(self) -> int:
        """Answers that are drawn, the ones given or more."""
        return self.n if self.best_of is None else self.best_of

    @property
    def has_penalty(self) -> bool:
        """Whether what a request has seen changes its logits."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def is_plain(self) -> bool:
        """Whether the likeliest token of the model's own logits is taken."""
        return self.is_greedy and not self.has_penalty and not self.logit_bias

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise RequestError unless the token ids named here belong to a vocabulary of ``vocab_size``."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token_id in ids:
                _check(0 <= token_id < vocab_size, name, token_id, f"token ids from 0 to {vocab_size - 1}")


@dataclass(frozen=True)
class Request:
    """One prompt in token ids and how to go on from it.

    ``is_cached`` False recomputes the whole prefix for every token (the yardstick). ``has_digest`` asks for a SHA-256
    over the logits that were sampled from. ``choice`` numbers the answers to one prompt; it is part of the random
    numbers' key, and of several choices (``params.n``) the first has this number.

    ``priority``: the higher, the sooner, under the policy of that name. Blocks are shared between requests of the same
    ``salt``, with nobody where ``is_shared`` is False. ``explain`` shows the texts where a cached prompt differs.

    ``retention`` says which tokens are kept, ``on_limit`` what happens at the context's limit (None: as the engine has
    it). The first ``num_first`` tokens are the prompt's system part, which stays when others are dropped.

    Raises RequestError for a value that is no such thing as its field takes.
    """

    token_ids: tuple[int, ...]
    params: SamplingParams = SamplingParams()
    is_cached: bool = True
    has_digest: bool = False
    choice: int = 0
    priority: int = 0
    salt: str = ""
    is_shared: bool = True
    explain: bool = False
    retention: RetentionSpec | None = None
    on_limit: OnLimit | None = None
    num_first: int = 0

    def __post_init__(self) -> None:
        for name in ("is_cached", "has_digest", "is_shared", "explain"):
            _check(_is_flag(getattr(self, name)), name, getattr(self, name), "True or False")
        _check(_is_whole(self.priority), "priority", self.priority, "a whole number")
        _check(isinstance(self.salt, str), "salt", self.salt, "a text")
        is_kept = self.retention is None or isinstance(self.retention, RetentionSpec)
        _check(is_kept, "retention", self.retention, "a RetentionSpec or None")
        is_count = _is_whole(self.num_first) and self.num_first >= 0
        _check(is_count, "num_first", self.num_first, "a number of tokens, 0 or more")
        if self.on_limit is not None:
            check_on_limit(self.on_limit)


def _is_whole(value: Any) -> bool:
    """Whether ``value`` is a whole number of any kind (NumPy's, say)."""
    return isinstance(value, Integral)


def _is_flag(value: Any) -> bool:
    """Whether ``value`` is True or False, whichever kind (NumPy's, say) it came as."""
    return isinstance(value, Hashable) and value in (True, False)
