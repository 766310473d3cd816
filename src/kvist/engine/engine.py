"""One model, its cache and its threads: starts requests and computes rows of logits for them.

One request at a time enters the model; a step takes at most ``decoder.step_tokens`` rows, so that a caller can stop
between steps of bounded time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from collections.abc import Sequence as TokenIds
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.checkpoint.tokenizer import Tokenizer
from kvist.engine.result import KvUsage
from kvist.engine.transcript import Transcript
from kvist.errors import RequestError
from kvist.model.decoder import Decoder, Part
from kvist.spec.cache import CacheSpec, bytes_per_token

Logits = npt.NDArray[np.float32]


class Engine:
    """Feeds sequences to a decoder. ``context_length`` is the most tokens of a request; ``end_token_ids`` end it."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KvCache,
        spec: CacheSpec,
        *,
        context_length: int,
        tokenizer: Tokenizer | None = None,
        end_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._spec = spec
        self.context_length = context_length
        self.tokenizer = tokenizer
        self.end_token_ids = end_token_ids
        self._bytes_per_token = bytes_per_token(decoder.spec, spec)
        self._lock = threading.Lock()

    @property
    def vocab_size(self) -> int:
        return self._decoder.spec.vocab_size

    @property
    def step_tokens(self) -> int:
        return self._decoder.step_tokens

    def new_transcript(self) -> Transcript:
        """Return an empty sequence that outlives a request."""
        return Transcript(self._cache)

    def check_prompt(self, token_ids: TokenIds[int]) -> None:
        """Raise RequestError unless ``token_ids`` are at least one, in the vocabulary, and fit the context."""
        check_prompt(token_ids, self.vocab_size, self.context_length)

    def forward(
        self, sequence: Sequence, token_ids: TokenIds[int], logits: Literal["last", "all", "none"]
    ) -> tuple[Logits, int]:
        """Append ``token_ids`` to ``sequence``; return the logits asked for [rows, V] and the rows that entered."""
        with self._lock:
            before = self._decoder.num_forward_tokens
            rows = self._decoder.forward([Part(sequence, token_ids, logits)])
            sequence.drop_unseen()
            return rows, self._decoder.num_forward_tokens - before

    def usage(self, sequence: Sequence | None) -> KvUsage:
        """Return what ``sequence`` (None: one not begun yet) takes of the cache now."""
        return KvUsage(
            k=self._spec.k_codec,
            v=self._spec.v_codec,
            bytes_per_token=self._bytes_per_token,
            logical_bytes=sequence.logical_bytes if sequence else 0,
            allocated_bytes=sequence.allocated_bytes if sequence else 0,
            pool_bytes=self._cache.pool_bytes,
        )

    def logits(self, token_ids: TokenIds[int], *, is_cached: bool = True, chunk: int | None = None) -> Logits:
        """Return the logits after each of ``token_ids`` [T, V].

        ``chunk`` is the most rows that enter the model together. Uncached, each position's prefix is computed anew.
        """
        self.check_prompt(token_ids)
        if chunk is not None and chunk < 1:
            raise RequestError(f"chunk must be at least 1 token, got {chunk}")
        logits = np.empty((len(token_ids), self.vocab_size), np.float32)
        if is_cached:
            self._fill(logits, token_ids, chunk)
        else:
            for end in range(1, len(token_ids) + 1):
                self._fill(logits[end - 1 : end], token_ids[:end], chunk)
        return logits

    def _fill(self, logits: Logits, token_ids: TokenIds[int], chunk: int | None) -> None:
        """Write the logits of the last ``len(logits)`` of ``token_ids``, all of them or one."""
        sequence = self._cache.new_sequence()
        try:
            for start, piece in pieces(token_ids, min(chunk or self.step_tokens, self.step_tokens)):
                if len(logits) == len(token_ids):
                    logits[start : start + len(piece)], _ = self.forward(sequence, piece, "all")
                elif start + len(piece) < len(token_ids):
                    self.forward(sequence, piece, "none")
                else:
                    logits[:], _ = self.forward(sequence, piece, "last")
        finally:
            sequence.release()


def pieces(token_ids: TokenIds[int], most: int) -> Iterator[tuple[int, TokenIds[int]]]:
    """Yield (start, tokens) of consecutive pieces of at most ``most`` tokens."""
    for start in range(0, len(token_ids), most):
        yield start, token_ids[start : start + most]


def check_prompt(token_ids: TokenIds[int], vocab_size: int, context_length: int) -> None:
    """Raise RequestError unless ``token_ids`` are at least one, in the vocabulary, and fit the context."""
    if not token_ids:
        raise RequestError("the prompt is empty: not one token; give some text")
    if len(token_ids) > context_length:
        raise RequestError(
            f"the prompt has {len(token_ids)} tokens and the context holds {context_length}; shorten it, or raise "
            "--context (or --kv-budget) as far as the model and the memory allow"
        )
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise RequestError(f"token id {token_id} isn't in the vocabulary; ids are 0 to {vocab_size - 1}")
