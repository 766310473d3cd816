"""Files of requests and of results: whatever is in them, and whatever became of the last run."""

from __future__ import annotations

import json
import os
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


def result(number: int, text: str = "") -> dict[str, object]:
    return {"id": f"batch_req_{number}", "custom_id": "a", "line": number, "response": {"body": text}, "error": None}


def result_bytes(number: int, text: str = "") -> bytes:
    return json.dumps(result(number, text)).encode() + b"\n"


def test_results_are_found_again(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "out") as results:
        results.append(result(1, "å\n"))
    with ResultFile(tmp_path / "out") as results:
        assert results.has("batch_req_1") and not results.has("batch_req_2")
        results.append(result(2))
    assert (tmp_path / "out").read_bytes() == result_bytes(1, "å\n") + result_bytes(2)


@given(st.integers(0, 100))
def test_a_torn_last_line_is_cut_off(tmp_path_factory: pytest.TempPathFactory, num_kept: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "out"
    path.write_bytes(result_bytes(1) + result_bytes(2, "abcdefghijklmnopqrstuvwxyz")[:num_kept])
    with ResultFile(path) as results:
        assert results.has("batch_req_1")
        assert not results.has("batch_req_2")
        assert results.num_repaired == (num_kept > 0)
        results.append(result(3))
    assert path.read_bytes() == result_bytes(1) + result_bytes(3)


def test_a_last_line_that_lacks_its_newline_alone_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(result_bytes(1)[:-1])
    with ResultFile(path) as results:
        assert results.has("batch_req_1")
        results.append(result(2))
    assert path.read_bytes() == result_bytes(1) + result_bytes(2)


@pytest.mark.parametrize("is_torn", [False, True])
def test_results_that_are_longer_than_a_line_of_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_torn: bool
) -> None:
    monkeypatch.setattr("kvist.openai.batch_results.MAX_LINE_BYTES", 100)
    path, long = tmp_path / "out", result_bytes(2, "x" * 450)
    path.write_bytes(result_bytes(1) + (long[:-5] if is_torn else long + result_bytes(3)))
    with ResultFile(path) as results:
        assert results.has("batch_req_1")
        assert results.has("batch_req_2") != is_torn
        assert results.has("batch_req_3") != is_torn
        assert results.num_repaired == is_torn
    if is_torn:
        assert path.read_bytes() == result_bytes(1)


@pytest.mark.parametrize(
    "text",
    [
        "something else\n",
        "a key",
        '{"id": "doc1", "text": "a data set"}\n{"text": "its last line"}',
        json.dumps(result(1)) + '\n{"no": 1}\n',
        json.dumps(result(1)) + "\n{not torn by us",
        '{"id": 5}\n',
        '{"id": "batch_req_1", "custom_id": "a"}\n',
        "[]\nx",
        line(),
    ],
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match="is no result of a batch"):
        ResultFile(path)
    assert path.read_text(encoding="utf-8") == text


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RequestError, match='pipe" is no regular file; results are appended'):
        ResultFile(tmp_path / "pipe")
    with pytest.raises(RequestError, match='pipe" is no regular file, and requests are read twice'):
        count_lines(tmp_path / "pipe")


def test_a_line_that_is_too_long_has_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvist.openai.batch_lines.MAX_LINE_BYTES", 200)
    path = write(tmp_path / "r", line("a"), line("b", body={"prompt": "x" * 900}), line("c"), line("d" * 300))
    first, long, last, longer = read_lines(path)
    assert (first.error, last.error, last.number) == (None, None, 3)
    assert "longer than 200 bytes" in str(long.error)
    assert "longer than 200 bytes" in str(longer.error)
    assert len({one.id for one in (first, long, last, longer)}) == 4


def test_two_runs_do_not_write_into_one_file(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "out"), pytest.raises(RequestError, match="another run is writing"):
        ResultFile(tmp_path / "out")
    with ResultFile(tmp_path / "out"):
        pass


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="No such file or directory"):
        ResultFile(tmp_path / "no" / "out")
