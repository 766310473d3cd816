"""What a smaller cache costs: every way of keeping it, on one text, beside float32 keys and values that are all kept.

The text is cut into windows of the context's length. The reference and all candidates go through a window side by side,
some rows at a time, since 20,000 rows of 49,152 logits don't fit into memory; each row is compared and forgotten. What
is finished goes into a state (``lab.quality_state``) at once, so that a run can be broken off and taken up again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from time import perf_counter

import numpy as np
import numpy.typing as npt

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.errors import RequestError
from kvist.kernels.jit import cache_key
from kvist.kernels.matmul import QUANTISED
from kvist.lab.divergence import Comparison, Distribution
from kvist.lab.needle import Needle
from kvist.lab.quality_state import EvalState, Losses
from kvist.lab.timing import Timing
from kvist.model.decoder import Decoder, Part
from kvist.spec.cache import CacheSpec, pool_bytes

Logits = npt.NDArray[np.float32]

REFERENCE = CacheSpec("f32")
DEFAULT_TOKENS = 20_480
DEFAULT_CONTEXT = 4_096
CHUNK_TOKENS = 64
"""Rows compared at a time: 13 MB of logits for each candidate where the vocabulary has 49,152 entries."""
DECODE_STEPS = 24
WARMUP_STEPS = 3


@dataclass(frozen=True)
class Work:
    """What every candidate goes through: ``windows`` of token ids, the last perhaps shorter, and ``needles``."""

    windows: tuple[tuple[int, ...], ...]
    needles: tuple[Needle, ...]

    @property
    def context(self) -> int:
        """The longest sequence."""
        return max(map(len, (*self.windows, *(needle.token_ids for needle in self.needles))))

    @property
    def digest(self) -> str:
        """A short name for the tokens, by which two runs can be told to be of the same text."""
        return blake2b(repr(self.windows).encode(), digest_size=5).hexdigest()

    @property
    def positions(self) -> tuple[int, ...]:
        """Of each window, the positions at which a token follows inside it."""
        return tuple(len(window) - 1 for window in self.windows)

    @property
    def num_compared(self) -> int:
        """The positions of all windows."""
        return sum(self.positions)

    def num_missing(self, spec: CacheSpec, state: EvalState, num_threads: int | None) -> int:
        """Tokens that have yet to enter the model for ``spec``; None threads: its decode times aren't wanted."""
        windows = sum(len(w) for number, w in enumerate(self.windows) if not state.has_window(spec, number))
        needles = sum(len(n.token_ids) for number, n in enumerate(self.needles) if not state.has_needle(spec, number))
        is_timed = num_threads is None or state.tpot_s(spec, num_threads) is not None
        return windows + needles + (0 if is_timed else len(self.windows[0]))


@dataclass(frozen=True)
class Models:
    """The same model twice: ``quality`` with weights in float, ``speed`` as it is run.

    Quantised weights meet activations that are rounded to 8 bits. Any change in the cache, however small, tips other
    roundings, and a KL of some thousandths comes of that alone: it would hide what the cache itself does.
    """

    quality: Decoder
    speed: Decoder

    def identity(self, work: Work) -> str:
        """Return a digest of all that every figure depends on: weights, settings, kernels, and the work.

        Not the threads: times are kept by their number, and nothing else changes with them.
        """
        digest = blake2b(digest_size=16)
        for decoder in (self.quality, self.speed):
            digest.update(decoder.weights.arena.data)
            for part in (decoder.spec, decoder.decoder_spec):
                digest.update(repr(part).encode())
        digest.update(repr((cache_key(), work)).encode())
        return digest.hexdigest()


def rounds_activations(decoder: Decoder) -> bool:
    """Whether any matrix meets its inputs as 8-bit integers."""
    return any(form in QUANTISED for form in decoder.weight_types)


