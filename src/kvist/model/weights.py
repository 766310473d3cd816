"""A checkpoint's tensors packed into one arena for the kernels: which matrix stands where, and in which form.

First everything is planned and checked against the file, then the arena is allocated, then it is filled in parallel.
Matrices of one role whose parts share a type are stacked into one (q, k and v; gate and up).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.files import Checkpoint, Composed, TensorInfo, find_tensor, quote
from kvist.errors import CheckpointError, UnsupportedError
from kvist.kernels import matmul, packing
from kvist.kernels.arena import new_arena
from kvist.kernels.layout import GROUP_BYTES, PANEL_ROWS, padded
from kvist.kernels.matmul import FORMS, QUANTISED
from kvist.kernels.static import Static
from kvist.model import convert
from kvist.model.kept import CODES_AS_Q8, EXACT_AS_Q8, INTEGERS, KEPT_AS

Rows = npt.NDArray[np.int64]
Order = Callable[[], Rows]
"""Makes the list of a tensor's rows in the order they are wanted, once the tensor is known to have them."""
Arena = npt.NDArray[np.uint8]
Fill = Callable[[Arena], Iterator[Callable[[], None]]]
"""Given the arena, the jobs that fill a place in it, to be run on any thread."""
ROWS_AT_ONCE, NUMBERS_AT_ONCE = 4096, 1 << 22
"""Rows that a job packs at most, and numbers that one which converts does: f32, they take 16 MiB beside the arena."""


@dataclass(frozen=True)
class Part:
    """One tensor of a matrix: ``rows`` lists its rows in the order they are wanted.

    ``slab``: of a tensor that has several transposed matrices, (which, of how many).
    """

    name: str
    type: str
    rows: Rows
    is_transposed: bool = False
    slab: tuple[int, int] = (0, 1)

    @property
    def form(self) -> str:
        """What its type becomes, unless all weights are converted."""
        return KEPT_AS[self.type]


