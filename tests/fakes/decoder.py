"""A decoder whose logits are a hash of all tokens before them: whoever feeds it a wrong prefix gets other logits.

What it keeps of a token stands in the cache's own blocks, found through the sequence's table: a hash of all tokens up
to it. So a block that is shared, copied, swapped or evicted wrongly shows. It keeps to the real one's contract: blocks
are taken in the sequence it is handed, rows are counted, and more than ``step_tokens`` at once are refused.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Values
from hashlib import blake2b
from pathlib import Path

import numpy as np

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.errors import NumericsError
from kvist.model.decoder import Part
from kvist.spec.cache import BLOCK_TOKENS
from kvist.spec.model import ModelSpec

LIKELY = range(97, 123)  # letters, so that answers can be read
SLOT_BYTES = 16  # a hash of 8 bytes, and the token's id


class FakeDecoder:
    """``answer``, if given, is what a prompt is followed by; ``step_s`` is how long a step takes; ``bad_token`` can't
    be computed; ``marker`` is a file that the first step makes."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        answer: Values[int] = (),
        step_tokens: int = 256,
        step_s: float = 0.0,
        bad_token: int | None = None,
        marker: str | None = None,
        threads: int = 1,
        context: int | None = None,
    ) -> None:
        self.spec = spec
        self.context_length = context or spec.context_length
        self.num_threads = threads
        self.step_tokens = step_tokens
        self.num_forward_tokens = 0
        self.is_closed = False
        self.weights_bytes = 0
        self.identity = b"fake"
        self.weight_types: dict[str, int] = {}
        self.steps: list[int] = []  # rows of each step
        self._answer = list(answer)
        self._step_s = step_s
        self._bad_token = bad_token
        self._marker = marker

    def prepare(self, cache: KvCache) -> None:
        self.prepared = cache

    def forward(self, parts: Values[Part], *, is_copied: bool = True) -> np.ndarray:  # noqa: ARG002 (always a copy)
        assert not self.is_closed
        num_rows = sum(len(part.token_ids) for part in parts)
        assert 0 < num_rows <= self.step_tokens, (num_rows, self.step_tokens)
        assert all(len(part.token_ids) > 0 for part in parts)
        grown = []
        try:
            for part in parts:
                part.sequence.grow(len(part.token_ids))
                grown.append(part)
            if self._bad_token is not None and any(self._bad_token in part.token_ids for part in parts):
                raise NumericsError("NaN or infinity came up in layer 0; the weights are damaged")
        except BaseException:
            for part in grown:
                part.sequence.truncate(part.sequence.num_tokens - len(part.token_ids))
            raise
        rows = [row for part in parts for row in self._rows(part)]
        self.num_forward_tokens += num_rows
        self.steps.append(num_rows)
        if self._marker:
            Path(self._marker).touch()
        time.sleep(self._step_s)
        self._last = np.array(rows, np.float32).reshape(len(rows), self.spec.vocab_size)
        return self._last

    def best_ids(self) -> list[int]:
        best: list[int] = self._last.argmax(axis=1).tolist()
        return best

    def attention_weights(self, sequence: Sequence, row: int, head: int) -> list[tuple[int, float]]:  # noqa: ARG002
        """Of the newest token half, the rest in equal parts."""
        rest = [(position, 0.5 / max(1, sequence.num_tokens - 1)) for position in range(sequence.num_tokens - 1)]
        return [*rest, (sequence.num_tokens - 1, 0.5 if rest else 1.0)]

    def close(self) -> None:
        self.is_closed = True

    def _rows(self, part: Part) -> list[np.ndarray]:
        sequence, rows = part.sequence, []
        start = sequence.num_tokens - len(part.token_ids)
        for position, token_id in enumerate(part.token_ids, start=start):
            before = self._read(sequence, position - 1) if position else b""
            digest = blake2b(before + token_id.to_bytes(8, "little"), digest_size=8).digest()
            self._write(sequence, position, digest + token_id.to_bytes(8, "little"))
            is_wanted = part.logits == "all" or (part.logits == "last" and position == sequence.num_tokens - 1)
            if is_wanted:
                rows.append(self._logits(digest, sequence, position))
        return rows

    def _places(self, sequence: Sequence, position: int) -> list[slice]:
        """Where a token's bytes stand: in the first layer of each group that still holds it."""
        places, (number, slot) = [], divmod(position, BLOCK_TOKENS)
        for group, table in zip(sequence.cache.groups, sequence.tables, strict=True):
            if number >= table.first_block:
                layer = sequence.cache.store.places[group.layers[0]]
                start = layer.k + int(table.blocks[number]) * layer.k_block + slot * SLOT_BYTES
                places.append(slice(start, start + SLOT_BYTES))
        return places

    def _write(self, sequence: Sequence, position: int, entry: bytes) -> None:
        for place in self._places(sequence, position):
            sequence.cache.store.arena[place] = np.frombuffer(entry, np.uint8)

    def _read(self, sequence: Sequence, position: int) -> bytes:
        """The hash of a token that every group still holds."""
        places = self._places(sequence, position)
        found = {sequence.cache.store.arena[place].tobytes()[:8] for place in places}
        assert len(places) == len(sequence.tables) and len(found) == 1, (position, len(places), found)
        return found.pop()

    def _logits(self, digest: bytes, sequence: Sequence, position: int) -> np.ndarray:
        logits = np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(self.spec.vocab_size)
        logits[LIKELY.start : LIKELY.stop] += 3.0
        history = self._tail(sequence, position, len(self._answer))
        for num_said in range(min(len(self._answer) - 1, len(history)), -1, -1):
            if self._answer and history[len(history) - num_said :] == self._answer[:num_said]:
                logits[self._answer[num_said]] += 30.0
                break
        return logits.astype(np.float32)

    def _tail(self, sequence: Sequence, position: int, count: int) -> list[int]:
        """Up to ``count`` tokens, the last of them at ``position``, that are still held."""
        tail: list[int] = []
        for at in range(position, max(-1, position - count), -1):
            places = self._places(sequence, at)
            if not places:
                break
            tail.insert(0, int.from_bytes(sequence.cache.store.arena[places[0]].tobytes()[8:], "little"))
        return tail