def cut(token_ids: Many[int], context: int, prefix: Many[int] = ()) -> tuple[tuple[int, ...], ...]:
    """Return windows of ``context`` tokens, each beginning with ``prefix``; a rest too short to compare is left out.

    Raises RequestError where a window has no place for two tokens of the text, the least that can be compared.
    """
    size = context - len(prefix)
    if size < 2:
        raise RequestError(
            f"--context {context} has no place for two tokens of the text beside the {len(prefix)} that the model "
            f"begins with; give {len(prefix) + 2} or more"
        )
    windows = ((*prefix, *token_ids[start : start + size]) for start in range(0, len(token_ids), size))
    return tuple(window for window in windows if len(window) > len(prefix) + 1)


class Candidate:
    """A cache of one kind for one sequence at a time."""

    def __init__(self, decoder: Decoder, spec: CacheSpec, num_tokens: int) -> None:
        self.spec = spec
        self._decoder = decoder
        self._cache = KvCache(decoder.spec, spec, num_tokens=num_tokens, step_tokens=decoder.step_tokens)

    @contextmanager
    def sequence(self, prompt_tokens: int) -> Iterator[Sequence]:
        """Give an empty sequence; its blocks come back at the end. ``prompt_tokens`` is where ``snapkv`` chooses."""
        sequence = self._cache.new_sequence(is_shared=False, prompt_tokens=prompt_tokens)
        try:
            yield sequence
        finally:
            sequence.release()

    def prefill(self, sequence: Sequence, token_ids: Many[int]) -> None:
        """Append tokens whose logits nobody wants."""
        for piece in self._pieces(sequence, token_ids):
            self._decoder.forward([Part(sequence, piece, "none")])
            sequence.drop_unseen()

    def rows(self, sequence: Sequence, token_ids: Many[int]) -> Logits:
        """Append tokens; return the logits after each [T, V]."""
        found = []
        for piece in self._pieces(sequence, token_ids):
            found.append(self._decoder.forward([Part(sequence, piece, "all")]))
            sequence.drop_unseen()
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _pieces(self, sequence: Sequence, token_ids: Many[int]) -> Iterator[Many[int]]:
        """Yield tokens pass by pass: no more than fit one, and none past where it is chosen what is kept."""
        start = 0
        while start < len(token_ids):
            count = sequence.most_rows(min(self._decoder.step_tokens, len(token_ids) - start))
            yield token_ids[start : start + count]
            start += count


def evaluate(
    models: Models,
    specs: Many[CacheSpec],
    work: Work,
    state: EvalState,
    *,
    is_timed: bool = True,
    memory: int | None = None,
    on_tokens: Callable[[int], object] = bool,
) -> None:
    """Bring ``state`` to where it holds everything about each of ``specs``; ``on_tokens`` hears of tokens done.

    Decode times only if ``is_timed``. Caches are made for as many at once as fit ``memory`` bytes (None: all), the
    reference's beside them.

    Raises CapacityError where not even one fits.
    """
    timed_threads = models.speed.num_threads if is_timed else None
    missing = [spec for spec in specs if work.num_missing(spec, state, timed_threads)]
    for group in _groups(models.quality, missing, work.context, memory):
        candidates = [Candidate(models.quality, spec, work.context) for spec in group]
        _compare_windows(models.quality, candidates, work, state, on_tokens)
        _look_for_needles(candidates, work, state, on_tokens)
        del candidates
        if is_timed:
            _time_decode(models.speed, group, work, state, on_tokens)


def _groups(decoder: Decoder, specs: Many[CacheSpec], num_tokens: int, memory: int | None) -> list[list[CacheSpec]]:
    """Divide ``specs`` so that each group's caches fit; one alone is tried whatever it takes."""

    def size(spec: CacheSpec) -> int:
        return pool_bytes(decoder.spec, spec, num_tokens, decoder.step_tokens)

    groups: list[list[CacheSpec]] = []
    used = size(REFERENCE)
    for spec in specs:
        used += size(spec)
        if not groups or (memory is not None and used > memory):
            groups.append([])
            used = size(REFERENCE) + size(spec)
        groups[-1].append(spec)
    return groups


