"""``kvist(...)`` runs a command line in this process."""

from __future__ import annotations

import pytest
from fakes.command import Command


@pytest.fixture
def kvist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)
