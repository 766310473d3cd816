"""Where compiled kernels are kept: the user's directories in their order, a temporary one, or nowhere at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from proof.process import answer, start

from kvist.kernels import jit

NOWHERE = "/proc/nowhere"  # not even root can make a directory here


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing remembered, a temporary directory of the test's own, and no setting but the test's."""
    for name in ("KVIST_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(jit.sys, "platform", "linux")
    jit.cache_directory.cache_clear()
    yield
    jit.cache_directory.cache_clear()


def test_settings_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert jit.cache_root() == Path("/home/me/.cache/kvist")
    monkeypatch.setenv("XDG_CACHE_HOME", "/else")
    assert jit.cache_root() == Path("/else/kvist")
    monkeypatch.setenv("KVIST_CACHE_DIR", "/mine")
    assert jit.cache_root() == Path("/mine")


def test_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(jit.sys, "platform", "darwin")
    assert jit.cache_root() == Path("/home/me/Library/Caches/kvist")
    monkeypatch.setattr(jit.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert jit.cache_root() == Path("/local/kvist")


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nobody(_: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(nobody))
    directory = jit.cache_directory()
    assert directory is not None
    assert directory.is_relative_to(tmp_path / "temporary")


@pytest.mark.parametrize("home", [NOWHERE, "/dev/null"])
def test_a_home_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    directory = jit.cache_directory()
    assert directory is not None
    assert directory.is_relative_to(tmp_path / "temporary")
    assert directory.stat().st_mode & 0o777 == 0o700


def test_nowhere_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", NOWHERE)
    monkeypatch.setattr(tempfile, "tempdir", NOWHERE)
    assert jit.cache_directory() is None


def test_no_temporary_directory_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setenv("HOME", NOWHERE)
    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert jit.cache_directory() is None


@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_another_user_could_swap_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, level: int) -> None:
    monkeypatch.setenv("KVIST_CACHE_DIR", str(tmp_path / "theirs"))
    theirs = [tmp_path / "theirs", tmp_path / "theirs" / "kernels", tmp_path / "theirs" / "kernels" / jit.cache_key()]
    real = Path.stat

    def stat(path: Path, **settings: bool) -> object:
        found = real(path, **settings)
        is_theirs = path == theirs[level]
        return SimpleNamespace(st_uid=os.getuid() + 1, st_mode=found.st_mode) if is_theirs else found

    monkeypatch.setattr(Path, "stat", stat)
    directory = jit.cache_directory()
    assert directory is not None
    assert directory.is_relative_to(tmp_path / "temporary")


def test_the_key_tells_processors_and_sources_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    key = jit.cache_key()
    jit.cache_key.cache_clear()
    assert jit.cache_key() == key
    monkeypatch.setattr(jit.config, "CPU_NAME", "another")
    jit.cache_key.cache_clear()
    assert jit.cache_key() != key
    monkeypatch.undo()
    jit.cache_key.cache_clear()
    assert jit.cache_key() == key
    jit.cache_key.cache_clear()
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"changed" if path.name == "matmul.py" else b"")
    changed = jit.cache_key()
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"")
    jit.cache_key.cache_clear()
    assert jit.cache_key() != changed
    monkeypatch.undo()
    jit.cache_key.cache_clear()


PROGRAM = """
import json, sys, tempfile
tempfile.tempdir = sys.argv[1]
from pathlib import Path
from kvist.kernels import elementwise, jit
kernel = elementwise.norm_kernel(elementwise.RMS, 0)
files = [] if jit.cache_directory() is None else sorted(path.name for path in jit.cache_directory().iterdir())
print(json.dumps([len(kernel.signatures), files, sum(kernel.stats.cache_hits.values())]))
"""


def test_kernels_compile_where_nothing_can_be_kept(tmp_path: Path) -> None:
    settings = {"KVIST_CACHE_DIR": NOWHERE, "HOME": NOWHERE, "XDG_CACHE_HOME": NOWHERE}
    assert answer(start("-c", PROGRAM, NOWHERE, **settings)) == [1, [], 0]
    first, second = (answer(start("-c", PROGRAM, str(tmp_path), **settings)) for _ in range(2))
    assert first[0] == second[0] == 1
    assert first[1] == second[1] != []
    assert (first[2], second[2]) == (0, 1)


VARIANTS = """
import json, sys
import numpy as np
from kvist.kernels import elementwise, jit
kernels = [elementwise.norm_kernel(kind, 0) for kind in map(int, sys.argv[1])]
hits = [sum(kernel.stats.cache_hits.values()) for kernel in kernels]
print(json.dumps([hits, len(set(jit.addresses(kernels).tolist()))]))
"""


def test_kernels_that_two_processes_compiled_are_two_in_a_third(tmp_path: Path) -> None:
    """Their symbols' names must differ: each process counts its functions anew, and both counted the same."""
    for kinds, found in (("0", [[0], 1]), ("1", [[0], 1]), ("01", [[1, 1], 2])):
        assert answer(start("-c", VARIANTS, kinds, KVIST_CACHE_DIR=str(tmp_path))) == found
