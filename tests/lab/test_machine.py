from __future__ import annotations

from pathlib import Path

from kvist.lab.machine import this_machine


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_reads_what_the_system_says(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some  CPU @ 3 GHz\n")
    machine = this_machine(tmp_path)
    assert machine.processor == "Some CPU @ 3 GHz"


def test_a_silent_system_leaves_nothing_out(tmp_path: Path) -> None:
    machine = this_machine(tmp_path)
    assert machine.processor
    assert machine.memory_bytes > 1 << 28
    assert machine.last_level_cache_bytes >= 1 << 18
    assert set(machine.as_json()) == {
        "processor", "processors", "last_level_cache_bytes", "memory_bytes", "system", "versions",
    }  # fmt: skip
    assert {"python", "kvist", "numpy", "numba", "llvmlite"} == set(machine.versions)
    assert machine.processor in str(machine)
