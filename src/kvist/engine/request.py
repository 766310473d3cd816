"""What a caller may ask for: sampling settings, checked once, and a request made of token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ulp

from kvist.engine.limit import OnLimit, check_on_limit
from kvist.engine.values import (
    MAX_INT64,
    finite_number,
    plain_text,
    prompt_ids,
    truth_value,
    whole_number,
    whole_numbers,
    wrong,
)
from kvist.spec.retention import RetentionSpec

MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 100
MAX_CHOICES = 128
MAX_DRAFT = 32

MAX_CHANGE = 1e30
"""The most that a bias or a penalty may add to a logit; what comes of all of them together is still a float32."""
MAX_FACTOR = 1e6
"""The most that a repetition penalty may divide or multiply a logit by."""


def _set(checked: object, **values: object) -> None:
    """Give a frozen object's fields their values as they were checked."""
    for name, value in values.items():
        object.__setattr__(checked, name, value)


def check_max_tokens(value: object) -> int:
    """Return the most tokens of an answer as an int; raises RequestError for what isn't that."""
    max_tokens = whole_number("max_tokens", value, "at least 1", least=1)
    return whole_number("max_tokens", max_tokens, "at most 2**63 - 1", most=MAX_INT64)


def _optional(name: str, value: object, rule: str, least: int, most: int) -> int | None:
    return None if value is None else whole_number(name, value, f"{rule}, or None", least=least, most=most)


def _change(name: str, value: object) -> float:
    """Return what is added to a logit."""
    return finite_number(name, value, f"from {-MAX_CHANGE:g} to {MAX_CHANGE:g}", least=-MAX_CHANGE, most=MAX_CHANGE)


def _factor(name: str, value: object) -> float:
    """Return what a logit is divided by."""
    rule = f"from {1 / MAX_FACTOR:g} to {MAX_FACTOR:g} (1 changes nothing)"
    return finite_number(name, value, rule, least=1 / MAX_FACTOR, most=MAX_FACTOR)


def _biases(found: object) -> dict[int, float]:
    if not isinstance(found, Mapping):
        raise wrong("logit_bias", "numbers by token id, such as {42: -1.5}", found)
    return {whole_number("a token id of logit_bias", key): _change("logit_bias", bias) for key, bias in found.items()}


def _texts(found: object) -> tuple[str, ...]:
    """Return what ``stop`` names."""
    strings = (found,) if isinstance(found, str) else tuple(found) if isinstance(found, Iterable) else (None,)
    if not all(isinstance(string, str) for string in strings):
        raise wrong("stop", "a text, or several", found)
    if "" in strings:
        raise wrong("stop", "a text of at least one character", "")
    return strings


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

    Numbers may be NumPy's. Raises RequestError for a value of another kind, or out of its range.
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
        n = whole_number("n", self.n, f"from 1 to {MAX_CHOICES}", least=1, most=MAX_CHOICES)
        _set(
            self,
            max_tokens=check_max_tokens(self.max_tokens),
            temperature=finite_number("temperature", self.temperature, "0 (greedy) or more", least=0),
            top_k=whole_number("top_k", self.top_k, "0 (all tokens) or more", least=0),
            top_p=finite_number("top_p", self.top_p, "above 0 and at most 1", least=ulp(0.0), most=1),
            min_p=finite_number("min_p", self.min_p, "from 0 to 1", least=0, most=1),
            repetition_penalty=_factor("repetition_penalty", self.repetition_penalty),
            presence_penalty=_change("presence_penalty", self.presence_penalty),
            frequency_penalty=_change("frequency_penalty", self.frequency_penalty),
            seed=_optional("seed", self.seed, "from 0 to 2**64 - 1", 0, MAX_SEED),
            logit_bias=_biases(self.logit_bias),
            stop=_texts(self.stop),
            stop_token_ids=whole_numbers("stop_token_ids", self.stop_token_ids, "token ids (whole numbers)"),
            logprobs=_optional("logprobs", self.logprobs, f"from 0 to {MAX_LOGPROBS}", 0, MAX_LOGPROBS),
            ignore_eos=truth_value("ignore_eos", self.ignore_eos),
            n=n,
            best_of=_optional("best_of", self.best_of, f"from n ({n}) to {MAX_CHOICES}", n, MAX_CHOICES),
            speculation=whole_number(
                "speculation", self.speculation, f"from 0 (none) to {MAX_DRAFT}", least=0, most=MAX_DRAFT
            ),
        )

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
                if not 0 <= token_id < vocab_size:
                    raise wrong(name, f"token ids from 0 to {vocab_size - 1}", token_id)


@dataclass(frozen=True)
class Request:
    """One prompt in token ids (a list or an array of them, too) and how to go on from it.

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
        if not isinstance(self.params, SamplingParams):
            raise wrong("params", "a SamplingParams", self.params)
        if self.retention is not None and not isinstance(self.retention, RetentionSpec):
            raise wrong("retention", "a RetentionSpec or None", self.retention)
        if self.on_limit is not None:
            check_on_limit(self.on_limit)
        _set(
            self,
            token_ids=prompt_ids("token_ids", self.token_ids),
            is_cached=truth_value("is_cached", self.is_cached),
            has_digest=truth_value("has_digest", self.has_digest),
            choice=whole_number("choice", self.choice, "from 0 to 2**63 - 1", least=0, most=MAX_INT64),
            priority=whole_number(
                "priority", self.priority, "from -2**63 + 1 to 2**63 - 1", least=-MAX_INT64, most=MAX_INT64
            ),
            salt=plain_text("salt", self.salt),
            is_shared=truth_value("is_shared", self.is_shared),
            explain=truth_value("explain", self.explain),
            num_first=whole_number("num_first", self.num_first, "from 0 to 2**63 - 1 tokens", least=0, most=MAX_INT64),
        )
