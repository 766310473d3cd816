"""The same bytes from other instructions, from NumPy's other loops, and from the kernels run as plain Python.

Other processes compute them, all at once: two cores are busy while one of them compiles.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from proof.cases import CASES
from proof.digests import REAL, digest_of
from proof.process import answer, start

from kvist.kernels import elementwise, interpreter, jit, packing, target
from kvist.kernels.jit import SIGNATURE

NAMES = [*CASES, REAL]
EACH = pytest.mark.parametrize("name", NAMES)
SMALL = pytest.mark.parametrize("name", CASES)
INSTRUCTIONS = {"avxvnni": ("avxvnni",), "avx512": ("avx512f", "avx512bw", "avx512vl")}
"""What other processors than this one multiply bytes with, by the target that it makes: on top of Haswell's."""
THERE = [kind for kind, needed in INSTRUCTIONS.items() if target.features().issuperset(needed)]
DOTS = ("q8_0", "q4_0", "q4_1", "int8", "int4")
"""The cases that multiply bytes."""


def with_instructions(kind: str) -> dict[str, str]:
    """The environment in which kernels are compiled for a Haswell that has these, too."""
    named = ",".join(f"+{name}" for name in ("avx2", "fma", "f16c", *INSTRUCTIONS[kind]))
    return {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": named}


def baseline_only() -> str:
    """What turns every optional loop of NumPy off on this processor."""
    module = np._core._multiarray_umath if hasattr(np, "_core") else np.core._multiarray_umath
    return " ".join(name for name in module.__cpu_dispatch__ if module.__cpu_features__.get(name))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Iterator[dict[str, dict[str, str]]]:
    """Digests by kind of process, computed while this one computes its own ("here")."""
    half = len(CASES) // 2

    def begin(names: list[str], **environment: str) -> subprocess.Popen[str]:
        folder = tmp_path_factory.mktemp("models")  # its own: a file that is written anew while it is mapped is no file
        return start("-m", "proof.digests", str(folder), *names, **environment)

    processes = {
        "haswell": begin(NAMES, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES=""),
        "plain": begin(list(CASES)[:half], NUMBA_DISABLE_JIT="1"),
        "plain too": begin(list(CASES)[half:], NUMBA_DISABLE_JIT="1"),
    }
    try:
        here = tmp_path_factory.mktemp("models")
        found = {"here": {name: digest_of(name, here) for name in NAMES}}
        processes["numpy"] = begin(NAMES, NPY_DISABLE_CPU_FEATURES=baseline_only())
        processes |= {kind: begin(list(DOTS), **with_instructions(kind)) for kind in THERE}
        found |= {kind: answer(process) for kind, process in processes.items()}
        found["plain"] |= found["plain too"]
        yield found
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


@EACH
def test_avx2_gives_the_bytes_of_this_processor(elsewhere: dict[str, dict[str, str]], name: str) -> None:
    assert elsewhere["haswell"][name] == elsewhere["here"][name]


@pytest.mark.parametrize("kind", THERE)
@pytest.mark.parametrize("name", DOTS)
def test_other_dots_of_bytes_give_the_bytes_of_this_processor(
    elsewhere: dict[str, dict[str, str]], kind: str, name: str
) -> None:
    assert elsewhere[kind][name] == elsewhere["here"][name]


@EACH
def test_numpys_loops_have_no_part_in_it(elsewhere: dict[str, dict[str, str]], name: str) -> None:
    assert elsewhere["numpy"][name] == elsewhere["here"][name]


@SMALL
def test_kernels_as_plain_python(elsewhere: dict[str, dict[str, str]], name: str) -> None:
    assert elsewhere["plain"][name] == elsewhere["here"][name]


def test_each_setting_takes_effect() -> None:
    """Else the comparisons above compare a thing with itself."""
    program = "import json, numpy; from kvist.kernels import jit, target; print(json.dumps({}))"
    asked = {
        "target.current().name": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""},
        "jit.IS_JIT_OFF": {"NUMBA_DISABLE_JIT": "1"},
    }
    found = [answer(start("-c", program.format(said), **setting)) for said, setting in asked.items()]
    assert found == ["avx2", True]
    names = [answer(start("-c", program.format("target.current().name"), **with_instructions(kind))) for kind in THERE]
    assert names == THERE
    if baseline_only():
        features = "sorted(k for k, on in numpy._core._multiarray_umath.__cpu_features__.items() if on)"
        here, there = (
            answer(start("-c", program.format(features), **setting))
            for setting in ({}, {"NPY_DISABLE_CPU_FEATURES": baseline_only()})
        )
        assert set(there) < set(here)


def test_kernels_here_are_compiled() -> None:
    assert not jit.IS_JIT_OFF
    kernel = elementwise.norm_kernel(elementwise.RMS, 0)
    assert kernel.signatures == [SIGNATURE.args]
    assert not kernel._can_compile
    for dispatcher in (kernel, interpreter.run, packing.pack):
        assert dispatcher.targetoptions["nogil"]
        assert not dispatcher.targetoptions.get("fastmath")
    addresses = jit.addresses([kernel])
    assert addresses.dtype == np.int64
    assert addresses[0] > 0
    assert target.current().name in ("avx512vnni", "avx512", "avxvnni", "avx2", "neon", "generic")
