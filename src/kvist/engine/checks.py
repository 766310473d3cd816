"""What is refused before anything is computed: a prompt that is no prompt, and a request that could never fit."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as TokenIds
from dataclasses import dataclass

from kvist.cache.kv_cache import KvCache
from kvist.engine.limit import Fitted, OnLimit
from kvist.engine.request import Request
from kvist.errors import CapacityError, RequestError
from kvist.units import format_bytes


def check_prompt(token_ids: TokenIds[int], vocab_size: int) -> None:
    """Raise RequestError unless ``token_ids`` are at least one, and in the vocabulary."""
    if not token_ids:
        raise RequestError("the prompt is empty: not one token; give some text")
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise RequestError(f"token id {token_id} isn't in the vocabulary; ids are 0 to {vocab_size - 1}")


def check_fits(request: Request, fitted: Fitted, cache: KvCache) -> None:
    """Raise CapacityError unless the cache holds ``request`` to its end when nobody else is there."""
    num_tokens = fitted.most_held(request.params.max_tokens)
    groups = [group.with_retention(fitted.retention) for group in cache.groups]
    needed = [group.peak_blocks(num_tokens, 1) for group in groups]
    if all(count <= pool.num_blocks for count, pool in zip(needed, cache.pools, strict=True)):
        return
    needed_bytes = sum(count * group.block_bytes for count, group in zip(needed, cache.groups, strict=True))
    raise CapacityError(
        f"{len(fitted.token_ids)} tokens of prompt and up to {request.params.max_tokens} generated ones need "
        f"{needed_bytes} bytes of cache ({format_bytes(needed_bytes)}), and it has {cache.pool_bytes} "
        f"({format_bytes(cache.pool_bytes)}); raise kv_budget, shorten the prompt, lower max_tokens, or keep the "
        "cache in a smaller codec"
    )


@dataclass(frozen=True)
class Uncut:
    """A context that memory cut short: ``num_tokens`` were wanted, and ``pool_bytes`` hold fewer.

    ``needed_bytes`` says what a sequence of so many tokens takes.
    """

    num_tokens: int
    pool_bytes: int
    needed_bytes: Callable[[int], int]

    def check(self, num_tokens: int, context_length: int, on_limit: OnLimit) -> None:
        """Raise CapacityError for a prompt that more memory would hold, where none of it may be dropped."""
        if not context_length < num_tokens <= self.num_tokens or on_limit in ("truncate", "slide"):
            return
        needed = self.needed_bytes(num_tokens)
        raise CapacityError(
            f"the prompt has {num_tokens} tokens and the context holds {context_length}: it needs {needed} bytes of "
            f"cache ({format_bytes(needed)}), which has {self.pool_bytes} ({format_bytes(self.pool_bytes)}); give at "
            "least that to kv_budget, shorten the prompt, keep the cache in a smaller codec, or take on_limit truncate "
            "or slide"
        )


def check_choices(request: Request, step_tokens: int) -> None:
    """Raise RequestError unless every choice of ``request`` can have a row in a step."""
    if request.params.num_choices > step_tokens:
        raise RequestError(
            f"{request.params.num_choices} choices are asked for and a step has {step_tokens} rows; give less to n "
            "or best_of"
        )
