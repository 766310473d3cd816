"""The matrices of a layer with experts: found in the checkpoint by one of the format's sets of names, and placed.

An expert's matrices are packed as any other, one expert behind the other, so that all of a kind are the same distance
apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kvist.errors import CheckpointError, UnsupportedError
from kvist.model.convert import ELEMENT_BYTES
from kvist.model.families.spec import ExpertNames, RoutingSpec
from kvist.model.weights import Matrix, Order, Packer, Part, Placed
from kvist.spec.experts import Experts


@dataclass(frozen=True)
class ExpertMatrix:
    """A matrix that every expert has: the ``first`` one's, and how many bytes on the next one's and its bias stand."""

    first: Matrix
    stride: int
    bias_stride: int


PlacedExperts = list[tuple[ExpertMatrix, int]]
"""The matrices of one role, each with the first output row that it makes."""


@dataclass(frozen=True)
class ExpertWeights:
    """A layer's experts. ``selection_bias`` (-1: none) and ``scale`` are offsets; what isn't there is empty."""

    experts: Experts
    router: Placed
    selection_bias: int
    scale: int
    up: PlacedExperts
    down: PlacedExperts
    shared_up: Placed
    shared_down: Placed
    shared_gate: Placed


def find_experts(
    packer: Packer,
    sets: tuple[ExpertNames, ...],
    number: int,
    experts: Experts,
    width: int,
    routing: RoutingSpec,
    *,
    has_biases: bool,
) -> ExpertWeights:
    """Find and place the experts of layer ``number``; ``width`` is the model's.

    Raises:
        CheckpointError: a tensor is missing or of the wrong shape.
        UnsupportedError: experts are of unlike types.
    """
    names = next((names for names in sets if _is_there(packer, names, number)), sets[0])
    finder = _Experts(packer, _of_layer(names, number), experts, width, has_biases)
    shared_up, shared_down, shared_gate = finder.shared()
    return ExpertWeights(
        experts=experts,
        router=finder.router(),
        selection_bias=finder.selection_bias(),
        scale=packer.constant(np.array([routing.scale], np.float32)),
        up=_stacked([finder.up(expert) for expert in range(experts.number)], number),
        down=_stacked([finder.down(expert) for expert in range(experts.number)], number),
        shared_up=shared_up,
        shared_down=shared_down,
        shared_gate=shared_gate,
    )


def _is_there(packer: Packer, names: ExpertNames, number: int) -> bool:
    return all(packer.has(name.format(n=number, e=0)) for name in (names.down, *names.up))


def _of_layer(names: ExpertNames, number: int) -> ExpertNames:
    """The names of one layer; experts' keep their {e}."""

    def of(name: str) -> str:
        return name.replace("{n}", str(number))

    return replace(
        names,
        router=of(names.router),
        up=tuple(map(of, names.up)),
        down=of(names.down),
        selection_bias=of(names.selection_bias),
        shared_up=tuple(map(of, names.shared_up)),
        shared_down=of(names.shared_down),
        shared_gate=of(names.shared_gate),
    )


