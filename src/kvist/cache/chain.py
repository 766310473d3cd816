"""What a block of a prompt is called: a hash over its tokens, all tokens before them, and whatever else made its bytes.

Token ids are kept as bytes, four a token, big end first: these are what is hashed and compared, and they sort as the
ids do. A hash is BLAKE2b over the parent's hash and 16 ids; the first block's parent is the scope's root.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence as TokenIds
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from kvist.spec.cache import BLOCK_TOKENS, LayerGroup
from kvist.spec.retention import RetentionSpec

TOKEN_BYTES = 4
BLOCK_KEY = TOKEN_BYTES * BLOCK_TOKENS
"""Bytes of a whole block's ids."""

HASH_BYTES = 16


def token_key(token_ids: TokenIds[int]) -> bytes:
    """Token ids as bytes."""
    return struct.pack(f">{len(token_ids)}I", *token_ids)


def key_ids(key: bytes | bytearray) -> tuple[int, ...]:
    """The token ids of a key."""
    return struct.unpack(f">{len(key) // TOKEN_BYTES}I", key)


def shareable(token_ids: TokenIds[int], retention: RetentionSpec) -> TokenIds[int]:
    """Return the tokens of a prompt that may be looked up: from where it slides on, it is nobody else's.

    One more, since the last token of what is looked up is always computed.
    """
    return token_ids[: retention.starts_at + 1] if retention.starts_at else token_ids


def num_shared(one: bytes, other: bytes) -> int:
    """How many tokens two keys begin with alike."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length // TOKEN_BYTES
    return next(at for at in range(length) if one[at] != other[at]) // TOKEN_BYTES


def block_hash(parent: bytes, key: bytes | bytearray) -> bytes:
    """The hash of a block of the ids ``key`` after ``parent``."""
    return blake2b(parent + key, digest_size=HASH_BYTES).digest()


def root_hash(parts: TokenIds[bytes]) -> bytes:
    """The hash of what changes every block's bytes; no two lists of parts run together to the same."""
    state = blake2b(digest_size=HASH_BYTES)
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
    return state.digest()


@dataclass(frozen=True)
class Scope:
    """Who may share: sequences of one scope have one ``root`` hash (identity, codecs, retention, salt).

    ``groups`` say what their queries see of each layer group.
    """

    root: bytes
    groups: tuple[LayerGroup, ...]


@dataclass(frozen=True)
class Chain:
    """A prompt's ids in a scope, hashed once however often it is looked up."""

    scope: Scope
    key: bytes

    @property
    def num_tokens(self) -> int:
        return len(self.key) // TOKEN_BYTES

    @cached_property
    def hashes(self) -> tuple[bytes, ...]:
        """Of the whole blocks, in order."""
        hashes, parent = [], self.scope.root
        for start in range(0, len(self.key) - BLOCK_KEY + 1, BLOCK_KEY):
            parent = block_hash(parent, self.key[start : start + BLOCK_KEY])
            hashes.append(parent)
        return tuple(hashes)

    def parent(self, number: int) -> bytes:
        """The hash before block ``number``."""
        return self.hashes[number - 1] if number else self.scope.root

    def block_key(self, number: int) -> bytes:
        """The ids of block ``number``, fewer than 16 at the end."""
        return self.key[BLOCK_KEY * number : BLOCK_KEY * (number + 1)]
