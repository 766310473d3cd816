"""Memory for kernels: flat bytes that begin where a cache line does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LINE_BYTES = 64
"""A cache line, and the widest vector. One that lies across two lines takes two loads, a third of all that a matrix
product does; places in an arena are multiples of this, so only its start is left to look after."""


def new_arena(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes, whose pages the system gives when they are touched."""
    room = np.zeros(num_bytes + LINE_BYTES, np.uint8)
    start = -room.ctypes.data % LINE_BYTES
    return room[start : start + num_bytes]
