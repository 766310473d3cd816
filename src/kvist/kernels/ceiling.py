"""What this machine can do at most: bytes a second read from memory, integer dot operations a second from registers.

Measured with the same team of threads that runs a model, so that a share of it means something. An operation is a
multiply or an add. Several ways of reading are tried and the best counts.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvist.kernels import jit, matmul, target
from kvist.kernels.arena import new_arena
from kvist.kernels.jit import SIGNATURE, inline, kernel
from kvist.kernels.layout import (
    CHUNKS,
    CONTROL_HEAD,
    COUNTERS,
    FIELDS,
    FIRST_FIELD,
    GROUP_BYTES,
    HAS_BARRIER,
    LANES,
    NUM_ROWS,
    SCRATCH,
    SCRATCH_STRIDE,
    TABLE_HEAD,
    WORK_HEAD,
    quantised_row_bytes,
)
from kvist.kernels.simd import (
    add_i32,
    dot4,
    dot4_nibbles,
    hide,
    load_i32,
    low_nibbles,
    prefetch,
    put_i32,
    splat_i32,
    static,
    sum_lanes_i32,
    value,
)
from kvist.kernels.team import Team

CHUNK_BYTES = 1 << 20
DOT_ROUNDS = 20_000
HAS_DOT = target.current().name == "avx512vnni"
"""Whether there is an instruction for dots, and 32 registers."""
DOT_WIDTH = 12 if HAS_DOT else 5
"""Independent sums in flight: more than two multipliers of latency 5 can hold, or than there are registers for."""
SMALLEST_BYTES = 256 << 20
SCRATCH_AT, SCRATCH_BYTES = WORK_HEAD + (16 << 20), 64 << 10
"""Where the threads' scratch starts in the work arena, and a thread's."""
ORDINARY = 0x38
"""A byte that makes ordinary numbers, in f32 and in f16: some processors are a hundred times slower at tiny ones."""


@inline
def read(weights, start, ahead):
    """The sum of a chunk's int32 numbers, four vectors at a time, asked for ``ahead`` bytes in advance (0: not)."""
    a, b = splat_i32(np.int32(0), LANES), splat_i32(np.int32(0), LANES)
    c, d = splat_i32(np.int32(0), LANES), splat_i32(np.int32(0), LANES)
    for at in range(start, start + CHUNK_BYTES, 256):
        if value(ahead) > 0:
            prefetch(weights, at + value(ahead))
            prefetch(weights, at + value(ahead) + 64)
            prefetch(weights, at + value(ahead) + 128)
            prefetch(weights, at + value(ahead) + 192)
        a = add_i32(a, load_i32(weights, at, LANES))
        b = add_i32(b, load_i32(weights, at + 64, LANES))
        c = add_i32(c, load_i32(weights, at + 128, LANES))
        d = add_i32(d, load_i32(weights, at + 192, LANES))
    return sum_lanes_i32(add_i32(add_i32(a, b), add_i32(c, d)))


@inline
def read_two_streams(weights, start):
    """The same from the two halves of a chunk at once."""
    a, b = splat_i32(np.int32(0), LANES), splat_i32(np.int32(0), LANES)
    half = CHUNK_BYTES // 2
    for at in range(start, start + half, 128):
        a = add_i32(a, add_i32(load_i32(weights, at, LANES), load_i32(weights, at + 64, LANES)))
        b = add_i32(b, add_i32(load_i32(weights, at + half, LANES), load_i32(weights, at + half + 64, LANES)))
    return sum_lanes_i32(add_i32(a, b))


def read_kernel(ahead: int) -> Any:
    """The kernel that reads a megabyte a chunk; ``ahead`` below 0 reads two streams."""

    @kernel(SIGNATURE)
    def run_read(chunk, thread, line, program, table, weights, cache, work):
        if ahead < 0:
            found = read_two_streams(weights, chunk * CHUNK_BYTES)
        else:
            found = read(weights, chunk * CHUNK_BYTES, static(ahead))
        put_i32(work, WORK_HEAD + thread * 64, np.int32(found))

    return run_read


@inline
def dot_rounds(work, at):
    """DOT_ROUNDS times DOT_WIDTH dot products of registers."""
    u, s = load_i32(work, at, LANES), load_i32(work, at + 64, LANES)
    a, b, c, d = u, s, add_i32(u, s), add_i32(u, u)
    e, f, g, h = add_i32(s, s), add_i32(a, c), add_i32(b, c), add_i32(c, c)
    w, x, y, z = add_i32(a, d), add_i32(b, d), add_i32(c, d), add_i32(d, d)
    for _ in range(DOT_ROUNDS):
        a, b, c, d = dot4(a, u, s), dot4(b, u, s), dot4(c, u, s), dot4(d, u, s)
        e, f, g, h = dot4(e, u, s), dot4(f, u, s), dot4(g, u, s), dot4(h, u, s)
        w, x, y, z = dot4(w, u, s), dot4(x, u, s), dot4(y, u, s), dot4(z, u, s)
    a, e, w = add_i32(add_i32(a, b), add_i32(c, d)), add_i32(add_i32(e, f), add_i32(g, h)), add_i32(add_i32(w, x), z)
    return sum_lanes_i32(add_i32(add_i32(a, e), add_i32(w, y)))