def _compare_windows(
    decoder: Decoder, candidates: Many[Candidate], work: Work, state: EvalState, on_tokens: Callable[[int], object]
) -> None:
    reference: Candidate | None = None
    for number, window in enumerate(work.windows):
        missing = [one for one in candidates if not state.has_window(one.spec, number)]
        if not missing and state.has_window(None, number):
            continue
        reference = reference or Candidate(decoder, REFERENCE, work.context)
        found = _compare_window(reference, missing, window, on_tokens, num_threads=decoder.num_threads)
        for spec, losses in zip([None, *(one.spec for one in missing)], found, strict=True):
            state.put_window(spec, number, losses)
        state.save()


def _compare_window(
    reference: Candidate,
    candidates: Many[Candidate],
    window: Many[int],
    on_tokens: Callable[[int], object],
    *,
    num_threads: int,
) -> list[Losses]:
    """Return the losses of the reference and of each candidate over one window."""
    everyone = [reference, *candidates]
    compared: list[list[Comparison]] = []
    with ExitStack() as held, ThreadPoolExecutor(num_threads) as threads:
        sequences = [held.enter_context(one.sequence(len(window) // 2)) for one in everyone]
        for start in range(0, len(window), CHUNK_TOKENS):
            piece = window[start : start + CHUNK_TOKENS]
            rows = [one.rows(sequence, piece) for one, sequence in zip(everyone, sequences, strict=True)]
            targets = window[start + 1 : start + 1 + len(piece)]  # at the window's end one fewer than rows
            compared += threads.map(_compare_row, targets, zip(*rows, strict=True))
            on_tokens(len(piece) * len(candidates))
        sizes = [sequence.allocated_bytes for sequence in sequences]
    columns = zip(*compared, strict=True)
    return [Losses.of(column, size) for column, size in zip(columns, sizes, strict=True)]


def _compare_row(token_id: int, rows: Many[npt.NDArray[np.float32]]) -> list[Comparison]:
    """Compare the candidates' rows [V] with the reference's, which comes first and is its own measure."""
    reference = Distribution(rows[0])
    itself = Comparison(kl=0.0, nll=reference.nll(token_id), is_same_top=True)
    return [itself, *(reference.compare(row, token_id) for row in rows[1:])]


def _look_for_needles(
    candidates: Many[Candidate], work: Work, state: EvalState, on_tokens: Callable[[int], object]
) -> None:
    for number, needle in enumerate(work.needles):
        for one in candidates:
            if not state.has_needle(one.spec, number):
                state.put_needle(one.spec, number, _needle_score(one, needle))
                on_tokens(len(needle.token_ids))
        state.save()


def _needle_score(candidate: Candidate, needle: Needle) -> float:
    num_asked = len(needle.key_ids)
    with candidate.sequence(len(needle.token_ids) - num_asked) as sequence:
        candidate.prefill(sequence, needle.token_ids[:-num_asked])
        return needle.score(candidate.rows(sequence, needle.token_ids[-num_asked:]))


def _time_decode(
    decoder: Decoder, specs: Many[CacheSpec], work: Work, state: EvalState, on_tokens: Callable[[int], object]
) -> None:
    """Time the last tokens of the first window one by one, the candidates in turn: what disturbs one disturbs all."""
    untimed = [spec for spec in specs if state.tpot_s(spec, decoder.num_threads) is None]
    missing = [Candidate(decoder, spec, work.context) for spec in untimed]
    window = work.windows[0]
    steps = window[-min(WARMUP_STEPS + DECODE_STEPS, len(window) // 2) :]
    samples: list[list[float]] = [[] for _ in missing]
    with ExitStack() as held:
        sequences = [held.enter_context(one.sequence(len(window) - len(steps))) for one in missing]
        for one, sequence in zip(missing, sequences, strict=True):
            one.prefill(sequence, window[: -len(steps)])
            on_tokens(len(window))
        for token_id in steps:
            for one, sequence, times in zip(missing, sequences, samples, strict=True):
                started = perf_counter()
                one.rows(sequence, [token_id])
                times.append(perf_counter() - started)
    for one, times in zip(missing, samples, strict=True):
        state.put_tpot(one.spec, decoder.num_threads, Timing(tuple(times[-DECODE_STEPS:])).median_s)
    state.save()
