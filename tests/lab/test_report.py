"""The report tells the truth: each figure is drawn again from its JSON, and its series and units are read back."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import typer.main
from docs.test_commands import parse
from lab import report_data

from kvist.cli.main import app
from kvist.lab.figures import Axes, Figure, svg_text
from kvist.lab.report import drawings
from kvist.lab.report.page import render, write
from kvist.lab.report.sections import SECTIONS, Section

GIB, MIB = 1 << 30, 1 << 20
INCHES = {"wide": drawings.WIDE, "narrow": drawings.NARROW}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """As ``--json`` gives it: written and read again."""
    return json.loads(json.dumps(report_data.document(), allow_nan=False))


@pytest.fixture(scope="module")
def page(report: dict[str, Any]) -> str:
    return render(report)


def drawn(report: dict[str, Any], name: str) -> tuple[dict[str, Any], Figure, Axes]:
    section = next(section for section in SECTIONS if section.name == name)
    data = report["figures"][section.data]
    figure = section.draw(data, drawings.WIDE)
    return data, figure, figure.axes[0]


def series(axis: Axes, name: str) -> list[tuple[float, float]]:
    """The points of the line that is called so."""
    (line,) = [line for line in axis.lines if line.get_gid() == name]
    return [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def bar(axis: Axes, name: str) -> tuple[float, float]:
    """Where the bar that is called so begins and ends."""
    (found,) = [patch for patch in axis.patches if patch.get_gid() == name]
    return found.get_x(), found.get_x() + found.get_width()


def approx(points: list[tuple[float, float]]) -> Any:
    return [pytest.approx(point) for point in points]


# ---- the figures ---------------------------------------------------------------------------------------------------


def test_demonstration(report: dict[str, Any]) -> None:
    data, _, axis = drawn(report, "demonstration")
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("position of the token", "milliseconds a token")
    for name in ("cached", "uncached"):
        expected = [
            (at, 1e3 * time) for at, time in zip(data["positions"][1:], data[f"{name}_token_s"][1:], strict=True)
        ]
        assert series(axis, f"{name}-each") == approx(expected)
        assert len(series(axis, name)) == len(expected)
    assert axis.get_ylim()[0] == 0


def test_memory_against_users(report: dict[str, Any]) -> None:
    data, _, axis = drawn(report, "users")
    assert axis.get_ylabel() == "GiB of bf16 cache"
    assert len(data["users"]) == 3
    for line in data["users"]:
        expected = [(users, size / GIB) for users, size in zip(line["users"], line["bytes"], strict=True)]
        assert series(axis, f"users-{line['context']}") == approx(expected)
        per_user = line["bytes"][0]
        assert line["bytes"] == [users * per_user for users in line["users"]]
        crossing = line["outgrows_weights_at"]
        assert crossing * per_user >= data["weights_bytes"] > (crossing - 1) * per_user
    assert [y for _, y in series(axis, "weights")] == [pytest.approx(data["weights_bytes"] / GIB)] * 2


def test_memory_against_context(report: dict[str, Any]) -> None:
    data, _, axis = drawn(report, "contexts")
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("tokens of one sequence", "GiB of cache")
    for line in data["contexts"]:
        expected = [(tokens, size / GIB) for tokens, size in zip(line["tokens"], line["bytes"], strict=True)]
        assert series(axis, f"context-{line['codec']}") == approx(expected)
    assert series(axis, "measured") == approx([(one["tokens"], one["bytes"] / GIB) for one in data["measured"]])
    assert len(data["measured"]) >= 4
    assert all(one["bytes"] == one["predicted_bytes"] for one in data["measured"])


def test_roofline(report: dict[str, Any]) -> None:
    data, _, axis = drawn(report, "roofline")
    assert axis.get_xlabel() == "operations for each byte read"
    assert axis.get_ylabel() == "operations a second, in billions"
    first, ridge, last = series(axis, "roof")
    assert first[1] == pytest.approx(first[0] * data["read_bandwidth"] / 1e9)
    assert ridge == pytest.approx((data["int_dot_peak"] / data["read_bandwidth"], data["int_dot_peak"] / 1e9))
    assert last[1] == ridge[1]
    for kind in ("decode", "users", "prefill"):
        points = [point for point in data["points"] if point["kind"] == kind]
        expected = [(p["operations"] / p["bytes"], p["operations"] / p["seconds"] / 1e9) for p in points]
        assert series(axis, kind) == approx(expected)


def test_smaller_caches(report: dict[str, Any]) -> None:
    data, _, axis = drawn(report, "smaller")
    assert axis.get_xlabel() == "MiB of a sequence of 1,024 tokens"
    assert axis.get_ylabel() == "mean KL from f32, nats a token"
    expected = [(row["bytes"] / MIB, row["kl_mean"]) for row in data["rows"]]
    assert series(axis, "codecs") == approx(expected[:3])
    assert series(axis, "kept") == approx(expected[3:])
    assert {text.get_text() for text in axis.texts} == {"bf16", "int8", "int4", "window:256", "sinks:4+252"}


def test_timeline(report: dict[str, Any]) -> None:
    data, _, axis = drawn(report, "timeline")
    assert axis.get_xlabel() == "seconds"
    for number, lane in enumerate(data["requests"]):
        assert series(axis, f"tokens-{number}") == approx([(moment, number) for moment in lane["token_s"]])
        assert bar(axis, f"waits-{number}") == pytest.approx((lane["asked_s"], lane["admitted_s"]))
        assert bar(axis, f"reads-{number}") == pytest.approx((lane["admitted_s"], lane["token_s"][0]))
        assert len(lane["token_s"]) == lane["generated_tokens"]
    asked = [lane["asked_s"] for lane in data["requests"]]
    assert asked == sorted(asked) and asked[0] == 0
    assert sum(step["tokens"] for step in data["passes"]) == sum(lane["generated_tokens"] for lane in data["requests"])


def test_planned(report: dict[str, Any]) -> None:
    data, _, axis = drawn(report, "planned")
    assert axis.get_xlabel() == "users of 8,192 tokens each"
    assert len(data["plans"]) == 9
    for number, one in enumerate(data["plans"]):
        for codec in ("bf16", "int8"):
            assert bar(axis, f"{codec}-{number}") == (0, one["users"][codec])
        assert one["users"]["int8"] >= one["users"]["bf16"]
    llama, h100 = data["plans"][2], 79.18 * GIB
    assert (llama["model"], llama["device"]) == ("Llama-3.1-8B", "H100 SXM 80GB")
    assert llama["weights_bytes"] == 2 * 8_030_261_248
    room = 0.9 * h100 - llama["weights_bytes"]
    assert room / GIB - 3 < llama["users"]["bf16"] <= room / GIB  # a GiB each; kvist's own needs are some hundred MiB


# ---- the page ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_every_figure_stands_in_the_page_as_it_is_drawn(
    report: dict[str, Any], page: str, section: Section, width: str
) -> None:
    figure = section.draw(report["figures"][section.data], INCHES[width])
    svg = svg_text(figure, f"{section.name}-{width}")
    assert svg in page
    root = ET.fromstring(svg.replace("xlink:href", "href"))  # noqa: S314 (made a line above)
    names = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(names) == len(set(names))
    artists = [*figure.axes[0].lines, *figure.axes[0].patches]
    gids = {artist.get_gid() for artist in artists if artist.get_gid()}
    assert gids
    for gid in gids:
        assert f"{section.name}-{width}-{gid}" in names
    assert f">{figure.axes[0].get_xlabel()}<" in svg  # text is text, to be read and searched


def test_a_series_has_as_many_points_in_the_page_as_in_the_data(report: dict[str, Any], page: str) -> None:
    data = report["figures"]["demonstration"]
    found = re.search(r'id="demonstration-wide-uncached-each">\s*<path d="([^"]*)"', page)
    assert found is not None
    assert len(re.findall("[ML]", found.group(1))) == len(data["positions"]) - 1


def test_the_page_needs_nothing_else(page: str) -> None:
    assert "<script" not in page and "@import" not in page
    assert not re.findall(r'(?:src|href)="(?!#|data:,")[^"]*"', page.replace("xlink:href", "href"))
    assert not re.findall(r"url\((?!#)", page)
    assert not [link for link in re.findall(r"https?://[^\s\"'<]+", page) if "www.w3.org" not in link]
    assert "prefers-color-scheme: dark" in page and "@media print" in page
    assert not re.findall(r"(?:fill|stroke): #(?!none)[0-9a-f]{6}", page), "a colour that isn't the page's"


def test_names_in_the_page_are_unique_and_found(page: str) -> None:
    names = re.findall(r'\bid="([^"]*)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:href="|url\()#([^")]*)', page)) <= set(names)


def test_every_section_says_what_where_and_how(report: dict[str, Any], page: str) -> None:
    assert page.count("If something were wrong:") == len(SECTIONS) == 7
    for section in SECTIONS:
        data = report["figures"][section.data]
        assert section.command(report["model"], data).startswith("kvist ")
        headings, rows = section.table(data)
        assert rows and all(len(row) == len(headings) for row in rows)
        assert len(section.words(data)) > 200
    assert "A processor &lt;of some make&gt;" in page


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_the_command_under_a_figure_is_one(report: dict[str, Any], section: Section) -> None:
    _, *words = section.command(report["model"], report["figures"][section.data]).split()
    parse(typer.main.get_command(app), "kvist", words)


def test_a_page_is_whole_or_not_there(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    write("before", path)

    def full(self: Any, *_: Any, **__: Any) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match="No space"):
        write("after", path)
    assert path.read_bytes() == b"before"
    assert [*tmp_path.iterdir()] == [path]
