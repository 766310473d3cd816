"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    command = [sys.executable, str(ROOT / "tools" / "cli_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_has_every_command() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for command in ("generate", "chat", "info", "models", "doctor", "cache clear"):
        assert f"\n## kvist {command}\n" in page
