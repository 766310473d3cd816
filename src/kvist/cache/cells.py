"""Where one token's bytes stand inside a block, so that it can be moved to another one as it is.

A KV head's block holds its 16 tokens interleaved: numbers of ``width`` tokens stand side by side, as
[16 / width][count][width], codes first, then the scales (``kernels.spans`` and its like have the layouts by codec).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvist.spec.cache import BLOCK_TOKENS, head_key_bytes, head_value_bytes

_VALUE_WIDTHS = {"f32": (np.uint32, 1), "bf16": (np.uint16, 2), "int8": (np.uint8, 4), "int4": (np.uint8, 4)}
"""Type of the numbers of a value, and how many tokens stand side by side."""

_BYTES_OF_TWO = {"f32": 8, "bf16": 4, "int8": 2, "int4": 1}
"""Bytes that two numbers' codes take."""

_SCALE_TYPE = np.uint16


Places = Sequence[tuple[int, int]]
"""(block, place in it) of some tokens."""


@dataclass(frozen=True)
class Cells:
    """Numbers of a block's tokens: [16 / width][count][width] of ``dtype``, from byte ``start`` of the block on."""

    start: int
    dtype: Any
    count: int
    width: int

    def view(self, blocks: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """``blocks`` [..., bytes of a block] as [..., 16 / width, count, width]; a view."""
        num_bytes = BLOCK_TOKENS * self.count * np.dtype(self.dtype).itemsize
        numbers = blocks[..., self.start : self.start + num_bytes].view(self.dtype)
        viewed: npt.NDArray[Any] = numbers.reshape(
            *blocks.shape[:-1], BLOCK_TOKENS // self.width, self.count, self.width
        )
        return viewed


def _code_bytes(codec: str, dim: int) -> int:
    return dim * _BYTES_OF_TWO[codec] // 2


def key_cells(codec: str, dim: int) -> tuple[Cells, ...]:
    """How keys of width ``dim`` stand: four bytes of each of the 16 tokens, and the next four."""
    return _with_scales(Cells(0, np.uint32, _code_bytes(codec, dim) // 4, BLOCK_TOKENS), head_key_bytes(codec, dim))


def value_cells(codec: str, dim: int) -> tuple[Cells, ...]:
    """How values of width ``dim`` stand."""
    dtype, width = _VALUE_WIDTHS[codec]
    codes = Cells(0, dtype, _code_bytes(codec, dim) // np.dtype(dtype).itemsize, width)
    return _with_scales(codes, head_value_bytes(codec, dim))


def _with_scales(codes: Cells, head_bytes: int) -> tuple[Cells, ...]:
    """The codes, what stands after them in words of four bytes, and the scale; ``head_bytes`` are a token's in all."""
    cells, start = [codes], codes.count * np.dtype(codes.dtype).itemsize
    for dtype in (np.uint32, _SCALE_TYPE):
        count = (head_bytes - start) // np.dtype(dtype).itemsize
        if count:
            cells.append(Cells(BLOCK_TOKENS * start, dtype, count, BLOCK_TOKENS))
            start += count * np.dtype(dtype).itemsize
    return tuple(cells)


def move(blocks: npt.NDArray[np.uint8], cells: tuple[Cells, ...], sources: Places, targets: Places) -> None:
    """Move tokens within ``blocks`` [..., block, bytes]: each (block, place in it) of ``sources`` to ``targets``'."""
    for cell in cells:
        view, width = cell.view(blocks), cell.width
        for (block, at), (to_block, to) in zip(sources, targets, strict=True):
            view[..., to_block, to // width, :, to % width] = view[..., block, at // width, :, at % width]
