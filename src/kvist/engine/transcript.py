"""A sequence in the cache together with the token ids that it holds, so that a next prompt reuses what they share."""

from __future__ import annotations

from collections.abc import Sequence as TokenIds

from kvist.cache.kv_cache import KvCache


class Transcript:
    """Tokens whose keys and values are in the cache, kept between requests: a chat's turns.

    ``token_ids`` are never more than the sequence holds; where a forward pass was interrupted the sequence may hold
    more, and ``rewind_to`` drops those.
    """

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self.sequence = cache.new_sequence()
        self.token_ids: list[int] = []

    def rewind_to(self, prompt_ids: TokenIds[int]) -> int:
        """Keep what is shared with the start of ``prompt_ids``, at most all but its last token; return how much."""
        shared = 0
        for mine, wanted in zip(self.token_ids, prompt_ids[:-1], strict=False):
            if mine != wanted:
                break
            shared += 1
        if self.sequence.num_tokens > shared:
            shared = self.sequence.truncate(shared)  # 0 where a window's blocks are gone
        del self.token_ids[shared:]
        return shared

    def reset(self) -> None:
        """Give the blocks back and start empty."""
        self.release()
        self.sequence = self._cache.new_sequence()

    def release(self) -> None:
        """Give the blocks back; a released transcript isn't used again."""
        self.token_ids.clear()
        self.sequence.release()
