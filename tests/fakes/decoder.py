"""A decoder whose logits are a hash of all tokens before them: whoever feeds it a wrong prefix gets other logits.

It keeps to the real one's contract: blocks are taken and given back in the sequence it is handed, rows are counted, and
more than ``step_tokens`` at once are refused.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Values
from hashlib import blake2b
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.model.decoder import Part
from kvist.spec.model import ModelSpec

LIKELY = range(97, 123)  # letters, so that answers can be read


class FakeDecoder:
    """``answer``, if given, is what a prompt is followed by; ``step_s`` is how long a step takes;
    ``marker`` is a file that the first step makes."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        answer: Values[int] = (),
        step_tokens: int = 256,
        step_s: float = 0.0,
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
        self.steps: list[int] = []  # rows of each step
        self._answer = list(answer)
        self._step_s = step_s
        self._marker = marker
        self._histories: WeakKeyDictionary[Sequence, list[int]] = WeakKeyDictionary()

    def prepare(self, cache: KvCache) -> None:
        self.prepared = cache

    def forward(self, parts: Values[Part]) -> np.ndarray:
        assert not self.is_closed
        rows = [row for part in parts for row in self._rows(part)]
        num_rows = sum(len(part.token_ids) for part in parts)
        assert 0 < num_rows <= self.step_tokens, (num_rows, self.step_tokens)
        self.num_forward_tokens += num_rows
        self.steps.append(num_rows)
        if self._marker:
            Path(self._marker).touch()
        time.sleep(self._step_s)
        return np.array(rows, np.float32).reshape(len(rows), self.spec.vocab_size)

    def close(self) -> None:
        self.is_closed = True

    def _rows(self, part: Part) -> list[np.ndarray]:
        history = self._histories.setdefault(part.sequence, [])
        del history[part.sequence.num_tokens :]
        assert len(history) == part.sequence.num_tokens
        part.sequence.grow(len(part.token_ids))
        rows = []
        for token_id in part.token_ids:
            history.append(token_id)
            rows.append(self._logits(history))
        return {"all": rows, "last": rows[-1:], "none": []}[part.logits]

    def _logits(self, history: list[int]) -> np.ndarray:
        digest = blake2b(np.array(history, np.int64).tobytes(), digest_size=8).digest()
        logits = np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(self.spec.vocab_size)
        logits[LIKELY.start : LIKELY.stop] += 3.0
        for num_said in range(min(len(self._answer) - 1, len(history)), -1, -1):
            if self._answer and history[len(history) - num_said :] == self._answer[:num_said]:
                logits[self._answer[num_said]] += 30.0
                break
        return logits.astype(np.float32)
