"""What a shared prefix saves: the time to the first token after a hit, and the reading of blocks that many share.

The first: a prompt whose first 2,000 tokens are cached against the same prompt when nothing is. The second: users who
decode behind one prefix against users with prefixes of their own. Both crowds' prefixes are in the cache before they
are asked, so that all begin to decode at once; a third crowd has hardly any prefix, which shows what is left when
nothing has to be attended to: weights, sampling, everything but the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvist.engine.engine import Engine
from kvist.engine.request import Request
from kvist.lab.crowd import Crowd, greedy, made_up_ids, new_salt
from kvist.lab.timing import Timing, quantile
from kvist.spec.cache import BLOCK_TOKENS

PREFIX_TOKENS = 2_000
NEW_TOKENS = 32
USERS = 32
DECODED_TOKENS = 32
REPEATS = 5
OWN_TOKENS = 8
"""Tokens behind a shared prefix that are each user's own: answers to the same prompt would be the same blocks, too."""


@dataclass(frozen=True)
class Decode:
    """A crowd that decodes: the median step, of all users at once. ``cached_tokens`` were found when it was asked."""

    users: int
    context: int
    step_s: float
    kv_bytes: int
    cached_tokens: int

    @property
    def tokens_per_s(self) -> float:
        return self.users / self.step_s

    def as_json(self) -> dict[str, object]:
        return {
            "users": self.users,
            "context": self.context,
            "step_s": self.step_s,
            "tokens_per_s": self.tokens_per_s,
            "kv_bytes_per_step": self.kv_bytes,
            "cached_tokens": self.cached_tokens,
        }


@dataclass(frozen=True)
class PrefixBench:
    """``cold`` and ``hit`` are times to the first token. ``short`` decodes with hardly any prefix."""

    prefix_tokens: int
    new_tokens: int
    cold: Timing
    hit: Timing
    hit_tokens: int
    shared: Decode
    distinct: Decode
    short: Decode

    @property
    def ttft_ratio(self) -> float:
        return self.cold.median_s / self.hit.median_s

    @property
    def decode_ratio(self) -> float:
        return self.shared.tokens_per_s / self.distinct.tokens_per_s

    def as_json(self) -> dict[str, object]:
        return {
            "prefix_tokens": self.prefix_tokens,
            "new_tokens": self.new_tokens,
            "cold_ttft_s": self.cold.median_s,
            "hit_ttft_s": self.hit.median_s,
            "hit_tokens": self.hit_tokens,
            "ttft_ratio": self.ttft_ratio,
            "cold_spread": self.cold.as_json(),
            "hit_spread": self.hit.as_json(),
            "shared": self.shared.as_json(),
            "distinct": self.distinct.as_json(),
            "short": self.short.as_json(),
            "decode_ratio": self.decode_ratio,
            "attention_s": {
                "shared": self.shared.step_s - self.short.step_s,
                "distinct": self.distinct.step_s - self.short.step_s,
            },
        }


def bench_prefix(
    engine: Engine,
    kv_token_bytes: int,
    *,
    prefix_tokens: int = PREFIX_TOKENS,
    users: int = USERS,
    repeats: int = REPEATS,
    on_phase: Callable[[str], object] = bool,
) -> PrefixBench:
    """Measure both; ``on_phase`` hears what begins. The pool has to hold all users with prefixes of their own."""
    on_phase("a prompt cold, and behind a cached prefix")
    _first_token(engine, prefix_tokens, new_salt())  # compiles
    cold, hit, hit_tokens = [], [], 0
    for _ in range(repeats):
        salt = new_salt()
        cold.append(_first_token(engine, prefix_tokens + NEW_TOKENS, new_salt())[0])
        _first_token(engine, prefix_tokens, salt)
        ttft_s, hit_tokens = _first_token(engine, prefix_tokens + NEW_TOKENS, salt)
        hit.append(ttft_s)
    decodes = []
    for name, length, is_shared in (
        ("hardly any prefix", BLOCK_TOKENS, False),
        ("one prefix", prefix_tokens, True),
        ("prefixes of their own", prefix_tokens, False),
    ):
        on_phase(f"{users} users with {name}")
        decodes.append(_decode(engine, users, length, kv_token_bytes, is_shared=is_shared))
    short, shared, distinct = decodes
    return PrefixBench(
        prefix_tokens, NEW_TOKENS, Timing(tuple(cold)), Timing(tuple(hit)), hit_tokens, shared, distinct, short
    )


def _first_token(engine: Engine, num_tokens: int, salt: str) -> tuple[float, int]:
    """Return the time to the first token, and how many of the prompt's tokens were cached."""
    crowd = Crowd(engine)
    record = crowd.ask(Request(made_up_ids(engine.vocab_size, num_tokens), greedy(1), salt=salt))
    crowd.finish()
    return record.ttft_s, record.ticket.result.cached_tokens


def _decode(engine: Engine, users: int, prefix_tokens: int, kv_token_bytes: int, *, is_shared: bool) -> Decode:
    """Put the prefixes into the cache, then let all users decode behind them."""
    salt = new_salt()
    prefixes = [made_up_ids(engine.vocab_size, prefix_tokens, 0 if is_shared else user) for user in range(users)]
    for prefix in prefixes[: 1 if is_shared else users]:
        crowd = Crowd(engine)
        crowd.ask(Request(prefix, greedy(1), salt=salt))
        crowd.finish()
    crowd = Crowd(engine)
    for user, prefix in enumerate(prefixes):
        own = made_up_ids(engine.vocab_size, OWN_TOKENS, users + user)
        crowd.ask(Request((*prefix, *own), greedy(DECODED_TOKENS), salt=salt))
    crowd.finish()
    whole = [step.end_s - step.start_s for step in crowd.steps if step.num_tokens == users]
    results = [record.ticket.result for record in crowd.records]
    assert len(whole) > DECODED_TOKENS // 2, (len(whole), "the users didn't decode together: the pool is too small")
    own_tokens = OWN_TOKENS + DECODED_TOKENS // 2
    read = prefix_tokens * (1 if is_shared else users) + users * own_tokens
    return Decode(
        users=users,
        context=prefix_tokens + own_tokens,
        step_s=quantile(whole, 0.5),
        kv_bytes=read * kv_token_bytes,
        cached_tokens=sum(result.cached_tokens for result in results),
    )