class _Experts:
    """Finds one layer's tensors."""

    def __init__(self, packer: Packer, names: ExpertNames, experts: Experts, width: int, has_biases: bool) -> None:
        self.packer, self.names, self.experts, self.width, self.has_biases = packer, names, experts, width, has_biases

    def router(self) -> Placed:
        """The router stays in floats: a choice is worth more than the bytes."""
        bias = self.names.router.removesuffix(".weight") + ".bias"
        if self.has_biases and not self.packer.has(bias):
            raise _missing(bias)
        number = self.experts.number
        found = self.packer.vector(bias, number) if self.packer.has(bias) else None
        return self._floats(self.packer.part(self.names.router, number, self.width), found)

    def _floats(self, part: Part, bias: int | None = None) -> Placed:
        target = part.form if part.form in ELEMENT_BYTES else "f32"
        return self.packer.matrices([part], self.width, [bias], target=target)

    def selection_bias(self) -> int:
        name, number = self.names.selection_bias, self.experts.number
        if not name or not self.packer.has(name):
            return -1
        return self.packer.vector(name, number)

    def up(self, expert: int) -> Placed:
        """Gate and up of one expert, of two tensors or of the halves of one."""
        names, inner, halves = self.names.up, self.experts.width, self._halves()
        parts, biases = [], []
        for name, (size, order) in zip(names * (2 // len(names)), halves, strict=True):
            parts.append(self._part(name, expert, size, self.width, order))
            biases.append(self._bias(name, expert, size, order))
        assert sum(part.rows.size for part in parts) == 2 * inner, (len(parts), inner)
        return self.packer.matrices(parts, self.width, biases)

    def _halves(self) -> list[tuple[int, Order | None]]:
        """For gate and for up: the rows of the tensor, and which of them."""
        inner = self.experts.width
        if len(self.names.up) == 2:
            return [(inner, None), (inner, None)]
        ends = ((0, 2 * inner, 2), (1, 2 * inner, 2)) if self.names.is_interleaved else ((0, inner), (inner, 2 * inner))
        return [(2 * inner, partial(np.arange, *end)) for end in ends]

    def down(self, expert: int) -> Placed:
        name, inner = self.names.down, self.experts.width
        part = self._part(name, expert, self.width, inner, None)
        return self.packer.matrices([part], inner, [self._bias(name, expert, self.width, None)])

    def _part(self, name: str, expert: int, size: int, width: int, order: Order | None) -> Part:
        if "{e}" in name:
            return self.packer.part(name.replace("{e}", str(expert)), size, width, order)
        slab = expert, self.experts.number
        return self.packer.stacked_part(name, slab, size, width, order, is_transposed=self.names.is_transposed)

    def _bias(self, name: str, expert: int, size: int, order: Order | None) -> int | None:
        bias = name.removesuffix(".weight") + self.names.bias_ending
        own = bias.replace("{e}", str(expert))
        if not self.packer.has(own):
            if self.has_biases:
                raise _missing(own)
            return None
        if own != bias:
            return self.packer.vector(own, size, order)
        return self.packer.stacked_vector(bias, (expert, self.experts.number), size, order)

    def shared(self) -> tuple[Placed, Placed, Placed]:
        """The shared expert's matrices, and its gate; empty where there is none."""
        names, inner, width = self.names, self.experts.shared_width, self.width
        if not inner:
            return [], [], []
        parts = [self.packer.part(name, inner, width) for name in names.shared_up]
        return (
            self.packer.matrices(parts, width, [None] * len(parts)),
            self.packer.matrices([self.packer.part(names.shared_down, width, inner)], inner, [None]),
            self._gate() if names.shared_gate else [],
        )

    def _gate(self) -> Placed:
        """A matrix of one row, which a file may have as a vector."""
        return self._floats(self.packer.row_part(self.names.shared_gate, self.width))


def _missing(name: str) -> CheckpointError:
    return CheckpointError(f'the file has no tensor "{name}", which its config says is there; it is incomplete')


def _stacked(placed: list[Placed], number: int) -> PlacedExperts:
    """The experts' matrices, one expert behind the other, by the first one's and the distance."""
    found = []
    for role, (first, first_row) in enumerate(placed[0]):
        matrices = [expert[role][0] for expert in placed if len(expert) == len(placed[0])]
        if len(matrices) < len(placed) or {matrix.form for matrix in matrices} != {first.form}:
            raise UnsupportedError(
                f"the experts of layer {number} are stored as unlike types, which isn't supported; load all of them as "
                "one type with weights q8"
            )
        second = matrices[1] if len(matrices) > 1 else first
        stride, bias_stride = second.offset - first.offset, second.bias - first.bias
        for expert, matrix in enumerate(matrices):
            assert matrix.offset == first.offset + expert * stride, (number, expert, matrix.offset)
            assert matrix.bias == first.bias + expert * bias_stride, (number, expert, matrix.bias)
        found.append((ExpertMatrix(first, stride, bias_stride), first_row))
    return found
