"""The same in another process: with other settings of the environment, and all else as it is here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start this interpreter with arguments, and with the tests' helpers to import."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str], timeout_s: float = 900) -> Any:
    """What the process said last on stdout, as JSON; a failure shows what it said on stderr."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"no end after {timeout_s} s: {process.communicate()}") from None
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])
