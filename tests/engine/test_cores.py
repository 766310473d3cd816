"""The cores that a process may use, read from a made-up machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvist.engine.cores import Cores, usable_cores

TWO_SOCKETS = "".join(
    f"processor\t: {number}\nmodel name\t: X\nphysical id\t: {number % 2}\ncore id\t\t: {number // 2 % 2}\n\n"
    for number in range(8)
)


def machine(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    root = machine(tmp_path, proc__cpuinfo=TWO_SOCKETS)
    assert usable_cores(root, frozenset(range(8))) == Cores(8, 4)
    assert usable_cores(root, frozenset({0, 4})) == Cores(2, 1)
    assert usable_cores(root, frozenset({0, 1, 2})) == Cores(3, 3)


def test_without_core_ids_processors_count(tmp_path: Path) -> None:
    root = machine(tmp_path, proc__cpuinfo="processor\t: 0\nBogoMIPS\t: 50.00\n\nprocessor\t: 1\n")
    assert usable_cores(root, frozenset({0, 1, 2})) == Cores(3, 3)
    assert usable_cores(tmp_path / "nowhere", frozenset({0})) == Cores(1, 1)


@pytest.mark.parametrize(("quota", "usable"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 4)])
def test_a_containers_quota(tmp_path: Path, quota: str, usable: int) -> None:
    root = machine(
        tmp_path, proc__cpuinfo=TWO_SOCKETS, proc__self__cgroup="0::/a/b\n", sys__fs__cgroup__a__b__cpu_dot_max=quota
    )
    assert usable_cores(root, frozenset(range(8))).num_usable == usable


def test_a_containers_quota_of_version_1(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        proc__cpuinfo=TWO_SOCKETS,
        proc__self__cgroup="4:memory:/a\n3:cpu,cpuacct:/a\n",
        sys__fs__cgroup__cpu__a__cpu_dot_cfs_quota_us="300000\n",
        sys__fs__cgroup__cpu__a__cpu_dot_cfs_period_us="100000\n",
    )
    assert usable_cores(root, frozenset(range(8))) == Cores(8, 4, 3.0)
    (tmp_path / "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(root, frozenset(range(8))).quota is None


def test_this_machine() -> None:
    cores = usable_cores()
    assert 1 <= cores.num_usable <= cores.num_physical <= cores.num_processors
