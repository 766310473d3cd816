"""Rows of a matrix as whole numbers with zero points and scales."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
GROUP = 32
"""Inputs that share a scale in kvist's forms."""


@dataclass(frozen=True)
class Codes:
    """Rows of a matrix as whole numbers: (``codes`` - ``zeros``) x ``scales``.

    ``codes`` int16 [rows, width]; ``zeros`` int16 and ``scales`` f32 [rows, width / 32].
    """

    codes: npt.NDArray[np.int16]
    zeros: npt.NDArray[np.int16]
    scales: Floats

    def to_f32(self) -> Floats:
        groups = (self.codes.reshape(*self.zeros.shape, GROUP) - self.zeros[..., None]).astype(np.float32)
        numbers: Floats = (groups * self.scales[..., None]).reshape(self.codes.shape)
        return numbers