@inline
def nibble_rounds(work, at):
    """The same of bytes below 16, the cheapest where a dot product takes several instructions."""
    u, s = low_nibbles(load_i32(work, at, LANES)), load_i32(work, at + 64, LANES)
    a, b, c, d, e = u, s, add_i32(u, s), add_i32(u, u), add_i32(s, s)
    for _ in range(DOT_ROUNDS):
        u = hide(u)
        a = dot4_nibbles(a, u, s)
        u = hide(u)
        b = dot4_nibbles(b, u, s)
        u = hide(u)
        c = dot4_nibbles(c, u, s)
        u = hide(u)
        d = dot4_nibbles(d, u, s)
        u = hide(u)
        e = dot4_nibbles(e, u, s)
    return sum_lanes_i32(add_i32(add_i32(add_i32(a, b), add_i32(c, d)), e))


rounds_of: Any = dot_rounds if HAS_DOT else nibble_rounds


def dot_kernel() -> Any:
    """The kernel of a register-only loop of integer dot products."""

    @kernel(SIGNATURE)
    def run_dots(chunk, thread, line, program, table, weights, cache, work):
        found = rounds_of(work, WORK_HEAD + 1024 + thread * 128)
        put_i32(work, WORK_HEAD + thread * 64, np.int32(found))

    return run_dots


def _ordinary(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Bytes that make ordinary numbers."""
    arena = new_arena(num_bytes)
    arena[:] = ORDINARY
    return arena


def _best_s(
    team: Team, compiled: Any, chunks: int, weights: Any, rounds: int, fields: tuple[int, ...] = (), rows: int = 0
) -> float:
    """Seconds of the fastest of ``rounds`` runs of one line, after a warm-up."""
    program = np.zeros((1, FIELDS), np.int64)
    program[0, HAS_BARRIER] = 1
    program[0, FIRST_FIELD : FIRST_FIELD + len(fields)] = fields
    table, cache = np.zeros(TABLE_HEAD, np.int64), np.zeros(64, np.uint8)
    table[NUM_ROWS] = rows
    work = _ordinary(SCRATCH_AT + team.num_threads * SCRATCH_BYTES)
    table[SCRATCH], table[SCRATCH_STRIDE] = SCRATCH_AT, SCRATCH_BYTES
    kernels, times = jit.addresses([compiled]), []
    for _ in range(rounds + 1):
        control = np.zeros(CONTROL_HEAD + COUNTERS, np.int64)
        control[CONTROL_HEAD + CHUNKS] = chunks
        start = time.perf_counter()
        team.run(kernels, program, control, table, weights, cache, work)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def last_level_cache_bytes() -> int:
    """Bytes of the largest cache that the system lists for the first core; 32 MiB where it lists none."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1))
    return max(sizes, default=32 << 20)


def read_bandwidth(num_threads: int, rounds: int = 7) -> float:
    """Bytes a second that ``num_threads`` threads read from memory.

    The best of several kernels, over at least four times the last-level cache.
    """
    size = max(SMALLEST_BYTES, 4 * last_level_cache_bytes()) // CHUNK_BYTES * CHUNK_BYTES
    memory = _ordinary(size + CHUNK_BYTES)
    team = Team(num_threads)
    try:
        times = [
            _best_s(team, read_kernel(ahead), size // CHUNK_BYTES, memory, rounds) for ahead in (0, 1024, 4096, -1)
        ]
    finally:
        team.close()
    return size / min(times)


def int_dot_peak(num_threads: int, rounds: int = 7) -> float:
    """Operations a second of integer dot products on registers, ``num_threads`` threads."""
    chunks = 8 * num_threads
    team = Team(num_threads)
    try:
        seconds = _best_s(team, dot_kernel(), chunks, np.zeros(64, np.uint8), rounds)
    finally:
        team.close()
    return chunks * DOT_ROUNDS * DOT_WIDTH * LANES * 4 * 2 / seconds


def matmul_rate(num_threads: int, rounds: int = 7) -> float:
    """Operations a second of the 4-bit matmul itself: 256 rows times a matrix of [3072, 576], from cache."""
    rows, width, panels = 256, 576, 192
    weights = _ordinary(panels * (width // 32) * GROUP_BYTES["q4_1"])
    x_stride = quantised_row_bytes(width)
    values = {
        "w": 0,
        "panels": panels,
        "width": width,
        "x": WORK_HEAD,
        "x_stride": x_stride,
        "out": WORK_HEAD + rows * x_stride,
        "out_stride": panels * 64,
        "bias": -1,
        "adds": 0,
        "is_last": 0,
        "chunk_panels": 2,
        "chunk_rows": rows,
        "stride_panels": 2 * num_threads,
    }
    fields = tuple(values[name] for name in matmul.MM._fields)
    team = Team(num_threads)
    try:
        seconds = _best_s(team, matmul.matmul_kernel(matmul.Q4_1), panels // 2, weights, rounds, fields, rows)
    finally:
        team.close()
    return 2 * rows * width * panels * 16 / seconds
