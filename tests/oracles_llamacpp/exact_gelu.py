"""llama.cpp with GELU computed exactly.

Its CPU code looks GELU up in a table of 16-bit floats, and has the tanh form of it for every family. That alone moves
logits by 1e-3 of a row's largest, more than reading a file wrongly might. So its own callback, which sees each result
before it is read, writes GELU's exact numbers in their place; everything else is llama.cpp's.
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

Array = np.ndarray[Any, Any]

GGML_TYPE_F32 = 0
_erf = np.vectorize(math.erf, otypes=[np.float64])


class _Tensor(ctypes.Structure):
    """ggml's ``struct ggml_tensor`` as far as its data."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
    )


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
    library.ggml_op_desc.restype = ctypes.c_char_p
    library.ggml_op_desc.argtypes = [ctypes.c_void_p]
    return library


def _numbers(address: int) -> Array:
    """A tensor's f32 numbers, innermost axis last, in its own memory."""
    tensor = _Tensor.from_address(address)
    shape = tuple(reversed(tensor.ne))
    assert tensor.type == GGML_TYPE_F32 and tensor.data, (tensor.type, shape)
    size = sum((count - 1) * stride for count, stride in zip(tensor.ne, tensor.nb, strict=True)) + 4
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(tensor.data))
    return np.lib.stride_tricks.as_strided(flat.view(np.float32), shape, tuple(reversed(tensor.nb)))


def gelu(x: Array, form: str) -> Array:
    """``form``: tanh, or erf."""
    wide = x.astype(np.float64)
    if form == "erf":
        return wide * (1 + _erf(wide / np.sqrt(2))) / 2
    return wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))) / 2


class ExactGelu:
    """``callback`` goes into the settings of a context; ``count`` is how many results it has replaced.

    Results are kept, since llama.cpp writes GELU's over its input's.
    """

    def __init__(self, form: str) -> None:
        self.form, self.count = form, 0
        self._library = _library()
        self._results: dict[int, Array] = {}
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self._see)

    def _see(self, address: int, asks: bool, _user_data: object) -> bool:
        if asks:
            return True
        tensor, name = _Tensor.from_address(address), self._library.ggml_op_desc(address)
        if name in (b"GELU", b"GEGLU"):
            self.count += 1
            result = gelu(self._results[tensor.src[0]], self.form)
            if name == b"GEGLU":
                result = result * self._results[tensor.src[1]]
            _numbers(address)[...] = result.astype(np.float32)
        if tensor.type == GGML_TYPE_F32 and tensor.data:
            self._results[address] = _numbers(address).copy()
        return True
