"""The lines of a program that compute an MLP, from the normed row to the row that its last matrix reads."""

from __future__ import annotations

from kvist.kernels import elementwise, gated, matmul
from kvist.kernels.layout import GROUP, PANEL_ROWS, padded, quantised_row_bytes
from kvist.model.desk import Multiply
from kvist.model.families import DecoderSpec
from kvist.model.inputs import Input, is_quantised_input
from kvist.model.layers import LayerWeights
from kvist.model.program import Counts, Kernels, Program, Work
from kvist.model.weights import Matrix
from kvist.spec.model import ModelSpec


class MlpLines:
    """Writes them for one model; has places of its own in the work arena. ``width`` is the padded one; 0: no MLP."""

    def __init__(
        self, work: Work, model: ModelSpec, spec: DecoderSpec, kernels: Kernels, max_rows: int, num_threads: int
    ) -> None:
        self.spec, self.kernels, self.num_threads = spec, kernels, num_threads
        has_mlp = any(model.experts_of(number) is None for number in range(len(model.layers)))
        self._mlp_width = model.mlp_width
        self.width = padded(model.mlp_width if has_mlp else 0)
        self._up_stride = 4 * self.width * (2 if spec.is_gated else 1)
        self._up = work.place(max_rows * self._up_stride)
        self._hidden = work.place(max_rows * max(self.width * 4, quantised_row_bytes(self.width)))

    def write(self, program: Program, weights: LayerWeights, rows: Input, multiply: Multiply, *, is_few: bool) -> Input:
        """Write a layer's lines; ``rows`` are normed, and what is returned is what its last matrix reads."""
        if not is_few and self.is_gated_at_once(weights):
            return self._gated(program, weights.up[0][0], rows)
        multiply(weights.up, rows, self._up, self._up_stride)
        return self._activation(program, is_few, is_quantised=is_quantised_input(weights.down))

    def is_gated_at_once(self, weights: LayerWeights) -> bool:
        """Whether gate and up are one matrix, in panels of which two are a group that the next matrix reads."""
        is_one = self.spec.is_gated and len(weights.up) == 1 and self._mlp_width % GROUP == 0
        return is_one and is_quantised_input(weights.up) and is_quantised_input(weights.down)

    def _gated(self, program: Program, matrix: Matrix, rows: Input) -> Input:
        """Gate, up and activation in one line."""
        stride = quantised_row_bytes(self.width)
        values = {
            "w": matrix.offset,
            "panels": self.width // PANEL_ROWS,
            "width": padded(matrix.width),
            "x": rows.at,
            "x_stride": rows.stride,
            "bias": matrix.bias,
            "out": self._hidden,
            "out_stride": stride,
            "stride_groups": self.num_threads,
        }
        kind = elementwise.ACTIVATIONS[self.spec.activation]
        kernel = self.kernels.number(gated.gated_kernel, matmul.FORMS[matrix.form], kind)
        program.add(kernel, Counts(fixed=self.width // GROUP), gated.GATED, values)
        return Input(self._hidden, stride, is_quantised=True)

    def _activation(self, program: Program, is_few: bool, *, is_quantised: bool) -> Input:
        stride = quantised_row_bytes(self.width) if is_quantised else self.width * 4
        segment = padded(-(-self.width // (2 * self.num_threads))) if is_few else self.width
        values = {
            "gate": self._up,
            "up": self._up + padded(self._mlp_width, 16) * 4 if self.spec.is_gated else -1,
            "stride": self._up_stride,
            "width": self._mlp_width,
            "segment": segment,
            "out": self._hidden,
            "out_stride": stride,
        }
        kind = elementwise.ACTIVATIONS[self.spec.activation]
        kernel = self.kernels.number(elementwise.activation_kernel, kind, int(is_quantised))
        program.add(kernel, Counts(row_chunks=-(-self.width // segment)), elementwise.ACT, values)
        return Input(self._hidden, stride, is_quantised)
