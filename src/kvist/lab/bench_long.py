"""A text far longer than the model was trained on, in constant memory: is it still predicted, and does nothing grow?

Three ways through one text, teacher-forced. *Streamed*: sinks and a window, one sequence to the end. *Recomputed*: at
some positions the tokens that the stream keeps there are computed anew from nothing, as a text of their own, and go on
for some tokens; the stream's losses at the same tokens stand beside them. *Without sinks*: the window alone. Then an
answer of as many tokens is generated, and what it holds and what the process takes is noted on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import exp
from time import perf_counter

import numpy as np
import numpy.typing as npt

from kvist.cache.kv_cache import KvCache
from kvist.cache.memory import resident_memory
from kvist.cache.sequence import Sequence
from kvist.engine.engine import Engine
from kvist.engine.generation import Generation
from kvist.engine.request import Request, SamplingParams
from kvist.lab.divergence import Distribution, ordered_sum
from kvist.model.decoder import Decoder, Part
from kvist.spec.cache import CacheSpec
from kvist.spec.retention import RetentionSpec

Losses = npt.NDArray[np.float64]

DEFAULT_TOKENS = 100_000
DEFAULT_RETENTION = "sinks:4+1020"
SEGMENT_TOKENS = 10_000
PROBES = 10
"""Positions of a segment at which what is kept is computed anew."""
PROBE_TOKENS = 64
CHUNK_TOKENS = 64
MARKS = 10


@dataclass(frozen=True)
class Segment:
    """Perplexities over some tokens of the text: of all of them, and of those computed anew (None without any)."""

    first_token: int
    num_tokens: int
    streamed: float
    without_sinks: float
    probed_tokens: int
    probed_streamed: float | None
    probed_recomputed: float | None

    @property
    def ratio(self) -> float | None:
        """The stream's perplexity over the recomputed one's, at the same tokens; None where none was probed."""
        if self.probed_streamed is None or self.probed_recomputed is None:
            return None
        return self.probed_streamed / self.probed_recomputed

    def as_json(self) -> dict[str, float | int | None]:
        return {
            "first_token": self.first_token,
            "tokens": self.num_tokens,
            "perplexity": self.streamed,
            "perplexity_without_sinks": self.without_sinks,
            "probed_tokens": self.probed_tokens,
            "probed_perplexity": self.probed_streamed,
            "recomputed_perplexity": self.probed_recomputed,
            "ratio": self.ratio,
        }


@dataclass(frozen=True)
class Mark:
    """How it stands after some generated tokens; ``resident_bytes`` None where the system doesn't say."""

    num_tokens: int
    allocated_bytes: int
    resident_bytes: int | None
    elapsed_s: float

    def as_json(self) -> dict[str, float | int | None]:
        return {
            "tokens": self.num_tokens,
            "allocated_bytes": self.allocated_bytes,
            "resident_bytes": self.resident_bytes,
            "elapsed_s": self.elapsed_s,
        }


