"""What is known of a sequence's tokens: ids, hashes of whole blocks, and blocks to come that others may wait for."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as TokenIds

from kvist.cache.chain import BLOCK_KEY, TOKEN_BYTES, Chain, Scope, block_hash, token_key
from kvist.cache.prefix import Pending


class Recorded:
    """The first ``num_tokens`` of a sequence, computed and settled; no more than it holds."""

    def __init__(self, scope: Scope, pending: Pending) -> None:
        self._scope = scope
        self._pending = pending
        self._key = bytearray()
        self._hashes: list[bytes] = []
        self._marks: set[bytes] = set()

    @property
    def num_tokens(self) -> int:
        return len(self._key) // TOKEN_BYTES

    @property
    def num_blocks(self) -> int:
        """Whole blocks."""
        return len(self._hashes)

    @property
    def ids(self) -> tuple[bytes, tuple[bytes, ...]]:
        """The key and the hashes, to start another one with."""
        return bytes(self._key), tuple(self._hashes)

    @property
    def parent(self) -> bytes:
        """The hash before the first token that is in no whole block."""
        return self._hashes[-1] if self._hashes else self._scope.root

    @property
    def tail(self) -> bytes:
        """The ids from there on."""
        return bytes(self._key[BLOCK_KEY * len(self._hashes) :])

    def start(self, key: bytes, hashes: Iterable[bytes]) -> None:
        """Begin with what another one's ``ids`` were."""
        assert not self._key, self.num_tokens
        self._key += key
        self._hashes += hashes

    def append(self, token_ids: TokenIds[int]) -> None:
        """Note more ids; ``next_block`` says which blocks they made whole."""
        self._key += token_key(token_ids)

    def next_block(self) -> tuple[bytes, bytes] | None:
        """Name and ids of a block that has become whole; None where there is no more. ``close`` goes on to the next."""
        end = BLOCK_KEY * (len(self._hashes) + 1)
        if len(self._key) < end:
            return None
        key = bytes(self._key[end - BLOCK_KEY : end])
        return block_hash(self.parent, key), key

    def close(self, name: bytes) -> None:
        """Count ``next_block`` as whole; nobody waits for it any more."""
        self._hashes.append(name)
        if name in self._marks:
            self._marks.remove(name)
            self._pending.unmark(name)

    def cut(self, num_tokens: int) -> None:
        """Forget the tokens from ``num_tokens`` on, if there are any, and what was planned."""
        if num_tokens < self.num_tokens:
            self.unmark()
            del self._key[TOKEN_BYTES * num_tokens :]
            del self._hashes[num_tokens // (BLOCK_KEY // TOKEN_BYTES) :]

    def mark(self, chain: Chain) -> None:
        """Let others wait for a prompt's blocks that aren't recorded yet."""
        self.unmark()
        self._marks.update(chain.hashes[len(self._hashes) :])
        for name in self._marks:
            self._pending.mark(name)

    def unmark(self) -> None:
        """Let nobody wait for anything."""
        for name in self._marks:
            self._pending.unmark(name)
        self._marks.clear()

    def check(self) -> None:
        """Assert that hashes are those of the ids, and that marks are known."""
        assert tuple(self._hashes) == Chain(self._scope, bytes(self._key)).hashes
        assert all(name in self._pending for name in self._marks)
