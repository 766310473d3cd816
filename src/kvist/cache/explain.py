"""Why a prompt, or a part of it, wasn't in the cache; and what two prompts share, before anything is run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as TokenIds
from dataclasses import dataclass
from typing import Literal

from kvist.cache.stretch import longest_stretch
from kvist.spec.cache import BLOCK_TOKENS

NUM_REMEMBERED = 16_384
"""Evicted blocks whose time is remembered (262,144 tokens; about 4 MiB): the newest ones."""

NUM_AROUND = 8
"""Token ids that a miss shows on either side of where two texts part."""

MissKind = Literal["off", "never_stored", "differs", "evicted", "short"]


@dataclass(frozen=True)
class Miss:
    """Why the tokens from ``position`` on weren't there.

    ``off``           the request neither finds nor publishes blocks
    ``never_stored``  nothing that goes on like this was ever stored (as far as this salt may know)
    ``differs``       what is stored parts from the prompt at ``position``: ``shared`` ids come before it on both sides,
                      then ``ours`` in the prompt and ``theirs`` in what is stored
    ``evicted``       it was there: ``evicted_s`` seconds ago its block was taken for other tokens, and
                      ``num_taken_since`` blocks of its pool since (None: longer ago than is remembered)
    ``short``         a running request has computed it, in a block that it hasn't filled yet
    """

    kind: MissKind
    position: int
    evicted_s: float | None = None
    num_taken_since: int | None = None
    shared: tuple[int, ...] = ()
    ours: tuple[int, ...] = ()
    theirs: tuple[int, ...] = ()


class Evictions:
    """When each of the last ``NUM_REMEMBERED`` evicted blocks went, by hash."""

    def __init__(self, num_remembered: int = NUM_REMEMBERED) -> None:
        self._num_remembered = num_remembered
        self._by_hash: OrderedDict[bytes, tuple[float, int, int]] = OrderedDict()

    def remember(self, name: bytes, time_s: float, group: int, num_taken: int) -> None:
        """Note that a block of ``group`` went when ``num_taken`` blocks of its pool had been taken."""
        self._by_hash[name] = time_s, group, num_taken
        self._by_hash.move_to_end(name)
        if len(self._by_hash) > self._num_remembered:
            self._by_hash.popitem(last=False)

    def forget(self, name: bytes) -> None:
        """It is back."""
        self._by_hash.pop(name, None)

    def find(self, name: bytes) -> tuple[float, int, int] | None:
        """Return when, the group, and the blocks that had been taken of its pool."""
        return self._by_hash.get(name)

    def __len__(self) -> int:
        return len(self._by_hash)


@dataclass(frozen=True)
class Shared:
    """What two prompts share, in tokens.

    The second would reuse ``num_shared`` tokens of the first's cache, ``num_shared_blocks`` whole blocks among them;
    None of it depends on a model. From there on they part. Where they meet again, the longest stretch that both have
    begins at ``again_a`` and ``again_b`` and is ``num_again`` tokens long: were it to stand before what differs, it
    would be shared, too.
    """

    num_a: int
    num_b: int
    num_shared: int
    again_a: int
    again_b: int
    num_again: int

    @property
    def num_shared_blocks(self) -> int:
        return self.num_shared // BLOCK_TOKENS

    @property
    def is_same(self) -> bool:
        return self.num_shared == self.num_a == self.num_b


def explain_pair(a_ids: TokenIds[int], b_ids: TokenIds[int]) -> Shared:
    """Compare two prompts as the cache would: up to the first token that differs; then look for what is alike later."""
    num_shared = next(
        (number for number, (a, b) in enumerate(zip(a_ids, b_ids, strict=False)) if a != b), min(len(a_ids), len(b_ids))
    )
    again = longest_stretch(a_ids[num_shared:], b_ids[num_shared:])
    return Shared(len(a_ids), len(b_ids), num_shared, num_shared + again.at_a, num_shared + again.at_b, again.size)
