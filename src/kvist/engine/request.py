"""What a caller may ask for: sampling settings, checked once, and a request made of token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from kvist.errors import RequestError

MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 100


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

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple, however it was given."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise RequestError unless the token ids named here belong to a vocabulary of ``vocab_size``."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token_id in ids:
                _check(0 <= token_id < vocab_size, name, token_id, f"token ids from 0 to {vocab_size - 1}")


@dataclass(frozen=True)
class Request:
    """One answer to compute: a prompt in token ids and how to go on from it.

    ``is_cached`` False recomputes the whole prefix for every token (the yardstick). ``has_digest`` asks for a SHA-256
    over the logits that were sampled from. ``choice`` numbers the answers to one prompt; it is part of the random
    numbers' key.
    """

    token_ids: tuple[int, ...]
    params: SamplingParams = SamplingParams()
    is_cached: bool = True
    has_digest: bool = False
    choice: int = 0
