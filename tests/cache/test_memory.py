"""Free memory, read from a made-up machine: the tightest of what the system and its control groups say."""

from __future__ import annotations

from pathlib import Path

from kvist.cache.memory import available_memory


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_systems_own(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:       2000 kB\nMemAvailable:   1000 kB\n")
    assert available_memory(tmp_path) == 1000 * 1024


def test_control_groups_of_version_2(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemAvailable:   1000 kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/outer/inner\n")
    groups = "sys/fs/cgroup/outer"
    write(tmp_path, f"{groups}/inner/memory.max", "max\n")
    write(tmp_path, f"{groups}/inner/memory.current", "5000\n")
    assert available_memory(tmp_path) == 1000 * 1024
    write(tmp_path, f"{groups}/memory.max", "100000\n")
    write(tmp_path, f"{groups}/memory.current", "90000\n")
    write(tmp_path, f"{groups}/memory.stat", "anon 50000\ninactive_file 30000\n")
    assert available_memory(tmp_path) == 100000 - 60000
    write(tmp_path, f"{groups}/inner/memory.max", "4000\n")
    assert available_memory(tmp_path) == 0


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemAvailable:   1000 kB\n")
    write(tmp_path, "proc/self/cgroup", "9:name=systemd:/x\n4:memory:/box\n0::/\n")
    group = "sys/fs/cgroup/memory/box"
    write(tmp_path, f"{group}/memory.limit_in_bytes", "9223372036854771712\n")
    write(tmp_path, f"{group}/memory.usage_in_bytes", "70000\n")
    assert available_memory(tmp_path) == 1000 * 1024
    write(tmp_path, f"{group}/memory.limit_in_bytes", "100000\n")
    write(tmp_path, f"{group}/memory.stat", "total_inactive_file 20000\n")
    assert available_memory(tmp_path) == 50000


def test_a_container_whose_own_group_is_mounted_as_the_root(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemAvailable:   1000 kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/not/visible/here\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "100000\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "40000\n")
    assert available_memory(tmp_path) == 60000


def test_this_machine() -> None:
    available = available_memory()
    assert available is None or available > 0
