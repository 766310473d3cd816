"""First runs on a machine with little on it: no programs, no home to write into, no OpenMP, and another first run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tiny.models import tiny_model
from tiny.tensors import write_directory

PROGRAM = """
import sys
from pathlib import Path
from kvist import LLM, SamplingParams
with LLM(sys.argv[1], threads=2, context=64) as llm:
    print(llm.generate([3, 1, 4], SamplingParams(max_tokens=8, ignore_eos=True), digest=True).logits_sha256)
maps = Path("/proc/self/maps").read_text()
print([name for name in ("libgomp", "libiomp", "libomp", "libtbb") if name in maps])
"""


def start(model: Path, bare: Path) -> subprocess.Popen[str]:
    """Start a run that finds no program, and can write into the temporary directory alone."""
    environment = {"PATH": str(bare / "nothing"), "HOME": str(bare / "file" / "home"), "TMPDIR": str(bare / "tmp")}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(model)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_first_runs_at_once_on_a_bare_machine(tmp_path: Path) -> None:
    model = write_directory(tiny_model("llama", 0), tmp_path / "model")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "file").write_text("below a file not even root can make a home", encoding="utf-8")
    firsts = [start(model, tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=300) for process in firsts]
    assert [process.returncode for process in firsts] == [0, 0], outputs
    assert outputs[0] == outputs[1]
    assert outputs[0][0].splitlines()[1] == "[]"
    compiled = {path: path.stat().st_mtime_ns for path in (tmp_path / "tmp").rglob("*.nbc")}
    assert compiled
    third = start(model, tmp_path)
    assert third.communicate(timeout=300) == outputs[0]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "tmp").rglob("*.nbc")} == compiled
