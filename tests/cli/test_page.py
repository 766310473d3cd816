"""``kvist report`` around what it measures: where the page goes, what is said, and what an interrupted one leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.command import Command
from lab import report_data
from lab.schemas import validator

from kvist.cli import page
from kvist.lab import ceiling
from kvist.lab.ceiling import Ceiling
from kvist.lab.report.effort import QUICK, Effort
from kvist.spec.cache import CacheSpec


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Effort]:
    """Put figures in the place of measuring; the list says how much was asked for."""
    efforts: list[Effort] = []

    def measured(run: Any, model: str, _: Any, effort: Effort) -> dict[str, Any]:
        run.begin("a report", model=model, threads=2, cache=CacheSpec(), weight_types={"q4_1": 1})
        efforts.append(effort)
        return report_data.document()["figures"]

    monkeypatch.setattr(ceiling.MachineProbe, "measure", lambda _: Ceiling(1e10, 1e12, 1.3e12))
    monkeypatch.setattr(page, "_measured", measured)
    return efforts


def test_the_page_and_its_document(kvist: Command, asked: list[Effort], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    done = kvist("report", "tiny", "-o", str(path), "--quick", "--json")
    assert done.code == 0, done.err
    assert asked == [QUICK]
    validator("report").validate(done.json)
    assert path.read_text(encoding="utf-8").count("<svg") == 14
    assert f"written to {path}" in done.err
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("name", "said"), [("report.pdf", "it has to end in .html"), ("nowhere/report.html", "there is no directory")]
)
def test_where_no_page_can_be_is_said_at_once(
    kvist: Command, asked: list[Effort], tmp_path: Path, name: str, said: str
) -> None:
    done = kvist("report", "-o", str(tmp_path / name))
    assert (done.code, asked) == (1, [])
    assert said in done.err.splitlines()[-1]


def test_interrupted_it_leaves_what_there_was(
    kvist: Command, asked: list[Effort], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("an older one")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "_measured", interrupted)
    done = kvist("report", "-o", str(path))
    assert done.code == 130
    assert path.read_text() == "an older one"
    assert [*tmp_path.iterdir()] == [path]


def test_different_results_are_no_report(
    kvist: Command, asked: list[Effort], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = report_data.document()["figures"]
    figures["demonstration"]["identical"] = False
    monkeypatch.setattr(page, "_measured", lambda *_: figures)
    done = kvist("report", "-o", str(tmp_path / "report.html"))
    assert done.code == 1
    assert "the results differ with and without the cache" in done.err
    assert not [*tmp_path.iterdir()]
