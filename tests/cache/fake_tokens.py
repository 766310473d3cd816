"""Stands in for a model: fills a sequence's slots with bytes that follow from all its tokens, and looks at them again.

A block that is shared wrongly, written to by another sequence, or not copied in time, shows as wrong bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.errors import CapacityError
from kvist.spec.cache import BLOCK_TOKENS
from kvist.spec.retention import ALL, RetentionSpec

Bytes = npt.NDArray[np.uint8]


class Text:
    """Token ids, and for each a digest of the salt and of all ids up to it."""

    def __init__(self, salt: str = "") -> None:
        self.salt = salt
        self.ids: list[int] = []
        self._digests: list[bytes] = []

    def extend(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            before = self._digests[-1] if self.ids else self.salt.encode()
            self._digests.append(blake2b(before + token_id.to_bytes(4, "big"), digest_size=32).digest())
            self.ids.append(token_id)

    def cut(self, num_tokens: int) -> None:
        del self.ids[num_tokens:], self._digests[num_tokens:]

    def copy(self) -> Text:
        other = Text(self.salt)
        other.ids, other._digests = list(self.ids), list(self._digests)
        return other

    def bytes_of(self, numbers: npt.NDArray[np.int64], width: int, layer: int) -> Bytes:
        """What a head of a layer keeps of tokens [T, width]."""
        joined = np.frombuffer(b"".join(self._digests[number] for number in numbers), np.uint8)
        return np.resize(joined.reshape(-1, 32).T, (width, numbers.size)).T + np.uint8(layer)


def write(sequence: Sequence, text: Text, first: int) -> None:
    """Write the tokens from position ``first`` on, as a forward pass does for those that it has grown by."""
    cache = sequence.cache
    for group, table in enumerate(sequence.tables):
        numbers = np.arange(first, sequence.num_tokens)
        if numbers.size:
            blocks, slots = table.blocks[numbers // BLOCK_TOKENS], numbers % BLOCK_TOKENS
            for half in halves_by_token(cache, group):
                for layer, heads in enumerate(half):
                    heads[:, blocks, slots] = text.bytes_of(numbers, heads.shape[-1], layer)


def assert_reads(sequence: Sequence, text: Text) -> None:
    """Everything that the next query sees of the sequence is what its tokens make."""
    assert len(text.ids) == sequence.num_tokens
    for group, table in enumerate(sequence.tables):
        seen, end = sequence.scope.groups[group], sequence.num_tokens
        first = seen.first_kept(end)
        numbers = np.concatenate([np.arange(min(seen.num_sinks, first)), np.arange(first, end)])
        if numbers.size:
            assert set(table.blocks[numbers // BLOCK_TOKENS]) <= set(table.held)
            blocks, slots = table.blocks[numbers // BLOCK_TOKENS], numbers % BLOCK_TOKENS
            for half in halves_by_token(sequence.cache, group):
                for layer, heads in enumerate(half):
                    expected = text.bytes_of(numbers, heads.shape[-1], layer)
                    assert (heads[:, blocks, slots] == expected).all(), (group, layer, sequence.num_tokens)


def halves_by_token(cache: KvCache, group: int) -> list[Bytes]:
    """Keys and values [L, K, blocks, 16, bytes]: which bytes of a block are which token's is as good as any."""
    views = [half.reshape(*half.shape[:3], BLOCK_TOKENS, -1) for half in cache.store.halves[group]]
    assert all(np.shares_memory(view, cache.store.arena) for view in views)
    return views


def step(sequence: Sequence, text: Text, token_ids: list[int]) -> bool:
    """One settled step of a sequence that appends ``token_ids``; False where the cache is too full for it."""
    before = len(text.ids)
    try:
        sequence.grow(len(token_ids))
    except CapacityError:
        return False
    text.extend(token_ids)
    write(sequence, text, before)
    sequence.record(token_ids)
    sequence.drop_unseen()
    return True


def begin(
    cache: KvCache, prompt: list[int], salt: str = "", *, is_shared: bool = True, retention: RetentionSpec = ALL
) -> tuple[Sequence, Text, int]:
    """A sequence that has reused what it could of a prompt, its text so far, and how many tokens those are."""
    sequence = cache.new_sequence(salt=salt, is_shared=is_shared, retention=retention)
    text = Text(f"{salt} {retention}")
    num_cached = sequence.reuse(prompt).num_tokens
    text.extend(prompt[:num_cached])
    return sequence, text, num_cached


def run(cache: KvCache, prompt: list[int], salt: str = "", *, is_shared: bool = True) -> tuple[Sequence, Text]:
    """A sequence that holds a whole prompt."""
    sequence, text, num_cached = begin(cache, prompt, salt, is_shared=is_shared)
    assert step(sequence, text, prompt[num_cached:])
    assert_reads(sequence, text)
    return sequence, text
