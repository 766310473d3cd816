"""A team runs each chunk once and each line after what it waits for, stops when told to, and starts anew."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof.process import answer, start

from kvist.kernels import jit, team
from kvist.kernels.interpreter import run
from kvist.kernels.jit import SIGNATURE
from kvist.kernels.layout import ABORT, CHUNKS, CLAIMED, CONTROL_HEAD, COUNTERS, DONE, FIELDS, HAS_BARRIER, KERNEL
from kvist.kernels.simd import fetch_add
from kvist.kernels.team import Team

ROOM = 64
"""Most chunks of a line."""


def note(chunk, thread, line, program, table, weights, cache, work):
    """Count this chunk's runs, and note how many chunks of all lines had begun before it."""
    at = line * ROOM + chunk
    fetch_add(table, at, np.int64(1))
    table[program.shape[0] * ROOM + at] = fetch_add(table, 2 * program.shape[0] * ROOM, np.int64(1))


COMPILED = numba.njit(nogil=True, error_model="numpy")(note)  # not kept on disk, where a test has no business
COMPILED.compile(SIGNATURE)
KERNELS = jit.addresses([COMPILED])
NOTHING = np.zeros(64, np.uint8)


def program_of(chunks: list[int], barriers: list[bool]) -> tuple[Any, Any, Any]:
    """(program, control, table) of lines with so many chunks; the last line has a barrier."""
    program = np.zeros((len(chunks), FIELDS), np.int64)
    program[:, KERNEL], program[:, HAS_BARRIER] = 0, [*barriers[: len(chunks) - 1], True]
    control = np.zeros(CONTROL_HEAD + len(chunks) * COUNTERS, np.int64)
    control[CONTROL_HEAD + CHUNKS :: COUNTERS] = chunks
    return program, control, np.zeros(2 * len(chunks) * ROOM + 1, np.int64)


def check_done(chunks: list[int], barriers: list[bool], table: Any) -> None:
    """Assert that each chunk was done once, and began after the lines that it has to wait for."""
    runs, began = (part.reshape(-1, ROOM) for part in np.split(table[:-1], 2))
    before, open_since = 0, 0
    for line, count in enumerate(chunks):
        assert runs[line].tolist() == [1] * count + [0] * (ROOM - count)
        assert (began[line, :count] >= before).all(), (line, began[line, :count], before)
        open_since += count
        if barriers[line]:
            before, open_since = before + open_since, 0


@pytest.fixture(scope="module", params=[1, 2, 3, 8])
def workers(request):
    workers = Team(request.param)
    yield workers
    workers.close()


@settings(max_examples=60)
@given(st.lists(st.integers(0, ROOM), min_size=1, max_size=12), st.lists(st.booleans(), min_size=12, max_size=12))
def test_each_chunk_once_and_in_order(workers: Team, chunks: list[int], barriers: list[bool]) -> None:
    program, control, table = program_of(chunks, barriers)
    workers.run(KERNELS, program, control, table, NOTHING, NOTHING, NOTHING)
    check_done(chunks, barriers, table)


def test_many_passes_leave_nothing_to_a_late_thread(workers: Team) -> None:
    chunks, barriers = [5, 1, 8, 0, 3], [True, False, True, True, True]
    for _ in range(300):
        program, control, table = program_of(chunks, barriers)
        workers.run(KERNELS, program, control, table, NOTHING, NOTHING, NOTHING)
        check_done(chunks, barriers, table)


def test_a_thread_that_comes_late_touches_nothing() -> None:
    program, control, table = program_of([4, 4], [True, True])
    assert run(KERNELS, 0, program, control, table, NOTHING, NOTHING, NOTHING)
    before = table.copy()
    assert run(KERNELS, 1, program, control, table, NOTHING, NOTHING, NOTHING)
    assert np.array_equal(table, before)


def test_an_aborted_pass_begins_no_chunk() -> None:
    program, control, table = program_of([4, 4], [True, True])
    control[ABORT] = 1
    assert not run(KERNELS, 0, program, control, table, NOTHING, NOTHING, NOTHING)
    assert not table.any()


def test_a_thread_that_waits_hears_of_an_abort() -> None:
    """The one chunk was claimed by a thread that never finishes it."""
    program, control, table = program_of([1, 1], [True, True])
    control[CONTROL_HEAD + CLAIMED] = 1
    found: list[bool] = []
    waiting = threading.Thread(
        target=lambda: found.append(run(KERNELS, 0, program, control, table, NOTHING, NOTHING, NOTHING))
    )
    waiting.start()
    time.sleep(0.05)
    assert waiting.is_alive()
    control[ABORT] = 1
    waiting.join(timeout=10)
    assert found == [False]
    assert not table.any()
    assert control[CONTROL_HEAD + DONE] == 0


def test_an_exception_in_the_callers_thread_aborts_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    workers = Team(1)
    program, control, table = program_of([1], [True])
    monkeypatch.setattr(team, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.run(KERNELS, program, control, table, NOTHING, NOTHING, NOTHING)
    assert control[ABORT] == 1


def test_a_closed_team_starts_anew() -> None:
    workers, before = Team(3), threading.active_count()
    for _ in range(2):
        program, control, table = program_of([7], [True])
        workers.run(KERNELS, program, control, table, NOTHING, NOTHING, NOTHING)
        check_done([7], [True], table)
        assert threading.active_count() == before + 2
        workers.close()
        assert threading.active_count() == before
    workers.close()


FORK = """
import json, os, sys
import numpy as np
from kvist.kernels.team import Team
from kvist.kernels import ceiling, jit
from kvist.kernels.layout import *
kernels, workers = jit.addresses([ceiling.dot_kernel()]), Team(3)

def one_pass():
    program, control = np.zeros((1, FIELDS), np.int64), np.zeros(CONTROL_HEAD + COUNTERS, np.int64)
    program[0, HAS_BARRIER], control[CONTROL_HEAD + CHUNKS] = 1, 6
    workers.run(kernels, program, control, np.zeros(TABLE_HEAD, np.int64), *[np.zeros(1 << 14, np.uint8)] * 3)
    return int(control[CONTROL_HEAD + DONE])

found = [one_pass()]
for _ in range(5):
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.write(theirs, bytes([one_pass(), one_pass()]))
        workers.close()
        os._exit(0)
    found += os.read(ours, 2)
    assert os.waitpid(child, 0)[1] == 0
    found.append(one_pass())
print(json.dumps(found))
"""


def test_a_forked_child_has_threads_of_its_own() -> None:
    assert hasattr(os, "fork")
    assert answer(start("-c", FORK), timeout_s=120) == [6] * 16
