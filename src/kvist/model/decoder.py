"""One forward pass for every family: appends tokens to sequences and returns the logits asked for.

A pass lowers its parts to flat lists (``Pass``), sets the program's counts, and lets the team run it. Results don't depend on
how tokens are divided into passes, on what else is in a pass, or on the number of threads.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.checkpoint.files import Checkpoint, check_supported
from kvist.errors import NumericsError, RequestError
from kvist.kernels import target
from kvist.kernels.layout import GROUPS, MAX_GROUPS, STATUS, TABLE_HEAD, TILE_FIELDS
from kvist.kernels.layout import NUM_OUTPUTS, NUM_ROWS, NUM_TILES, OUTPUTS, POSITIONS, SCRATCH, SCRATCH_STRIDE, SPAN_STEP, SPANS, TILES, TOKENS
from kvist.kernels.team import Team
from kvist.model.families import DecoderSpec, check_runs, family_of
from kvist.model.layers import ModelWeights, load_weights
from kvist.model.program import FEW_ROWS, SPAN_TOKENS, SPLIT_ROWS, Kernels, Program, Writer, tile_rows
from kvist.spec.cache import BLOCK_TOKENS, bytes_per_token
from kvist.spec.config import model_spec_from_config
from kvist.spec.model import ModelSpec

STEP_TOKENS = 256
"""Most rows of a pass: enough to keep the multipliers busy, few enough that a pass is over in a fraction of a second."""

SPAN_CHUNKS = 6
"""Chunks a thread, at least, where spans are attended apart."""


@dataclass(frozen=True)
class Part:
    """Tokens to append to one sequence, and of which of them logits are wanted."""

    sequence: Sequence
    token_ids: Many[int]
    logits: Literal["last", "all", "none"] = "last"


class _Place:
    """A cache that the decoder writes programs for: two programs and a work arena."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.few, self.many = writer.write(is_few=True), writer.write(is_few=False)
        self.work = np.zeros(writer.logits + writer.logits_stride, np.uint8)

    def make_room(self, num_outputs: int) -> None:
        needed = self.writer.logits + num_outputs * self.writer.logits_stride
        if needed > self.work.size:
            self.work = np.zeros(needed, np.uint8)


