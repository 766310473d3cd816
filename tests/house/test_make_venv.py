"""The maker of environments says what is missing on machines that lack a part."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "make_venv.py"


class Machine:
    """A machine with some of Python's modules; it notes the commands that were run on it."""

    def __init__(self, modules: set[str]) -> None:
        self.modules = modules
        self.commands: list[tuple[str, ...]] = []

    def has_module(self, name: str) -> bool:
        return name in self.modules

    def run(self, *command: str) -> bool:
        self.commands.append(command[1:])
        return True


def load(monkeypatch: pytest.MonkeyPatch, modules: set[str]) -> tuple[ModuleType, Machine]:
    spec = importlib.util.spec_from_file_location("make_venv", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    machine = Machine(modules)
    monkeypatch.setattr(script, "has_module", machine.has_module)
    monkeypatch.setattr(script, "run", machine.run)
    monkeypatch.setattr(sys, "argv", ["make_venv.py", "there"])
    return script, machine


@pytest.mark.parametrize(
    ("modules", "commands"),
    [
        ({"venv", "ensurepip", "virtualenv", "pip"}, [("-m", "venv", "there")]),
        ({"venv", "virtualenv", "pip"}, [("-m", "virtualenv", "there")]),
        (
            {"venv", "pip"},
            [
                ("-m", "venv", "--without-pip", "there"),
                ("-m", "pip", "--python", "there/bin/python", "install", "--quiet", "pip"),
            ],
        ),
    ],
)
def test_uses_the_first_means_there_is(
    monkeypatch: pytest.MonkeyPatch, modules: set[str], commands: list[tuple[str, ...]]
) -> None:
    script, machine = load(monkeypatch, modules)
    assert script.main() == 0
    assert machine.commands == commands


@pytest.mark.parametrize("modules", [set(), {"venv"}, {"pip"}])
def test_names_the_missing_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], modules: set[str]
) -> None:
    script, machine = load(monkeypatch, modules)
    assert script.main() == 1
    assert machine.commands == []
    message = capsys.readouterr().err
    assert "python3-venv" in message
    assert "virtualenv" in message
    assert message.count("\n") == 1


def test_refuses_an_old_python_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script, _ = load(monkeypatch, {"venv", "ensurepip"})
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    assert script.main() == 1
    assert "needs Python 3.10 or newer" in capsys.readouterr().err
