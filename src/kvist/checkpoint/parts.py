"""What the readers of composed matrices share: the tensors beside each other, and what they decode to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.codes import Codes, Floats, Rows
from kvist.checkpoint.files import Composed, TensorInfo, quote
from kvist.errors import CheckpointError

_DTYPES = {"i8": "i1", "u8": "u1", "i32": "<i4", "i64": "<i8", "f16": "<f2", "f32": "<f4", "u32": "<u4"}


def of_codes(info: TensorInfo, part_names: tuple[str, ...], codes: Callable[[Rows], Codes]) -> Composed:
    return Composed(info, part_names, lambda rows: codes(rows).to_f32(), codes)


class Parts:
    """The tensors of a directory, for those who know what some of them are together."""

    def __init__(
        self,
        tensors: Mapping[str, TensorInfo],
        view: Callable[[str], npt.NDArray[np.uint8]],
        config: Mapping[str, object],
    ) -> None:
        self.tensors, self._view = tensors, view
        quantization = config.get("quantization_config")
        self.settings: Mapping[str, object] = quantization if isinstance(quantization, Mapping) else {}

    def info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise CheckpointError(
                f"the model has no tensor {quote(name)}, which quantised weights need; fetch it again"
            )
        return self.tensors[name]

    def has(self, name: str) -> bool:
        return name in self.tensors

    def check(self, name: str, types: tuple[str, ...], *shapes: tuple[int, ...]) -> TensorInfo:
        """Return a tensor's description; raises CheckpointError where its type or shape is none of these."""
        info = self.info(name)
        if info.type not in types or info.shape not in shapes:
            allowed = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
            raise CheckpointError(
                f"tensor {quote(name)} has type {info.type} and shape {info.shape}; {' or '.join(types)} of shape "
                f"{allowed} is needed"
            )
        return info

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """A tensor of a type that NumPy has, as a read-only array."""
        info = self.tensors[name]
        return self._view(name).view(_DTYPES[info.type]).reshape(info.shape)

    def bytes(self, name: str) -> npt.NDArray[np.uint8]:
        info = self.tensors[name]
        return self._view(name).reshape(info.shape)

    def floats(self, name: str) -> Floats:
        """A tensor of floats as f32; meant for scales."""
        info = self.tensors[name]
        if info.type == "bf16":
            bits = self._view(name).view("<u2").astype(np.uint32) << 16
            return bits.view(np.float32).reshape(info.shape)
        return self.array(name).astype(np.float32)

    def matrix(self, name: str, kind: str, shape: tuple[int, ...], part_names: tuple[str, ...]) -> TensorInfo:
        """What the parts look like as one tensor."""
        num_bytes = sum(self.tensors[part].num_bytes for part in part_names)
        assert math.prod(shape) > 0, shape
        return TensorInfo(name, kind, shape, num_bytes)

    def present(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in self.tensors)


FLOATS = ("f32", "f16", "bf16")