class Decoder:
    """A loaded model. ``num_forward_tokens`` counts the rows that have entered it."""

    def __init__(self, model: ModelSpec, spec: DecoderSpec, weights: ModelWeights, *, num_threads: int, step_tokens: int = STEP_TOKENS) -> None:
        self.spec = model
        self.decoder_spec = spec
        self.weights = weights
        self.context_length = model.context_length
        self.num_threads = num_threads
        self.step_tokens = step_tokens
        self.num_forward_tokens = 0
        self._team = Team(num_threads)
        self._kernels = Kernels()
        self._places: weakref.WeakKeyDictionary[KvCache, _Place] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    @property
    def weights_bytes(self) -> int:
        """Bytes of the packed weights."""
        return int(self.weights.arena.nbytes)

    @property
    def weight_types(self) -> dict[str, int]:
        """Packed bytes of the matrices by type."""
        return dict(self.weights.type_bytes)

    def prepare(self, cache: KvCache) -> None:
        """Write the programs for a cache and compile what they need; the first pass does so too."""
        with self._lock:
            self._place(cache)

    def forward(self, parts: Many[Part]) -> npt.NDArray[np.float32]:
        """Append each part's tokens to its sequence; returns the logits asked for [rows, V], in the parts' order.

        All sequences belong to one cache, and all parts together have at most ``step_tokens`` tokens.

        Raises:
            CapacityError: the cache has too few free blocks; then nothing has changed.
            RequestError: a token id outside the vocabulary.
            NumericsError: NaN or infinity came up; the sequences are as before the call.
        """
        with self._lock:
            place = self._place(parts[0].sequence.cache)
            grown: list[Part] = []
            try:
                for part in parts:
                    self._check(part)
                    part.sequence.grow(len(part.token_ids))
                    grown.append(part)
                logits = self._run(parts, place)
            except BaseException:
                for part in grown:
                    part.sequence.truncate(part.sequence.num_tokens - len(part.token_ids))
                raise
            for part in parts:
                part.sequence.drop_unseen()
            self.num_forward_tokens += sum(len(part.token_ids) for part in parts)
            return logits

    def close(self) -> None:
        """End the threads."""
        self._team.close()

    def _place(self, cache: KvCache) -> _Place:
        place = self._places.get(cache)
        if place is None:
            place = _Place(
                Writer(self.spec, self.decoder_spec, self.weights, cache, self._kernels, max_rows=self.step_tokens, num_threads=self.num_threads)
            )
            self._places[cache] = place
        return place

    def _check(self, part: Part) -> None:
        end = part.sequence.num_tokens + len(part.token_ids)
        assert 0 < len(part.token_ids) and end <= part.sequence.cache.num_tokens, (len(part.token_ids), end)
        for token_id in (min(part.token_ids), max(part.token_ids)):
            if not 0 <= token_id < self.spec.vocab_size:
                raise RequestError(f"token id {token_id} isn't in the vocabulary; ids are 0 to {self.spec.vocab_size - 1}")

    def _run(self, parts: Many[Part], place: _Place) -> npt.NDArray[np.float32]:
        tables = _Pass(parts, tile_rows(self.spec.layers[0]), self.step_tokens)
        writer = place.writer
        place.make_room(tables.num_outputs)
        table = tables.table
        table[SCRATCH], table[SCRATCH_STRIDE] = writer.scratch, writer.scratch_bytes
        program = place.few if tables.num_rows < FEW_ROWS else place.many
        step = max(1, tables.num_spans * tables.num_tiles * self.spec.layers[0].num_kv_heads // (SPAN_CHUNKS * self.num_threads))
        table[SPAN_STEP] = step
        chunks = program.chunks(tables.num_rows, tables.num_outputs, tables.num_tiles * max(1, -(-tables.num_spans // step)))
        cache = parts[0].sequence.cache
        self._team.run(self._kernels.addresses, program.table, chunks, table, self.weights.arena, cache.store.arena, place.work)
        self._check_status(place, program.table)
        size = tables.num_outputs * writer.logits_stride
        rows = place.work[writer.logits : writer.logits + size].view(np.float32).reshape(tables.num_outputs, writer.logits_stride // 4)
        logits = rows[:, : self.spec.vocab_size].copy()
        if not np.isfinite(logits).all():
            raise NumericsError("the model's logits hold NaN or infinity; its weights are damaged, or too small a type for it")
        return logits

    def _check_status(self, place: _Place, lines: npt.NDArray[np.int64]) -> None:
        status = place.work[STATUS : STATUS + 4].view(np.int32)
        if status[0]:
            line, status[0] = int(status[0]) - 1, 0
            layer = min((line - 2) * self.spec.num_layers // max(1, len(lines) - 4), self.spec.num_layers - 1)
            raise NumericsError(f"NaN or infinity came up in layer {max(0, layer)}; its weights are damaged, or too small a type for it")


class _Pass:
    """The table of one pass, laid out as ``kernels.layout`` says."""

    def __init__(self, parts: Many[Part], rows_a_tile: int, step_tokens: int) -> None:
        self.num_rows = sum(len(part.token_ids) for part in parts)
        assert self.num_rows <= step_tokens, (self.num_rows, step_tokens)
        tokens = np.concatenate([np.asarray(part.token_ids, np.int64) for part in parts])
        spans = [(part.sequence.num_tokens - len(part.token_ids), part.sequence.num_tokens) for part in parts]
        positions = np.concatenate([np.arange(start, end) for start, end in spans])
        outputs, tiles, row = [], [], 0
        for number, (part, (start, end)) in enumerate(zip(parts, spans, strict=True)):
            count = end - start
            tiles += [(row + r, min(rows_a_tile, count - r), start + r, number) for r in range(0, count, rows_a_tile)]
            outputs += {"last": [row + count - 1], "all": list(range(row, row + count)), "none": []}[part.logits]
            row += count
        self.num_outputs, self.num_tiles = len(outputs), len(tiles)
        self.num_spans = 0
        if self.num_rows <= SPLIT_ROWS:
            self.num_spans = max((end - 1) // SPAN_TOKENS + 1 for _, end in spans)
            self.num_spans = self.num_spans if self.num_spans > 1 else 0
        self._lists: list[npt.NDArray[np.int64]] = []
        self._size = TABLE_HEAD
        head = np.zeros(TABLE_HEAD, np.int64)
        head[[NUM_ROWS, NUM_OUTPUTS, NUM_TILES, SPANS]] = self.num_rows, self.num_outputs, self.num_tiles, self.num_spans
        head[TOKENS], head[POSITIONS] = self._put(tokens), self._put(positions)
        head[OUTPUTS], head[TILES] = self._put(np.array(outputs, np.int64)), self._put(np.array(tiles, np.int64).reshape(-1))
        assert len(parts[0].sequence.tables) <= MAX_GROUPS, len(parts[0].sequence.tables)
        for group in range(len(parts[0].sequence.tables)):
            blocks = [part.sequence.tables[group].blocks for part in parts]
            slots = [
                found[np.arange(start, end) // BLOCK_TOKENS] * BLOCK_TOKENS + np.arange(start, end) % BLOCK_TOKENS
                for found, (start, end) in zip(blocks, spans, strict=True)
            ]
            head[GROUPS + 2 * group] = self._put(np.concatenate(slots))
            starts = np.array([self._put(found) for found in blocks], np.int64)
            head[GROUPS + 2 * group + 1] = self._put(starts)
        self.table = np.concatenate([head, *self._lists])

    def _put(self, numbers: npt.NDArray[np.int64]) -> int:
        start = self._size
        self._lists.append(numbers)
        self._size += numbers.size
        return start


def load_decoder(
    checkpoint: Checkpoint, *, weights: str | None = None, context: int | None = None, threads: int | None = None
) -> Decoder:
    """Load a checkpoint's weights for the kernels.

    ``weights``: f32, bf16, q8 or q4, to which matrices are converted; as they are by default. ``context`` is kept by callers;
    rotary settings don't depend on it in the families that are run.

    Raises:
        CheckpointError, UnsupportedError, SpecError: the model can't be run, and why.
    """
    target.check_supported()
    check_supported(checkpoint, ())
    family = family_of(checkpoint.config)
    model = model_spec_from_config(checkpoint.config)
    check_runs(model)
    spec = family.switches(checkpoint.config, model.layers[0].k_dim)
    num_threads = threads or 1
    packed = load_weights(checkpoint, model, family, spec, weights=weights, num_threads=num_threads)
    return Decoder(model, spec, packed, num_threads=num_threads)
