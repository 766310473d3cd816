"""What happens at a context's limit. Pure: token counts and ids in, decisions out.

``stop``      the answer ends at the limit; a prompt that is longer by itself is an error
``refuse``    a request whose prompt and answer together might exceed it is an error at once
``truncate``  the oldest part of the prompt is dropped so that the answer fits
``slide``     the answer goes on: the oldest tokens are forgotten

A sliding model with rotary positions keeps its first tokens as sinks and a window, from the limit on; both together fit
the blocks of one context. A window that was asked for is made as small where it is larger. One with learned positions
has no embedding beyond them, so it computes the kept tail anew as a text of its own, a quarter of the context at a
time. Either way what a token sees is a function of its position, the context and the tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence as TokenIds
from dataclasses import dataclass, replace
from typing import Literal, get_args

from kvist.errors import RequestError
from kvist.spec.cache import BLOCK_TOKENS, num_blocks
from kvist.spec.retention import ALL, MAX_SINKS, RetentionSpec

OnLimit = Literal["stop", "truncate", "slide", "refuse"]
ON_LIMIT: tuple[OnLimit, ...] = get_args(OnLimit)

FIRST_TOKENS = 4
"""First tokens that are kept where a prompt has no system part: attention goes there when it has nowhere to go."""


def check_on_limit(on_limit: object) -> None:
    """Raise RequestError unless ``on_limit`` is known."""
    if not isinstance(on_limit, str) or on_limit not in ON_LIMIT:
        raise RequestError(f'unknown on_limit "{on_limit}"; known: {", ".join(ON_LIMIT)}')


@dataclass(frozen=True)
class Limit:
    """A context of ``num_tokens`` that a request meets with ``on_limit``.

    ``is_learned``: positions are learned. ``num_first`` tokens of the prompt are its system part, 0 where there is
    none.

    Raises:
        RequestError: ``on_limit`` isn't known.
    """

    num_tokens: int
    on_limit: OnLimit = "stop"
    is_learned: bool = False
    num_first: int = 0

    def __post_init__(self) -> None:
        check_on_limit(self.on_limit)

    @property
    def num_protected(self) -> int:
        """First tokens that stay when others are dropped: the system part, else a few, at most half the context."""
        return min(self.num_first or FIRST_TOKENS, self.num_tokens // 2)

    @property
    def is_endless(self) -> bool:
        """Whether the limit ends no answer."""
        return self.on_limit == "slide"

    @property
    def recomputes(self) -> bool:
        """Whether the kept tail is computed anew when the context is full."""
        return self.on_limit == "slide" and self.is_learned

    def prompt(self, token_ids: tuple[int, ...], max_tokens: int) -> tuple[tuple[int, ...], int]:
        """Return the prompt that is computed, and how many of its tokens were dropped.

        Raises:
            RequestError: the prompt doesn't fit, and nothing may be dropped.
        """
        length = len(token_ids)
        if self.on_limit == "refuse" and length + max_tokens > self.num_tokens:
            raise RequestError(
                f"{length} tokens of prompt and {max_tokens} of answer exceed the context of {self.num_tokens}; lower "
                "max_tokens, shorten the prompt, or take another on_limit: stop, truncate, slide"
            )
        if self.on_limit == "stop" and length > self.num_tokens:
            raise RequestError(
                f"the prompt has {length} tokens and the context holds {self.num_tokens}; shorten it, raise context "
                "(or kv_budget) as far as the model and the memory allow, or take on_limit truncate or slide"
            )
        most = max(self.num_tokens - max_tokens, self.num_tokens // 2, 1)
        if self.on_limit != "truncate" or length <= most:
            return token_ids, 0
        if self.num_first >= most:
            raise RequestError(
                f"the system message has {self.num_first} tokens and a prompt may have {most} here; shorten it, or "
                "lower max_tokens"
            )
        first = min(self.num_protected, most // 2)
        return token_ids[:first] + token_ids[length - most + first :], length - most

    def retention(self, asked: RetentionSpec) -> RetentionSpec:
        """Return what is kept of a request that asks for ``asked``.

        What slides fits the blocks of one context: a window that was asked for and doesn't is as large as does, from
        where it would be full on, or from the limit on.

        Raises:
            RequestError: it slides, and keeps tokens by the attention they get, or the context is too short for that.
        """
        if self.on_limit == "slide" and asked.is_scored:
            raise RequestError(
                f"on_limit slide goes with retention all, window:N or sinks:S+N, got {asked}; take one of these"
            )
        if self.on_limit != "slide" or self.is_learned:
            return asked
        sinks = asked.num_sinks if asked.is_bounded else min(self.num_protected, MAX_SINKS)
        window = (num_blocks(self.num_tokens) - num_blocks(sinks) - 1) * BLOCK_TOKENS  # it ends anywhere in a block
        if asked.is_bounded and asked.num_kept <= window and asked.starts_at <= self.num_tokens:
            return asked
        if window < BLOCK_TOKENS:
            kept = f" with retention {asked}" if asked.is_bounded else ""
            too_few = (num_blocks(sinks) + 1) * BLOCK_TOKENS
            raise RequestError(
                f"on_limit slide{kept} needs a context of more than {too_few} tokens, got {self.num_tokens}; raise "
                "context, or take stop or truncate"
            )
        if not asked.is_bounded:
            return RetentionSpec("sinks", window, sinks, starts_at=self.num_tokens)
        starts_at = min(self.num_tokens, max(asked.starts_at, asked.num_kept + sinks))
        return replace(asked, num_kept=min(asked.num_kept, window), starts_at=starts_at)

    def num_dropped(self, num_tokens: int) -> int:
        """Tokens behind the protected ones that a text of ``num_tokens`` has lost, where the tail is computed anew.

        A quarter of the context at a time: each token is computed four times at most.
        """
        if not self.recomputes or num_tokens <= self.num_tokens:
            return 0
        quarter = max(1, self.num_tokens // 4)
        return -(-(num_tokens - self.num_tokens) // quarter) * quarter

    def held(self, token_ids: TokenIds[int], num_dropped: int) -> list[int]:
        """Return what is left of a text that lost ``num_dropped`` tokens behind its protected ones."""
        first = self.num_protected
        return [*token_ids[:first], *token_ids[first + num_dropped :]]


@dataclass(frozen=True)
class Fitted:
    """A prompt as it meets a limit: what of it is computed, how much was dropped, and what will be kept."""

    token_ids: tuple[int, ...]
    limit: Limit
    num_dropped: int = 0
    retention: RetentionSpec = ALL

    def most_held(self, max_tokens: int) -> int:
        """The most tokens that enter the cache one after the other; the last one chosen doesn't."""
        most = len(self.token_ids) + max_tokens - 1
        return most if self.limit.is_endless and not self.limit.recomputes else min(most, self.limit.num_tokens)


def fit(token_ids: tuple[int, ...], max_tokens: int, limit: Limit, asked: RetentionSpec) -> Fitted:
    """Return what becomes of a prompt; raises RequestError where it can't be served."""
    kept, num_dropped = limit.prompt(token_ids, max_tokens)
    return Fitted(kept, limit, num_dropped, limit.retention(asked))