@dataclass(frozen=True)
class Matrix:
    """[num_rows, width] in panels at ``offset``; ``bias`` is the offset of its f32 bias, -1 for none."""

    form: str
    offset: int
    num_rows: int
    width: int
    bias: int

    @property
    def num_panels(self) -> int:
        return -(-self.num_rows // PANEL_ROWS)

    @property
    def panel_bytes(self) -> int:
        return padded(self.width) // 32 * GROUP_BYTES[self.form]

    @property
    def num_bytes(self) -> int:
        return self.num_panels * self.panel_bytes


Placed = list[tuple[Matrix, int]]
"""The matrices of one role, each with the first output row that it makes."""


@dataclass(frozen=True)
class Stored:
    """A tensor's bytes, flat, and their type."""

    raw: npt.NDArray[np.uint8]
    type: str


Make = Callable[[int], npt.NDArray[np.float32]]
"""A part of a matrix by its number, f32 [rows, width]."""


class Packer:
    """Plans the arena place by place, then fills it. Places are multiples of 64 bytes.

    ``read``: the file's names of the tensors that have a place.
    """

    def __init__(self, checkpoint: Checkpoint, weights: str | None, prefix: str) -> None:
        convert.check_weights(weights)
        self._checkpoint = checkpoint
        self._weights = convert.WEIGHTS[weights] if weights else None
        self._prefix = prefix
        self._size = 0
        self._fills: list[Fill] = []
        self.read: set[str] = set()
        self.type_bytes: dict[str, int] = {}

    def _full(self, name: str) -> str:
        """The name with the file's prefix, unless it stands in the file without."""
        return name if name in self._checkpoint.tensors else self._prefix + name

    def _find(self, name: str) -> TensorInfo:
        """The tensor's description, which is thereby read."""
        info = find_tensor(self._checkpoint, self._full(name))
        self.read.add(info.name)
        return info

    def has(self, name: str) -> bool:
        return self._full(name) in self._checkpoint.tensors

    def _place(self, num_bytes: int) -> int:
        offset, self._size = self._size, padded(self._size + num_bytes, 64)
        return offset

    def constant(self, numbers: npt.NDArray[np.float32], room: int = 0) -> int:
        """Place f32 numbers of kvist's own, followed by zeros up to ``room`` numbers; returns their offset."""
        offset = self._place(4 * max(numbers.size, room))

        def fill(arena: Arena) -> Iterator[Callable[[], None]]:
            arena[offset : offset + numbers.nbytes] = np.ascontiguousarray(numbers, np.float32).view(np.uint8)
            return iter(())

        self._fills.append(fill)
        return offset

    def vector(
        self,
        name: str,
        width: int,
        order: Order | None = None,
        *,
        columns: int = 1,
        plus: float = 0.0,
        times: float = 1.0,
    ) -> int:
        """Place a norm's weight, a bias or a table of positions as f32; returns its offset.

        The numbers placed are (what is stored + ``plus``) * ``times``.
        """
        numbers = self._numbers(name, (width,) if columns == 1 else (width, columns))
        numbers = (numbers + np.float32(plus)) * np.float32(times) if (plus, times) != (0.0, 1.0) else numbers
        numbers = numbers if order is None else numbers[order()]
        return self.constant(numbers, padded(numbers.size))

    def vectors(self, names: Iterable[str], width: int) -> int:
        """Place vectors behind one another; returns the first one's offset."""
        numbers = np.concatenate([self._numbers(name, (width,)) for name in names])
        return self.constant(numbers, padded(numbers.size))

    def _numbers(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """A tensor of floats, flat."""
        info = self._find(name)
        if info.shape != shape or info.type not in convert.ELEMENT_BYTES:
            raise CheckpointError(
                f'tensor "{info.name}" has shape {info.shape} and type {info.type}; {shape} of floats is needed'
            )
        numbers: npt.NDArray[np.float32] = convert.to_f32(self._checkpoint.raw(info.name).reshape(1, -1), info.type)[0]
        return numbers

    def part(
        self,
        name: str,
        num_rows: int,
        width: int,
        order: Order | None = None,
        *,
        is_transposed: bool = False,
        may_be_longer: bool = False,
    ) -> Part:
        """Return a tensor as a part of a matrix; raises CheckpointError where its shape is another.

        Of one that ``may_be_longer`` the first ``num_rows`` are taken: vocabularies are padded with rows of no token.
        """
        info = self._find(name)
        shape = (width, num_rows) if is_transposed else (num_rows, width)
        is_longer = may_be_longer and info.shape[1:] == shape[1:] and info.shape[:1] > shape[:1]
        if info.shape != shape and not is_longer:
            raise CheckpointError(f'tensor "{info.name}" has shape {info.shape}; its config says {shape}')
        if is_transposed and info.type not in convert.ELEMENT_BYTES:
            raise CheckpointError(
                f'tensor "{info.name}" is stored transposed and has type {info.type}; floats are needed'
            )
        return Part(info.name, info.type, order() if order else np.arange(num_rows), is_transposed)

    def stacked_part(
        self,
        name: str,
        slab: tuple[int, int],
        num_rows: int,
        width: int,
        order: Order | None = None,
        *,
        is_transposed: bool = False,
    ) -> Part:
        """Return one of the matrices of a tensor that has several, (which, of how many), as a part of a matrix."""
        info, (number, count) = self._find(name), slab
        is_transposed = is_transposed and info.name not in self._checkpoint.composed  # which have outputs first
        shape = (count, width, num_rows) if is_transposed else (count, num_rows, width)
        if info.shape != shape:
            raise CheckpointError(f'tensor "{info.name}" has shape {info.shape}; its config says {shape}')
        if is_transposed and info.type not in convert.ELEMENT_BYTES:
            raise CheckpointError(
                f'tensor "{info.name}" is stored transposed and has type {info.type}; floats are needed'
            )
        rows = order() if order else np.arange(num_rows)
        if is_transposed:
            return Part(info.name, info.type, rows, is_transposed, slab)
        return Part(info.name, info.type, rows + number * num_rows)

    def row_part(self, name: str, width: int) -> Part:
        """Return a matrix of one row, which may be stored as a vector."""
        info = self._find(name)
        if info.shape not in ((width,), (1, width)):
            raise CheckpointError(f'tensor "{info.name}" has shape {info.shape}; its config says {(1, width)}')
        return Part(info.name, info.type, np.arange(1))

    def stacked_vector(self, name: str, slab: tuple[int, int], width: int, order: Order | None = None) -> int:
        """Place one of the vectors of a tensor that has several, (which, of how many), as f32; returns its offset."""
        info, (number, count) = self._find(name), slab
        if info.shape != (count, width) or info.type not in convert.ELEMENT_BYTES:
            raise CheckpointError(
                f'tensor "{info.name}" has shape {info.shape} and type {info.type}; {count} x {width} floats are needed'
            )
        numbers = convert.to_f32(self._checkpoint.raw(info.name).reshape(count, -1)[number : number + 1], info.type)[0]
        numbers = numbers if order is None else numbers[order()]
        return self.constant(numbers, padded(numbers.size))

    def matrices(
        self, parts: list[Part], width: int, biases: list[int | None], *, target: str | None = None
    ) -> list[tuple[Matrix, int]]:
        """Place parts that are used together; returns each matrix with the first output row it makes.

        Parts of one type become one matrix, whose rows start at multiples of 16 as the parts' sizes allow. Raises
        UnsupportedError where some are quantised and others not: they read the same rows, which are int8 or f32.
        """
        wanted = [target or self._weights or part.form for part in parts]
        if len({form in matmul.QUANTISED for form in wanted}) > 1:
            types = ", ".join(f"{part.name} {part.type}" for part in parts)
            raise UnsupportedError(
                f"tensors that are used together are quantised and not ({types}), which isn't supported; "
                "load all of them as one type with weights q8"
            )
        is_one = len(set(wanted)) == 1 and all(part.rows.size % PANEL_ROWS == 0 for part in parts[:-1])
        groups = [parts] if is_one else [[part] for part in parts]
        bias_groups = [biases] if is_one else [[bias] for bias in biases]
        placed, first_row = [], 0
        for group, group_biases in zip(groups, bias_groups, strict=True):
            form = target or self._weights or group[0].form
            placed.append((self._matrix(group, width, form, group_biases), first_row))
            first_row += sum(padded(part.rows.size, PANEL_ROWS) for part in group)
        return placed

    def _matrix(self, parts: list[Part], width: int, form: str, biases: list[int | None]) -> Matrix:
        num_rows = sum(part.rows.size for part in parts)
        size = padded(num_rows, PANEL_ROWS) // PANEL_ROWS * (padded(width) // 32) * GROUP_BYTES[form]
        offset = self._place(size)
        self.type_bytes[form] = self.type_bytes.get(form, 0) + size
        panel_bytes, panel = padded(width) // 32 * GROUP_BYTES[form], 0
        for part in parts:
            self._fills.append(self._filler(part, width, form, offset + panel * panel_bytes))
            panel += padded(part.rows.size, PANEL_ROWS) // PANEL_ROWS
        bias = -1
        if any(found is not None for found in biases):
            bias = self._place(4 * padded(num_rows))
            self._fills.append(
                _bias_filler([(found, part.rows.size) for found, part in zip(biases, parts, strict=True)], bias)
            )
        return Matrix(form, offset, num_rows, width, bias)

    def _filler(self, part: Part, width: int, form: str, offset: int) -> Fill:
        is_copied = part.type == form and not part.is_transposed
        most = ROWS_AT_ONCE if is_copied else max(PANEL_ROWS, NUMBERS_AT_ONCE // width // PANEL_ROWS * PANEL_ROWS)
        rows_at_once = min(ROWS_AT_ONCE, most)

        def fill(arena: Arena) -> Iterator[Callable[[], None]]:
            panel_bytes = padded(width) // 32 * GROUP_BYTES[form]
            for first in range(0, part.rows.size, rows_at_once):
                rows, at = part.rows[first : first + rows_at_once], offset + first // PANEL_ROWS * panel_bytes
                yield functools.partial(self._pack, part, rows, width, form, arena, at)

        return fill

    def _pack(self, part: Part, rows: Rows, width: int, form: str, arena: Arena, at: int) -> None:
        """Pack some rows of a part, from place ``at`` of the arena on."""
        composed = self._checkpoint.composed.get(part.name)
        if composed is not None:
            self._pack_composed(composed, rows, width, form, arena, at)
            return
        raw = self._checkpoint.raw(part.name)
        if part.type == form and not part.is_transposed:
            _pack_rows(raw, rows, width, form, arena, at)
            return
        if part.type in (*EXACT_AS_Q8, *CODES_AS_Q8) and form == "q8_0":
            to_q8 = convert.to_q8 if part.type in EXACT_AS_Q8 else convert.codes_to_q8
            packed = to_q8(_stored(raw, part, width, rows), part.type)
            _pack_rows(packed, np.arange(rows.size), width, form, arena, at)
            return
        _pack_numbers(part.name, _floats(raw, part, width, rows), form, arena, at)

    def _pack_composed(self, composed: Composed, rows: Rows, width: int, form: str, arena: Arena, at: int) -> None:
        if composed.codes is not None and INTEGERS.get(composed.info.type) == form:
            raw = convert.as_blocks(composed.codes(rows), form)
            _pack_rows(raw, np.arange(rows.size), width, form, arena, at)
        else:
            _pack_numbers(composed.info.name, composed.floats(rows), form, arena, at)

    def stored(self, name: str, shape: tuple[int, ...]) -> Stored:
        """Return a tensor's bytes and type; raises CheckpointError where its shape is another."""
        info = self._find(name)
        if info.shape != shape:
            raise CheckpointError(f'tensor "{info.name}" has shape {info.shape}; its config says {shape}')
        return Stored(self._checkpoint.raw(info.name), info.type)

    def made(self, form: str, num_parts: int, part_rows: int, width: int, make: Make) -> Matrix:
        """Place a matrix of a float form whose parts of ``part_rows`` rows are made when the arena is filled."""
        assert part_rows % PANEL_ROWS == 0 and form in convert.ELEMENT_BYTES, (part_rows, form)
        part_bytes = part_rows // PANEL_ROWS * (padded(width) // 32) * GROUP_BYTES[form]
        matrix = Matrix(form, self._place(num_parts * part_bytes), num_parts * part_rows, width, -1)
        self.type_bytes[form] = self.type_bytes.get(form, 0) + matrix.num_bytes

        def fill(arena: Arena) -> Iterator[Callable[[], None]]:
            for part in range(num_parts):
                yield functools.partial(_pack_made, make, part, form, arena, matrix.offset + part * part_bytes)

        self._fills.append(fill)
        return matrix

    @property
    def converts_to(self) -> str | None:
        """The type that all matrices are converted to; None: each keeps its own."""
        return self._weights

    def fill(self, num_threads: int) -> Arena:
        """Allocate the arena and fill it."""
        arena = new_arena(self._size + 64)
        jobs = [job for fill in self._fills for job in fill(arena)]
        with ThreadPoolExecutor(num_threads) as pool:
            for done in [pool.submit(job) for job in jobs]:
                done.result()
        return arena


def _pack_rows(raw: npt.NDArray[np.uint8], rows: Rows, width: int, form: str, arena: Arena, at: int) -> None:
    """Pack rows that are in the form already."""
    raw = raw.reshape(-1)
    raw.flags.writeable = False
    wanted = np.full(padded(rows.size, PANEL_ROWS), -1, np.int64)
    wanted[: rows.size] = rows
    bytes_a_row, num_panels = convert.row_bytes(form, width), wanted.size // PANEL_ROWS
    packing.check_pack(
        raw, bytes_a_row, wanted, arena, at, num_panels * (padded(width) // 32 * GROUP_BYTES[form]), form
    )
    packing.pack(raw, bytes_a_row, wanted, width, arena, at, 0, num_panels, Static(FORMS[form]))


def _pack_numbers(name: str, numbers: npt.NDArray[np.float32], form: str, arena: Arena, at: int) -> None:
    """Convert rows to a form; raises CheckpointError where that is 8 bits, which can't hold them."""
    if form != "q8_0":
        width = padded(numbers.shape[1]) if form in QUANTISED else numbers.shape[1]
        _pack_rows(convert.from_f32(numbers, form), np.arange(len(numbers)), width, form, arena, at)
        return
    wide = convert.widened(numbers)
    memory = wide.reshape(-1).view(np.uint8)
    packing.check_pack_numbers(memory, len(wide), wide.shape[1], arena, at)
    num_failed = packing.pack_numbers(memory, len(wide), wide.shape[1], arena, at)
    if num_failed:
        raise CheckpointError(
            f"tensor {quote(name)} holds NaN, infinity or numbers above 8 million in {num_failed} groups of 32, which "
            "8 bits with a scale can't; its file is damaged"
        )


def _stored(raw: npt.NDArray[np.uint8], part: Part, width: int, rows: Rows) -> npt.NDArray[np.uint8]:
    """The wanted rows as they are stored [rows, bytes]."""
    stored = raw.reshape(-1, convert.row_bytes(part.type, width))
    first = int(rows[0])
    if np.array_equal(rows, np.arange(first, first + rows.size)):
        return stored[first : first + rows.size]
    return np.ascontiguousarray(stored[rows])


def _pack_made(make: Make, part: int, form: str, arena: Arena, at: int) -> None:
    """Make a part of a matrix and pack it, from place ``at`` of the arena on."""
    numbers = make(part)
    raw = convert.from_f32(np.ascontiguousarray(numbers), form)
    _pack_rows(raw, np.arange(len(numbers)), numbers.shape[1], form, arena, at)


def _floats(raw: npt.NDArray[np.uint8], part: Part, width: int, rows: Rows) -> npt.NDArray[np.float32]:
    """The wanted rows as f32 [rows, width]."""
    if part.is_transposed:
        element = convert.ELEMENT_BYTES[part.type]
        number, count = part.slab
        columns = raw.reshape(count, width, -1, element)[number][:, rows].reshape(width, -1)
        return np.ascontiguousarray(convert.to_f32(np.ascontiguousarray(columns), part.type).T)
    return convert.to_f32(_stored(raw, part, width, rows), part.type)


def _bias_filler(biases: list[tuple[int | None, int]], offset: int) -> Fill:
    """Copy the parts' biases, already placed, behind one another."""

    def fill(arena: Arena) -> Iterator[Callable[[], None]]:
        at = offset
        for source, count in biases:
            if source is not None:
                arena[at : at + 4 * count] = arena[source : source + 4 * count]
            at += 4 * count
        return iter(())

    return fill