class LongText:
    """A text and a model; ``retention`` has sinks. ``on_tokens`` hears of rows that entered the model."""

    def __init__(
        self,
        decoder: Decoder,
        spec: CacheSpec,
        token_ids: Many[int],
        on_tokens: Callable[[int], object] = bool,
    ) -> None:
        assert spec.retention.kind == "sinks", spec.retention
        self._decoder, self._spec, self._token_ids, self._on_tokens = decoder, spec, token_ids, on_tokens

    def segments(self, segment_tokens: int = SEGMENT_TOKENS, probes: int = PROBES) -> Iterator[Segment]:
        """Go through the text three ways; yield a segment for each ``segment_tokens`` of it, as soon as it is done."""
        kept, num_losses = self._spec.retention, len(self._token_ids) - 1
        bare = RetentionSpec("window", kept.num_kept + kept.num_sinks)
        with self._walk(kept, self._token_ids) as stream, self._walk(bare, self._token_ids) as without_sinks:
            for first in range(0, num_losses, segment_tokens):
                last = min(first + segment_tokens, num_losses)
                streamed = stream.losses(last)
                starts = self._probe_starts(first, last, probes)
                anew = [self._recomputed(start) for start in starts]
                there = [streamed[start - first :][: len(losses)] for start, losses in zip(starts, anew, strict=True)]
                yield Segment(
                    first,
                    last - first,
                    perplexity(streamed),
                    perplexity(without_sinks.losses(last)),
                    sum(map(len, anew)),
                    perplexity(np.concatenate(there)) if there else None,
                    perplexity(np.concatenate(anew)) if anew else None,
                )

    def _probe_starts(self, first: int, last: int, probes: int) -> list[int]:
        """Positions of a segment, evenly spread, from which the stream has dropped something."""
        spaced = (first + (last - first) * number // probes for number in range(probes))
        kept = self._spec.retention.num_kept + self._spec.retention.num_sinks
        return [start for start in spaced if start >= kept and start + PROBE_TOKENS <= last]

    def _recomputed(self, start: int) -> Losses:
        """The losses of the tokens after ``start``, where what is kept there was computed from nothing."""
        kept, ids = self._spec.retention, self._token_ids
        window = ids[start - kept.num_kept + 1 : start + 1]
        text = [*ids[: kept.num_sinks], *window, *ids[start + 1 : start + 1 + PROBE_TOKENS]]
        with self._walk(kept, text) as walk:
            walk.skip(kept.num_sinks + kept.num_kept - 1)
            return walk.losses(len(text) - 1)

    @contextmanager
    def _walk(self, retention: RetentionSpec, token_ids: Many[int]) -> Iterator[_Walk]:
        """Give a walk through ``token_ids`` from their first on."""
        spec = replace(self._spec, retention=retention)
        cache = KvCache(self._decoder.spec, spec, num_tokens=len(token_ids), step_tokens=CHUNK_TOKENS)
        with ThreadPoolExecutor(self._decoder.num_threads) as threads:
            sequence = cache.new_sequence(is_shared=False)
            yield _Walk(self._decoder, sequence, token_ids, threads, self._on_tokens)


class _Walk:
    """A sequence on its way through ``token_ids``: how many entered it is where it stands."""

    def __init__(
        self,
        decoder: Decoder,
        sequence: Sequence,
        token_ids: Many[int],
        threads: ThreadPoolExecutor,
        on_tokens: Callable[[int], object],
    ) -> None:
        self._decoder, self._sequence, self._token_ids = decoder, sequence, token_ids
        self._threads, self._on_tokens = threads, on_tokens
        self._position = 0

    def skip(self, until: int) -> None:
        """Append the tokens before ``until``, whose losses nobody wants."""
        for piece in self._pieces(until):
            self._decoder.forward([Part(self._sequence, piece, "none")])

    def losses(self, until: int) -> Losses:
        """Append the tokens before ``until``; return the loss at each one's next, in nats."""
        found = []
        for piece in self._pieces(until):
            rows = self._decoder.forward([Part(self._sequence, piece, "all")], is_copied=False)
            targets = self._token_ids[self._position + 1 : self._position + 1 + len(piece)]
            found.append(np.array([*self._threads.map(_loss, rows, targets)]))
        return np.concatenate(found)

    def _pieces(self, until: int) -> Iterator[Many[int]]:
        while self._position < until:
            piece = self._token_ids[self._position : min(self._position + CHUNK_TOKENS, until)]
            yield piece
            self._sequence.drop_unseen()
            self._position += len(piece)
            self._on_tokens(len(piece))


def _loss(row: npt.NDArray[np.float32], token_id: int) -> float:
    return Distribution(row).nll(token_id)


def perplexity(losses: Losses) -> float:
    """e to the mean loss."""
    return exp(ordered_sum(losses) / len(losses))  # a figure to read, not a bit to keep


def generate_long(
    decoder: Decoder,
    spec: CacheSpec,
    prompt: Many[int],
    num_tokens: int,
    *,
    seed: int = 0,
    on_tokens: Callable[[int], object] = bool,
) -> Iterator[Mark]:
    """Generate ``num_tokens`` through the engine, at temperature 1; yield what they take, some times on the way."""
    length = len(prompt) + num_tokens
    cache = KvCache(decoder.spec, spec, num_tokens=length, step_tokens=decoder.step_tokens)
    engine = Engine(decoder, cache, spec, context_length=length)
    params = SamplingParams(max_tokens=num_tokens, temperature=1.0, seed=seed, ignore_eos=True)
    generation = Generation(engine, Request(tuple(prompt), params))
    started = perf_counter()
    every = max(1, num_tokens // MARKS)
    for event in generation:
        done = event.index + 1
        on_tokens(1)
        if done % every == 0 and done < num_tokens:
            allocated = generation.result.kv.allocated_bytes
            yield Mark(done, allocated, resident_memory(), perf_counter() - started)
    yield Mark(num_tokens, generation.result.kv.allocated_bytes, resident_memory(), perf_counter() - started)
