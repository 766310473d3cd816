"""What is installed is what lies in src, and nothing of the tests or tools."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_every_source_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("kvist-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        extra = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "kvist").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == sources
    assert "kvist/py.typed" in packed
    assert len(extra) == 1
