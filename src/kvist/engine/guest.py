"""Sequences that somebody steers by hand beside the requests: they give way, and are computed anew when they must.

Beam search and ``Engine.logits`` work so. What a guest computed stays in the cache when it gives way, so coming back
is cheap as long as nothing else took the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as TokenIds
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import numpy.typing as npt

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.engine.scheduler import Scheduler
from kvist.engine.unbroken import Unbroken
from kvist.model.decoder import Decoder, Part

Logits = npt.NDArray[np.float32]


class Guest:
    """``ids`` are the tokens that its sequence is to hold; ``sequence`` is None while it holds nothing."""

    def __init__(self, ids: TokenIds[int], *, salt: str = "", is_shared: bool = True) -> None:
        self.ids = list(ids)
        self.salt = salt
        self.is_shared = is_shared
        self.num_prompt = len(self.ids)
        self.sequence: Sequence | None = None

    def enter(self, cache: KvCache) -> Sequence:
        """Return its sequence, a new one with what the cache has of its tokens where it had none."""
        if self.sequence is None:
            is_shared = self.is_shared and not cache.spec.retention.is_scored
            self.sequence = cache.new_sequence(salt=self.salt, is_shared=is_shared, prompt_tokens=self.num_prompt)
            self.sequence.reuse(self.ids)
        return self.sequence

    def fork(self) -> Guest:
        """Return another of the same tokens, which shares all blocks."""
        twin = Guest(self.ids, salt=self.salt, is_shared=self.is_shared)
        twin.num_prompt = self.num_prompt
        if self.sequence is not None:
            twin.sequence = self.sequence.fork()
        return twin

    def leave(self) -> None:
        """Give the blocks back."""
        if self.sequence is not None:
            self.sequence.release()
            self.sequence = None


class Guests:
    """All guests of an engine. Every method needs the engine's lock."""

    def __init__(self, decoder: Decoder, cache: KvCache, scheduler: Scheduler) -> None:
        self._decoder, self._cache, self._scheduler = decoder, cache, scheduler
        self._parties: list[list[Guest]] = []

    @contextmanager
    def staying(self, party: list[Guest], lock: AbstractContextManager[object]) -> Iterator[None]:
        """Have these guests, whichever they become, until the end; takes ``lock`` itself."""
        with lock:
            self._parties.append(party)
        try:
            yield
        finally:
            with lock, Unbroken():
                self._parties = [other for other in self._parties if other is not party]
                for guest in party:
                    guest.leave()

    def give_way(self) -> None:
        """Let go of everything where requests might lack blocks: a row for each that runs, or the first that waits."""
        running = len(self._scheduler.running)
        is_short = any(pool.num_available <= running for pool in self._cache.pools)
        if self._parties and (is_short or (self._scheduler.waiting and not running)):
            self._leave_all_but([])

    def last_rows(self, party: list[Guest]) -> Iterator[Logits]:
        """Yield the logits [V] after each guest's last token, valid until the next one is asked for."""
        parts = [Part(guest.enter(self._cache), guest.ids[-1:]) for guest in party]
        is_one_row = all(len(guest.ids) == guest.enter(self._cache).num_tokens + 1 for guest in party)
        if is_one_row and self._make_room(parts, party):
            yield from self._forward(parts)
            return
        for guest in party:
            row = np.empty((1, self._decoder.spec.vocab_size), np.float32)
            self._compute(guest, row, self._decoder.step_tokens)
            yield row[0]

    def fill(self, logits: Logits, token_ids: TokenIds[int], step: int) -> None:
        """Write the logits of the last ``len(logits)`` of ``token_ids``, all of them or one, in passes of ``step``."""
        guest = Guest(token_ids, is_shared=False)
        try:
            self._compute(guest, logits, step)
        finally:
            guest.leave()

    def _compute(self, guest: Guest, logits: Logits, step: int) -> None:
        """Compute what ``guest`` hasn't in its sequence."""
        sequence = guest.enter(self._cache)
        while sequence.num_tokens < len(guest.ids):
            start = sequence.num_tokens
            stop = sequence.retention.next_stop(start, guest.num_prompt)
            piece = guest.ids[start : start + step if stop is None else min(start + step, stop)]
            is_all, is_last = len(logits) == len(guest.ids), start + len(piece) == len(guest.ids)
            part = Part(sequence, piece, "all" if is_all else "last" if is_last else "none")
            self._make_room([part], [guest])
            rows = self._forward([part])
            if is_all:
                logits[start : start + len(piece)] = rows
            elif is_last:
                logits[:] = rows

    def _forward(self, parts: list[Part]) -> Logits:
        rows = self._decoder.forward(parts, is_copied=False)
        for part in parts:
            part.sequence.record(part.token_ids)
            part.sequence.drop_unseen()
        return rows

    def _make_room(self, parts: list[Part], staying: list[Guest]) -> bool:
        """Free blocks for ``parts``: of those that run, the latest first, then of guests; returns whether it did."""
        while not self._has_room(parts) and self._scheduler.running:
            self._scheduler.preempt(self._scheduler.running[-1])
        if not self._has_room(parts):
            self._leave_all_but(staying)
        return self._has_room(parts)

    def _has_room(self, parts: list[Part]) -> bool:
        each = [part.sequence.blocks_needed(len(part.token_ids)) for part in parts]
        needed = [sum(group) for group in zip(*each, strict=True)]
        return all(count <= pool.num_available for count, pool in zip(needed, self._cache.pools, strict=True))

    def _leave_all_but(self, staying: list[Guest]) -> None:
        for guest in (guest for party in self._parties for guest in party):
            if not any(guest is other for other in staying):
                guest.leave()
