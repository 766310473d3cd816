"""Running commands: in this process, or on the fake model as a process of their own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from kvist.cli.main import run

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Done:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The last line of stdout."""
        return json.loads(self.out.splitlines()[-1])


class Command:
    """Runs command lines in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.setattr("kvist.cli.main.gc.freeze", lambda: None)  # this process goes on

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Done:
        """Run ``kvist`` with ``arguments``; ``stdin`` is what a pipe delivers."""
        self._monkeypatch.setattr(sys, "argv", ["kvist", *arguments])
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            run()
        written = self._capsys.readouterr()
        return Done(int(caught.value.code or 0), written.out, written.err)


def start(
    *arguments: str, stdin: int = subprocess.DEVNULL, stdout: int | IO[bytes] = subprocess.PIPE, **fake: str
) -> subprocess.Popen[bytes]:
    """Start a command on the fake model as a process; keyword arguments set the fake (see ``fakes.__main__``)."""
    settings = {f"FAKE_{name.upper()}": value for name, value in fake.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "fakes", *arguments],
        env=os.environ | settings | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )
