"""The lines of a program that a layer with experts has: where their activations stand, and which kernel does what.

The router reads float rows. Every pick of a row has a place, in which the row, what its expert makes of it, and the
result stand; ``kernels.experts`` says how picks get their places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvist.kernels import elementwise, experts, matmul
from kvist.kernels.layout import padded, quantised_row_bytes
from kvist.model.expert_weights import ExpertMatrix, ExpertWeights, PlacedExperts
from kvist.model.families.spec import DecoderSpec
from kvist.model.inputs import Input, are_quantised, is_quantised_input
from kvist.model.program import Counts, Kernels, Program, Work
from kvist.model.weights import Placed
from kvist.spec.experts import Experts

CHUNK_BYTES = 512 << 10
"""Most weights that a chunk of a pass of few rows reads."""


@dataclass(frozen=True)
class Site:
    """What of the writer's a layer with experts uses.

    ``branch``: where results go, rows ``wide`` numbers apart: the residual stream, to which they are added at once
    (``adds``), or a place beside it. ``multiply`` writes the lines that multiply rows with matrices.
    """

    branch: int
    adds: bool
    wide: int
    width: int
    max_rows: int
    num_threads: int
    kernels: Kernels
    spec: DecoderSpec
    multiply: Callable[[Program, Placed, Input, int, int, bool], None]


class ExpertLines:
    """Writes layers with experts; ``kinds`` are those that the model has."""

    def __init__(self, site: Site, kinds: set[Experts], work: Work) -> None:
        self.site = site
        rows, wide = site.max_rows, site.wide
        self.pairs_most = rows * max(kind.chosen for kind in kinds)
        most = max(kind.number for kind in kinds)
        inner, shared = (padded(max(getattr(kind, name) for kind in kinds)) for name in ("width", "shared_width"))
        self.inner, self.shared_inner = inner, shared
        self.routed = work.place(rows * wide * 4)
        self.logits_stride = 4 * padded(most, 16)
        self.logits, self.gate = work.place(rows * self.logits_stride), work.place(rows * 64)
        self.picks, self.gains, self.places, self.pairs = (work.place(4 * self.pairs_most) for _ in range(4))
        self.active = work.place(4 + 12 * most)
        self.spread = work.place(self.pairs_most * _row_bytes(wide))
        self.up, self.up_stride = work.place(self.pairs_most * 8 * inner), 8 * inner
        self.hidden = work.place(self.pairs_most * _row_bytes(inner))
        self.results = work.place(self.pairs_most * wide * 4)
        self.shared_up, self.shared_hidden = work.place(rows * 8 * shared), work.place(rows * _row_bytes(shared))
        self.shared_results = work.place(rows * wide * 4 if shared else 0)
        multiplied = matmul.scratch_bytes(max(wide, inner, shared))
        self.scratch_bytes = max(4 * inner, 4 * shared, multiplied, experts.route_scratch_bytes(most), 4 * most)

    @property
    def floats(self) -> Input:
        """Rows for the router."""
        return Input(self.routed, self.site.wide * 4, is_quantised=False)

    def write(self, program: Program, weights: ExpertWeights, rows: tuple[Input, Input], is_few: bool) -> None:
        """All of a layer after its norm; ``rows`` are the normed ones as f32 and, where any matrix wants that, int8."""
        floats, own = rows[0], rows[are_quantised(matrix.first for matrix, _ in weights.up)]
        self.site.multiply(program, weights.router, floats, self.logits, self.logits_stride, is_few)
        self._route(program, weights)
        self._sort(program, weights.experts)
        own = self._spread(program, weights.experts, own)
        self._multiply(program, weights, weights.up, own, self.up, self.up_stride, is_few)
        hidden = self._activation(program, weights, is_few)
        self._multiply(program, weights, weights.down, hidden, self.results, self.site.wide * 4, is_few)
        if weights.shared_up:
            self._shared(program, weights, rows, is_few)
        self._combine(program, weights)

    def _route(self, program: Program, weights: ExpertWeights) -> None:
        routing = self.site.spec.routing
        assert routing is not None
        values = {
            "logits": self.logits,
            "stride": self.logits_stride,
            "experts": weights.experts.number,
            "chosen": weights.experts.chosen,
            "scores": experts.SCORES[routing.scores],
            "is_normed": routing.is_normed,
            "scale": weights.scale,
            "bias": weights.selection_bias,
            "groups": routing.num_groups,
            "kept_groups": routing.num_kept_groups,
            "group_best": routing.group_best,
            "picks": self.picks,
            "gains": self.gains,
        }
        program.add(self.site.kernels.number(experts.route_kernel), Counts(row_chunks=1), experts.ROUTE, values)

    def _sort(self, program: Program, kind: Experts) -> None:
        values = {
            "experts": kind.number,
            "chosen": kind.chosen,
            "picks": self.picks,
            "places": self.places,
            "pairs": self.pairs,
            "active": self.active,
        }
        program.add(self.site.kernels.number(experts.sort_kernel), Counts(fixed=1), experts.SORT, values)

    def _spread(self, program: Program, kind: Experts, rows: Input) -> Input:
        size = quantised_row_bytes(self.site.wide) if rows.is_quantised else self.site.wide * 4
        values = {
            "x": rows.at,
            "stride": rows.stride,
            "row_bytes": size,
            "chosen": kind.chosen,
            "places": self.places,
            "out": self.spread,
        }
        program.add(self.site.kernels.number(experts.spread_kernel), Counts(row_chunks=1), experts.SPREAD, values)
        return Input(self.spread, size, rows.is_quantised)

    def _multiply(
        self,
        program: Program,
        weights: ExpertWeights,
        placed: PlacedExperts,
        rows: Input,
        out: int,
        stride: int,
        is_few: bool,
    ) -> None:
        """Every place's row times its expert's matrices of a role.

        There are chunks for each pick of a few rows, or for every expert; those past the active ones do nothing.
        """
        for number, (matrix, first_row) in enumerate(placed, start=1):
            first = matrix.first
            across = self._across(weights.experts, matrix, is_few)
            chunk_panels = -(-first.num_panels // across)
            across = -(-first.num_panels // chunk_panels)
            values = {
                "w": first.offset,
                "w_stride": matrix.stride,
                "panels": first.num_panels,
                "width": padded(first.width),
                "x": rows.at,
                "x_stride": rows.stride,
                "out": out + first_row * 4,
                "out_stride": stride,
                "bias": first.bias,
                "bias_stride": matrix.bias_stride,
                "adds": 0,
                "chunk_panels": chunk_panels,
                "active": self.active,
                "experts": weights.experts.number,
                "chosen": weights.experts.chosen,
            }
            kernel = self.site.kernels.number(experts.expert_matmul_kernel, matmul.FORMS[first.form])
            kind = weights.experts
            counts = Counts(rows=kind.chosen * across) if is_few else Counts(fixed=kind.number * across)
            program.add(kernel, counts, experts.EMM, values, has_barrier=number == len(placed))

    def _across(self, kind: Experts, matrix: ExpertMatrix, is_few: bool) -> int:
        """Chunks an expert: of few rows two a thread in all, or more of half a megabyte; of many a few."""
        panels, threads = matrix.first.num_panels, self.site.num_threads
        if is_few:
            return min(panels, max(-(-2 * threads // kind.chosen), -(-matrix.first.num_bytes // CHUNK_BYTES)))
        return min(panels, max(2, -(-16 * threads // kind.number)))

    def _activation(self, program: Program, weights: ExpertWeights, is_few: bool) -> Input:
        kind, is_quantised = weights.experts, are_quantised(matrix.first for matrix, _ in weights.down)
        inner = padded(kind.width)
        stride = quantised_row_bytes(inner) if is_quantised else inner * 4
        segment = padded(-(-inner // -(-2 * self.site.num_threads // kind.chosen))) if is_few else inner
        values = {
            "gate": self.up,
            "up": self.up + padded(kind.width, 16) * 4,
            "stride": self.up_stride,
            "width": kind.width,
            "segment": segment,
            "out": self.hidden,
            "out_stride": stride,
            "pairs": self.pairs,
            "chosen": kind.chosen,
        }
        activation = elementwise.ACTIVATIONS[self.site.spec.activation]
        kernel = self.site.kernels.number(experts.expert_activation_kernel, activation, int(is_quantised))
        program.add(kernel, Counts(rows=kind.chosen * -(-inner // segment)), experts.EACT, values)
        return Input(self.hidden, stride, is_quantised)

    def _shared(self, program: Program, weights: ExpertWeights, rows: tuple[Input, Input], is_few: bool) -> None:
        """The shared expert, an MLP like any other, whose result stands apart."""
        kind, wants_codes = weights.experts, is_quantised_input(weights.shared_down)
        inner, stride = padded(kind.shared_width), 8 * padded(kind.shared_width)
        if weights.shared_gate:
            self.site.multiply(program, weights.shared_gate, rows[0], self.gate, 64, is_few)
        own = rows[is_quantised_input(weights.shared_up)]
        self.site.multiply(program, weights.shared_up, own, self.shared_up, stride, is_few)
        values = {
            "gate": self.shared_up,
            "up": self.shared_up + padded(kind.shared_width, 16) * 4,
            "stride": stride,
            "width": kind.shared_width,
            "segment": inner,
            "out": self.shared_hidden,
            "out_stride": quantised_row_bytes(inner) if wants_codes else inner * 4,
        }
        activation = elementwise.ACTIVATIONS[self.site.spec.activation]
        kernel = self.site.kernels.number(elementwise.activation_kernel, activation, int(wants_codes))
        program.add(kernel, Counts(row_chunks=1), elementwise.ACT, values)
        hidden = Input(self.shared_hidden, values["out_stride"], wants_codes)
        self.site.multiply(program, weights.shared_down, hidden, self.shared_results, self.site.wide * 4, is_few)

    def _combine(self, program: Program, weights: ExpertWeights) -> None:
        values = {
            "x": self.site.branch,
            "adds": self.site.adds,
            "stride": self.site.wide * 4,
            "width": self.site.width,
            "chosen": weights.experts.chosen,
            "places": self.places,
            "gains": self.gains,
            "y": self.results,
            "y_stride": self.site.wide * 4,
            "shared": self.shared_results if weights.shared_up else -1,
            "shared_stride": self.site.wide * 4,
            "gate": self.gate if weights.shared_gate else -1,
            "gate_stride": 64,
        }
        program.add(self.site.kernels.number(experts.combine_kernel), Counts(row_chunks=1), experts.COMBINE, values)


def wants_codes(weights: ExpertWeights) -> bool:
    """Whether any matrix that reads a layer's normed rows multiplies int8."""
    routed = are_quantised(matrix.first for matrix, _ in weights.up)
    return routed or (bool(weights.shared_up) and is_quantised_input(weights.shared_up))


def _row_bytes(width: int) -> int:
    """Room for a row as f32 or quantised."""
    return max(width * 4, quantised_row_bytes(width))
