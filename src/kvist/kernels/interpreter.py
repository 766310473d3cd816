"""Runs a program with a team: each thread claims a chunk, does it, counts it done, and goes on when the count is full.

A thread moves to the next instruction when all chunks are *done*, not when every thread has arrived, so that one that
the system has put to sleep between chunks delays nobody. A claim is an atomic add; a wait spins for some microseconds,
then offers its core. The control block is fresh for each pass: a thread that wakes late finds nothing left and touches
nothing.
"""

from __future__ import annotations

import numpy as np

from kvist.kernels.jit import inline, kernel
from kvist.kernels.layout import ABORT, CHUNKS, CLAIMED, CONTROL_HEAD, COUNTERS, DONE, FIELDS, HAS_BARRIER, KERNEL
from kvist.kernels.simd import atomic_load, call_kernel, fetch_add, pause, prefetch, yield_core

SPINS = 2000
"""Pauses before a waiting thread offers its core: some tens of microseconds."""


@inline
def wait(control, counter):
    """Wait until a line's chunks are all done; returns False when the pass was aborted."""
    spins = 0
    while atomic_load(control, counter + DONE) < control[counter + CHUNKS]:
        if atomic_load(control, ABORT):
            return False
        pause()
        spins += 1
        if spins >= SPINS:
            yield_core()
    return True


@inline
def ask_for_line(program, control, line):
    """Ask for what the next line is read from: weights have swept it out of the caches since the last pass."""
    for field in range(0, FIELDS, 8):
        prefetch(program, line * FIELDS + field)
    prefetch(control, CONTROL_HEAD + line * COUNTERS)
    prefetch(control, CONTROL_HEAD + line * COUNTERS + DONE)


@kernel()
def run(kernels, thread, program, control, table, weights, cache, work):
    """Run a program from its first line to its last; returns False when it was aborted.

    ``kernels`` holds an address for each kernel number (``jit.addresses``).
    """
    first_open = 0
    for line in range(program.shape[0]):
        counter = CONTROL_HEAD + line * COUNTERS
        ask_for_line(program, control, line + 2)
        chunks = control[counter + CHUNKS]
        while atomic_load(control, counter + CLAIMED) < chunks:
            if atomic_load(control, ABORT):
                return False
            chunk = fetch_add(control, counter + CLAIMED, np.int64(1))
            if chunk >= chunks:
                break
            call_kernel(kernels, program[line, KERNEL], chunk, thread, line, program, table, weights, cache, work)
            fetch_add(control, counter + DONE, np.int64(1))
        if program[line, HAS_BARRIER]:
            for open_line in range(first_open, line + 1):
                if not wait(control, CONTROL_HEAD + open_line * COUNTERS):
                    return False
            first_open = line + 1
    return True
