"""One forward pass for every family: appends tokens to sequences and returns the logits asked for.

A pass lowers its parts to flat lists (``table.lower``), sets the program's counts, and lets the team run it. Results
don't depend on how tokens are divided into passes, on what else is in a pass, or on the number of threads.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence as Many
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.checkpoint.files import Checkpoint, check_supported
from kvist.errors import NumericsError, RequestError
from kvist.kernels import tally, target
from kvist.kernels.arena import new_arena
from kvist.kernels.layout import POSITIONS, SCRATCH, SCRATCH_STRIDE, SPANS, STATUS, line_and_row
from kvist.kernels.peaks import SEGMENT
from kvist.kernels.team import Team
from kvist.model.families import DecoderSpec, check_runs, family_of
from kvist.model.heads import num_shared
from kvist.model.identity import model_identity
from kvist.model.layers import ModelWeights, load_weights
from kvist.model.program import Kernels, Program
from kvist.model.table import Part, lower
from kvist.model.tallying import Tallying, tallied
from kvist.model.tiles import least_tiles, unit_rows
from kvist.model.watching import read_keys, read_query, softmax_weights
from kvist.model.writer import SPLIT_ROWS, Writer
from kvist.spec.config import check_vocabulary, model_spec_from_config
from kvist.spec.footprint import STEP_TOKENS
from kvist.spec.model import ModelSpec

__all__ = ["Decoder", "Part", "load_decoder"]

FEW_EXPERT_ROWS = 8
"""Fewer rows than these run the program that is divided for few where there are experts: it reads these anew for each
pick. Without experts the processor decides."""

SPLIT_CHUNKS = 1
"""Chunks a thread and KV head, about, where spans are attended apart."""

ROW_CHUNKS = 4
"""Chunks a thread, about, of what works row by row: each claim of a chunk takes a cache line from the other threads."""

Outputs = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
"""Rows of logits [rows, V], and the largest of each segment of them [rows, segments]."""


class _Workspace:
    """What the decoder keeps for a cache: the programs for few and for many rows, and a work arena.

    ``programs`` are by (few rows, rows whose attention is tallied); the latter only where the writer has them.

    Holds the writer's numbers, not the writer: that holds the cache, which would then never be freed.
    """

    def __init__(self, writer: Writer) -> None:
        self.has_tallies = writer.has_tallies
        self.programs = {
            (is_few, has_tallies): writer.write(is_few=is_few, has_tallies=has_tallies)
            for is_few in (True, False)
            for has_tallies in ((False, True) if writer.has_tallies else (False,))
        }
        self.tile_rows, self.num_spans = writer.tile_rows, writer.num_spans
        self.scratch, self.scratch_bytes = writer.scratch, writer.scratch_bytes
        self.logits, self.logits_stride = writer.logits, writer.logits_stride
        self.peaks, self.num_peaks = writer.peaks // 4, writer.num_peaks
        self.queries, self.max_rows = writer.q, writer.max_rows
        self._allocate(1)

    def _allocate(self, num_outputs: int) -> None:
        self.work = new_arena(self.logits + num_outputs * self.logits_stride)
        self.status = self.work[STATUS : STATUS + 8].view(np.int64)
        self._outputs: dict[int, Outputs] = {}

    def make_room(self, num_outputs: int) -> None:
        """Make the arena large enough for ``num_outputs`` rows of logits."""
        if self.logits + num_outputs * self.logits_stride > self.work.size:
            self._allocate(num_outputs)

    def outputs(self, num_outputs: int, vocab_size: int) -> Outputs:
        """So many rows of logits and their peaks, where they stand; made once, since making views takes its time."""
        if num_outputs not in self._outputs:
            rows = self.work[self.logits : self.logits + num_outputs * self.logits_stride].view(np.float32)
            rows = rows.reshape(num_outputs, self.logits_stride // 4)
            self._outputs[num_outputs] = rows[:, :vocab_size], rows[:, self.peaks : self.peaks + self.num_peaks]
        return self._outputs[num_outputs]


class Decoder:
    """A loaded model. ``num_forward_tokens`` counts the rows that have entered it."""

    def __init__(
        self,
        model: ModelSpec,
        spec: DecoderSpec,
        weights: ModelWeights,
        *,
        num_threads: int,
        step_tokens: int = STEP_TOKENS,
    ) -> None:
        self.spec = model
        self.decoder_spec = spec
        self.weights = weights
        self.context_length = model.context_length
        self.num_threads = num_threads
        self.step_tokens = step_tokens
        self.num_forward_tokens = 0
        self._unit_rows = unit_rows(model.layers[0])
        self._least_tiles = least_tiles(model.layers[0], num_threads)
        self._few_rows = FEW_EXPERT_ROWS if any(model.experts) else target.current().few_rows
        self._team = Team(num_threads)
        self._kernels = Kernels()
        self._workspaces: weakref.WeakKeyDictionary[KvCache, _Workspace] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._last = (np.empty((0, model.vocab_size), np.float32), np.empty((0, 1), np.float32))

    @property
    def weights_bytes(self) -> int:
        """Bytes of the packed weights."""
        return int(self.weights.arena.nbytes)

    @cached_property
    def identity(self) -> bytes:
        """What a cache's blocks are called by, so that those of another model are never found."""
        return model_identity((self.spec, self.decoder_spec, self.weights.type_bytes), self.weights.arena)

    @property
    def weight_types(self) -> dict[str, int]:
        """Packed bytes of the matrices by type."""
        return dict(self.weights.type_bytes)

    def prepare(self, cache: KvCache) -> None:
        """Write the programs for a cache and compile what they need; the first pass does so too."""
        with self._lock:
            self._workspace(cache)

    def forward(self, parts: Many[Part], *, is_copied: bool = True) -> npt.NDArray[np.float32]:
        """Append each part's tokens to its sequence; returns the logits asked for [rows, V], in the parts' order.

        All sequences belong to one cache, and all parts together have at most ``step_tokens`` tokens. Without
        ``is_copied`` the logits are a view that the next pass overwrites. Blocks that no later query sees stay with
        their sequence until it is told to ``drop_unseen``.

        Raises:
            CapacityError: the cache has too few free blocks; then nothing has changed.
            RequestError: a token id outside the vocabulary.
            NumericsError: NaN or infinity came up; the sequences are as before the call.
        """
        with self._lock:
            is_scored = any(part.sequence.retention.is_scored for part in parts)
            space = self._workspace(parts[0].sequence.cache, has_tallies=is_scored)
            grown: list[Part] = []
            try:
                for part in parts:
                    self._check(part)
                    part.sequence.grow(len(part.token_ids))
                    grown.append(part)
                logits = self._run(parts, space, is_copied=is_copied)
            except BaseException:
                for part in grown:
                    part.sequence.truncate(part.sequence.num_tokens - len(part.token_ids))
                raise
            self.num_forward_tokens += sum(len(part.token_ids) for part in parts)
            return logits

    def best_ids(self) -> list[int]:
        """Return the id of the largest logit of each row that the last pass gave, the lowest where several are."""
        logits, peaks = self._last
        starts = [int(row.argmax()) * SEGMENT for row in peaks]
        return [start + int(row[start : start + SEGMENT].argmax()) for row, start in zip(logits, starts, strict=True)]

    def attention_weights(self, sequence: Sequence, row: int, head: int) -> list[tuple[int, float]]:
        """Return (position, softmax weight) of all that query ``head`` of the last layer saw: for those who watch.

        ``row`` is a row of the last pass, and ``sequence``'s newest token. None where the last layer has no such
        attention (a latent one), or tokens were dropped. Weights of a learned sink are left out.
        """
        number, layer = len(self.spec.layers) - 1, self.spec.layers[-1]
        assert 0 <= head < layer.num_heads, (head, layer.num_heads)
        if layer.kind not in ("full", "window") or layer.shares_cache or sequence.retention.is_bounded:
            return []
        with self._lock:
            space, share = self._workspaces[sequence.cache], layer.num_heads // layer.num_kv_heads
            kv_head, size = head // share, 4 * layer.k_dim
            rows = kv_head * space.max_rows + row
            codec = sequence.cache.groups[sequence.cache.store.places[number].group].spec.k_codec
            query = read_query(space.work, space.queries + (rows * share + head % share) * size, layer, codec)
            positions, keys = read_keys(sequence, number, kv_head)
        return softmax_weights(query, positions, keys, layer.window)

    def close(self) -> None:
        """End the threads."""
        self._team.close()

    def _workspace(self, cache: KvCache, *, has_tallies: bool = False) -> _Workspace:
        """The cache's own, made and its kernels compiled at first, and again when attention is first to be tallied."""
        space = self._workspaces.get(cache)
        if space is None or (has_tallies and not space.has_tallies):
            writer = Writer(
                self.spec,
                self.decoder_spec,
                self.weights,
                cache,
                self._kernels,
                max_rows=self.step_tokens,
                num_threads=self.num_threads,
                has_tallies=has_tallies or cache.spec.retention.is_scored,
            )
            space = _Workspace(writer)
            self._kernels.compile()
            self._workspaces[cache] = space
        return space

    @property
    def _tally_rows(self) -> int:
        """Rows of a piece whose attention is tallied."""
        return min(tally.unit_rows(num_shared(layer)) for layer in self.spec.layers)

    def _check(self, part: Part) -> None:
        end = part.sequence.num_tokens + len(part.token_ids)
        is_bounded = part.sequence.retention.is_bounded
        assert len(part.token_ids) > 0, part
        assert is_bounded or end <= part.sequence.cache.num_tokens, (end, part.sequence.cache.num_tokens)
        for token_id in (min(part.token_ids), max(part.token_ids)):
            if not 0 <= token_id < self.spec.vocab_size:
                raise RequestError(
                    f"token id {token_id} isn't in the vocabulary; ids are 0 to {self.spec.vocab_size - 1}"
                )

    def _run(self, parts: Many[Part], space: _Workspace, *, is_copied: bool) -> npt.NDArray[np.float32]:
        lowered = lower(
            parts,
            tile_rows=space.tile_rows,
            split_rows=SPLIT_ROWS,
            split_chunks=SPLIT_CHUNKS * self.num_threads,
            row_chunks=ROW_CHUNKS * self.num_threads,
            unit_rows=self._unit_rows,
            least_tiles=self._least_tiles,
        )
        assert lowered.num_rows <= self.step_tokens, (lowered.num_rows, self.step_tokens)
        assert lowered.table[SPANS] <= space.num_spans, (lowered.table[SPANS], space.num_spans)
        space.make_room(lowered.num_outputs)
        lowered.table[SCRATCH], lowered.table[SCRATCH_STRIDE] = space.scratch, space.scratch_bytes
        tallying = Tallying(lowered.table, tallied(parts), num_threads=self.num_threads, unit_rows=self._tally_rows)
        program = space.programs[lowered.num_rows < self._few_rows, tallying.num_units > 0]
        control = program.control(
            num_rows=lowered.num_rows,
            num_row_chunks=lowered.num_row_chunks,
            num_split_rows=lowered.num_split_rows,
            num_outputs=lowered.num_outputs,
            num_tile_parts=lowered.num_tile_parts,
            num_tallies=tallying.num_units,
        )
        cache = parts[0].sequence.cache.store.arena
        self._team.run(
            self._kernels.addresses, program.table, control, tallying.table, self.weights.arena, cache, space.work
        )
        self._check_status(space, program, lowered.table)
        logits = self._logits(space, lowered.num_outputs)
        tallying.give()
        return logits.copy() if is_copied else logits

    def _logits(self, space: _Workspace, num_outputs: int) -> npt.NDArray[np.float32]:
        """The rows of logits, where they stand."""
        self._last = logits, peaks = space.outputs(num_outputs, self.spec.vocab_size)
        if num_outputs and not math.isfinite(peaks.max()):  # NaN is the largest of all; minus infinity harms nobody
            raise NumericsError(
                "the model's logits hold NaN or infinity; its weights are damaged, or too small a type for it"
            )
        return logits

    def _check_status(self, space: _Workspace, program: Program, table: npt.NDArray[np.int64]) -> None:
        """Raise NumericsError where a kernel met NaN or infinity, naming the layer and the token."""
        if space.status[0]:
            line, row = line_and_row(int(space.status[0]))
            space.status[0] = 0
            layer, position = program.layers[line], table[table[POSITIONS] + row]
            where = f"in layer {layer}" if layer >= 0 else "in the embedding or the last norm"
            raise NumericsError(
                f"NaN or infinity came up {where}, for the token at position {position}; the weights are damaged, or "
                "too small a type for the model"
            )


def load_decoder(
    checkpoint: Checkpoint, *, weights: str | None = None, threads: int | None = None, context: int | None = None
) -> Decoder:
    """Load a checkpoint's weights for the kernels.

    ``weights``: f32, bf16, q8 or q4, to which matrices are converted; as they are by default. ``context``: the tokens
    that rotations are made for, where their scaling looks at them (dynamic, longrope); the model's own by default.

    Raises:
        CheckpointError, UnsupportedError, SpecError: the model can't be run, and why.
    """
    target.check_supported()
    check_supported(checkpoint, ())
    family = family_of(checkpoint.config)
    model = model_spec_from_config(checkpoint.config)
    check_vocabulary(model)
    check_runs(model)
    spec = family.switches(checkpoint.config, model.layers[0].k_dim)
    spec = spec if context is None else spec.for_context(context)
    num_threads = threads or 1
    packed = load_weights(checkpoint, model, family, spec, weights=weights, num_threads=num_threads)
    return Decoder(model, spec, packed, num_threads=num_threads)
