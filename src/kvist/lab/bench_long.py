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
from dataclasses import dataclass
from math import exp
from time import perf_counter

import numpy as np
import numpy.typing as npt

from kvist.cache.kv_cache import KvCache
from kvist.cache.memory import resident_memory
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

    def segments(self, segment_tokens: int = SEGMENT_TOKENS, probes: int = PROBES) -> list[Segment]:
        """Go through the text three times; return a segment for each ``segment_tokens`` of it."""
        kept = self._spec.retention
        streamed = self._losses(kept)
        bare = self._losses(RetentionSpec("window", kept.num_kept + kept.num_sinks))
        found = []
        for first in range(0, len(streamed), segment_tokens):
            last = min(first + segment_tokens, len(streamed))
            starts = self._probe_starts(first, last, probes)
            anew = [self._recomputed(start) for start in starts]
            there = [streamed[start : start + len(losses)] for start, losses in zip(starts, anew, strict=True)]
            found.append(
                Segment(
                    first,
                    last - first,
                    perplexity(streamed[first:last]),
                    perplexity(bare[first:last]),
                    sum(map(len, anew)),
                    perplexity(np.concatenate(there)) if there else None,
                    perplexity(np.concatenate(anew)) if anew else None,
                )
            )
        return found

    def _probe_starts(self, first: int, last: int, probes: int) -> list[int]:
        """Positions of a segment, evenly spread, from which the stream has dropped something."""
        spaced = (first + (last - first) * number // probes for number in range(probes))
        kept = self._spec.retention.num_kept + self._spec.retention.num_sinks
        return [start for start in spaced if start >= kept and start + PROBE_TOKENS <= last]

    def _losses(self, retention: RetentionSpec) -> Losses:
        """The loss at each token but the first, in nats; entry t is that of token t + 1."""
        return np.concatenate([*self._pieces(retention, self._token_ids)])

    def _recomputed(self, start: int) -> Losses:
        """The losses of the tokens after ``start``, where what is kept there was computed from nothing."""
        kept, ids = self._spec.retention, self._token_ids
        window = ids[start - kept.num_kept + 1 : start + 1]
        text = [*ids[: kept.num_sinks], *window, *ids[start + 1 : start + 1 + PROBE_TOKENS]]
        losses = np.concatenate([*self._pieces(kept, text)])
        return losses[kept.num_sinks + kept.num_kept - 1 :]

    def _pieces(self, retention: RetentionSpec, token_ids: Many[int]) -> Iterator[Losses]:
        cache = KvCache(
            self._decoder.spec,
            CacheSpec(self._spec.codec, self._spec.k, self._spec.v, retention=retention),
            num_tokens=len(token_ids),
            step_tokens=CHUNK_TOKENS,
        )
        sequence = cache.new_sequence(is_shared=False)
        with ThreadPoolExecutor(self._decoder.num_threads) as threads:
            for start in range(0, len(token_ids), CHUNK_TOKENS):
                piece = token_ids[start : start + CHUNK_TOKENS]
                rows = self._decoder.forward([Part(sequence, piece, "all")], is_copied=False)
                sequence.drop_unseen()
                targets = token_ids[start + 1 : start + 1 + len(piece)]
                yield np.array([*threads.map(_loss, rows, targets)])
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
) -> list[Mark]:
    """Generate ``num_tokens`` through the engine, at temperature 1, and note what they take on the way."""
    length = len(prompt) + num_tokens
    cache = KvCache(decoder.spec, spec, num_tokens=length, step_tokens=decoder.step_tokens)
    engine = Engine(decoder, cache, spec, context_length=length)
    params = SamplingParams(max_tokens=num_tokens, temperature=1.0, seed=seed, ignore_eos=True)
    generation = Generation(engine, Request(tuple(prompt), params))
    marks, started = [], perf_counter()
    every = max(1, num_tokens // MARKS)
    for event in generation:
        done = event.index + 1
        on_tokens(1)
        if done % every == 0 and done < num_tokens:
            allocated = generation.result.kv.allocated_bytes
            marks.append(Mark(done, allocated, resident_memory(), perf_counter() - started))
    marks.append(Mark(num_tokens, generation.result.kv.allocated_bytes, resident_memory(), perf_counter() - started))
    return marks
