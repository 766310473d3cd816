"""Files of requests and of results: whatever is in them, and whatever became of the last run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.errors import RequestError
from kvist.openai.batch_lines import count_lines, read_lines
from kvist.openai.batch_results import ResultFile


def line(custom_id: object = "a", **changes: object) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {}} | changes)


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(text + "\n" for text in lines), encoding="utf-8")
    return path


def test_blank_lines_are_left_out_and_numbers_kept(tmp_path: Path) -> None:
    found = list(read_lines(write(tmp_path / "r", line("a"), "", "  ", line("b"))))
    assert [(one.number, one.custom_id, one.url, one.error) for one in found] == [
        (1, "a", "/v1/completions", None),
        (4, "b", "/v1/completions", None),
    ]
    (tmp_path / "open").write_text(line("a"), encoding="utf-8")  # no newline at the end
    assert next(read_lines(tmp_path / "open")).id == found[0].id != found[1].id


@pytest.mark.parametrize(
    ("text", "custom_id", "said"),
    [
        ("{", None, "the line is no JSON"),
        ("[]", None, "the line must hold an object, got list"),
        ("[" * 100_000, None, "nested too deeply"),
        ('{"custom_id": ' + "1" * 5000 + "}", None, "a number of 5000 digits"),
        (line(""), "", 'the line has no "custom_id"'),
        (line(7), None, '"custom_id" in the line must be a text, got 7'),
        (line(method="GET"), "a", '"method" in the line must be "POST", got "GET"'),
        (line(url=None), "a", 'the line has no "url"'),
        (line(body=None), "a", 'the line has no "body"'),
        (line(body=[1]), "a", '"body" in the line must be an object'),
        (line(boby={}), "a", 'unknown field "boby" in the line'),
    ],
)
def test_what_is_wrong_with_a_line_is_kept_with_it(tmp_path: Path, text: str, custom_id: str | None, said: str) -> None:
    bad, good = read_lines(write(tmp_path / "r", text, line("z")))
    assert bad.custom_id == custom_id
    assert said in str(bad.error)
    assert good.error is None


@given(st.lists(st.binary(max_size=40).filter(lambda data: b"\n" not in data)))
def test_bytes_of_any_kind_are_lines_with_errors(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("any") / "r"
    path.write_bytes(b"\n".join(lines))
    assert all(one.error is not None for one in read_lines(path))
    assert count_lines(path) == sum(1 for data in lines if data.strip())


def test_a_custom_id_that_stands_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "r", line("a"), line("b"), "", line("b", body={"n": 2}))
    with pytest.raises(RequestError, match='custom_id "b" stands in lines 2 and 4'):
        count_lines(path)
    assert count_lines(write(tmp_path / "s", line("a"), "{", "{", line("b"))) == 4


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="No such file"):
        count_lines(tmp_path / "no")


def test_results_are_found_again(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "out") as results:
        results.append({"id": "one", "text": "å\n"})
    with ResultFile(tmp_path / "out") as results:
        assert results.has("one") and not results.has("two")
        results.append({"id": "two"})
    assert [json.loads(text)["id"] for text in (tmp_path / "out").read_text().splitlines()] == ["one", "two"]


@given(st.integers(0, 60))
def test_a_torn_last_line_is_cut_off(tmp_path_factory: pytest.TempPathFactory, num_kept: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "out"
    whole = b'{"id": "one"}\n'
    torn = b'{"id": "two", "response": {"body": "abcdefghijklmnopqrstuvwxyz"}}\n'
    path.write_bytes(whole + torn[:num_kept])
    with ResultFile(path) as results:
        assert results.has("one")
        assert not results.has("two")
        assert results.num_repaired == (num_kept > 0)
        results.append({"id": "three"})
    assert path.read_bytes() == whole + b'{"id": "three"}\n'


def test_a_last_line_that_lacks_its_newline_alone_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b'{"id": "one"}')
    with ResultFile(path) as results:
        assert results.has("one")
        results.append({"id": "two"})
    assert path.read_bytes() == b'{"id": "one"}\n{"id": "two"}\n'


@pytest.mark.parametrize("text", ["something else\n", '{"id": "one"}\n{"no": 1}\n', '{"id": 5}\n', "[]\nx"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match="is no result of a batch"):
        ResultFile(path)
    assert path.read_text(encoding="utf-8") == text


def test_two_runs_do_not_write_into_one_file(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "out"), pytest.raises(RequestError, match="another run is writing"):
        ResultFile(tmp_path / "out")
    with ResultFile(tmp_path / "out"):
        pass


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="No such file or directory"):
        ResultFile(tmp_path / "no" / "out")
