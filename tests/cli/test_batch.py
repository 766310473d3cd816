"""``kvist batch`` on the fake model: results by custom_id, whatever becomes of the run."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from fakes.command import Command, start
from fakes.model import fake_spec, install

from kvist import LLM, SamplingParams

LINES = 12


def request(number: int, **body: Any) -> dict[str, Any]:
    asked = {"model": "any", "prompt": f"Number {number}", "max_tokens": 5 + number, "ignore_eos": True} | body
    return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": asked}


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def results(path: Path) -> dict[str | None, dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["id"] for line in found}) == len(found)
    return {line["custom_id"]: line for line in found}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_spec(512))


@pytest.mark.usefixtures("in_process")
def test_each_line_gets_what_it_would_get_alone(kvist: Command, tmp_path: Path, out: Path) -> None:
    chat = {
        "custom_id": "chat",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "Hi"}]},
    }
    several = request(99, prompt=["one", "two"], n=2, temperature=1.0, seed=3)
    file = write(tmp_path / "requests.jsonl", *map(request, range(LINES)), chat, several)
    done = kvist("batch", file, "-o", str(out), "--json", "--in-flight", "5")
    assert done.code == 0, done.err
    found = results(out)
    assert len(found) == LINES + 2
    with LLM("any") as llm:
        for number in range(LINES):
            alone = llm.generate(f"Number {number}", SamplingParams(max_tokens=5 + number, ignore_eos=True))
            response = found[f"r{number}"]["response"]
            assert response["status_code"] == 200
            assert response["body"]["choices"][0]["text"] == alone.text
            assert response["body"]["usage"]["completion_tokens"] == 5 + number
            assert found[f"r{number}"]["error"] is None
        talk = llm.chat([{"role": "user", "content": "Hi"}])
        assert found["chat"]["response"]["body"]["choices"][0]["message"]["content"] == talk.text
    assert [choice["index"] for choice in found["r99"]["response"]["body"]["choices"]] == [0, 1, 2, 3]
    document = done.json
    assert (document["requests"], document["succeeded"], document["failed"], document["skipped"]) == (
        LINES + 2,
        LINES + 2,
        0,
        0,
    )
    usages = [line["response"]["body"]["usage"] for line in found.values()]
    assert document["generated_tokens"] == sum(usage["completion_tokens"] for usage in usages)
    assert document["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in usages)
    assert document["cached_tokens"] == sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)


@pytest.mark.usefixtures("in_process")
def test_a_shared_beginning_is_counted_as_cached(kvist: Command, tmp_path: Path, out: Path) -> None:
    head = "The same beginning for all of them, long enough for some blocks of tokens. "
    lines = [request(number, prompt=head + str(number)) for number in range(4)]
    kvist("batch", write(tmp_path / "r", *lines), "-o", str(out), "--in-flight", "1")
    cached = [
        line["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"] for line in results(out).values()
    ]
    assert cached == [0, len(head), len(head), len(head)]


@pytest.mark.usefixtures("in_process")
def test_bad_lines_carry_their_errors_and_stop_no_other(kvist: Command, tmp_path: Path, out: Path) -> None:
    bad = {
        "no json": "{",
        "no url": {"custom_id": "no url", "body": {}},
        "temperature": request(1, temperature=-1) | {"custom_id": "temperature"},
        "long": request(2, prompt="x" * 600) | {"custom_id": "long"},
        "empty": request(3, prompt="") | {"custom_id": "empty"},
        "second": request(4, prompt=["good", ""]) | {"custom_id": "second"},
        "retention": request(5, retention="window:0") | {"custom_id": "retention"},
    }
    file = write(tmp_path / "r", request(7), *bad.values(), request(8))
    done = kvist("batch", file, "-o", str(out), "--json")
    assert done.code == 0
    assert (done.json["succeeded"], done.json["failed"]) == (2, len(bad))
    assert "7 failed" in done.err
    found = results(out)
    assert found["r8"]["error"] is None
    for custom_id, said in (
        (None, "is no JSON"),
        ("no url", 'has no "url"'),
        ("temperature", "temperature must be"),
        ("long", "600 tokens"),
        ("empty", "not one token"),
        ("second", "not one token"),
        ("retention", "window must keep between 1"),
    ):
        line = found[custom_id]
        assert said in line["error"]["message"]
        assert line["response"]["status_code"] == 400
        assert line["response"]["body"]["error"]["message"] == line["error"]["message"]


@pytest.mark.usefixtures("in_process")
def test_a_second_run_skips_what_is_done(kvist: Command, tmp_path: Path, out: Path) -> None:
    file = write(tmp_path / "r", *map(request, range(4)), "{")
    kvist("batch", file, "-o", str(out))
    before = out.read_bytes()
    again = kvist("batch", file, "-o", str(out), "--json").json
    assert (again["skipped"], again["succeeded"], again["failed"]) == (5, 0, 0)
    assert out.read_bytes() == before
    file = write(tmp_path / "r", *map(request, range(4)), "{", request(5), request(1, seed=3))
    assert kvist("batch", file, "-o", str(out)).code == 1  # r1 stands there twice now
    file = write(tmp_path / "r", request(0), request(1, seed=3), request(5))
    again = kvist("batch", file, "-o", str(out), "--json").json
    assert (again["skipped"], again["succeeded"]) == (1, 2)  # a line that was changed is another one


@pytest.mark.usefixtures("in_process")
def test_the_default_pool_is_small_and_all_finish(kvist: Command, tmp_path: Path, out: Path) -> None:
    file = write(tmp_path / "r", *(request(number, max_tokens=60) for number in range(40)))
    found = kvist("batch", file, "-o", str(out), "--json", "--kv-budget", "20KiB", "--context", "100").json
    assert found["succeeded"] == 40


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        ([request(1), request(1)], (), 'custom_id "r1" stands in lines 1 and 2'),
        ([request(1)], ("--kv", "int3"), 'unknown codec "int3"'),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(
    kvist: Command, tmp_path: Path, out: Path, lines: list[Any], options: tuple[str, ...], said: str
) -> None:
    done = kvist("batch", write(tmp_path / "r", *lines), "-o", str(out), *options)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert said in done.err
    assert not out.exists()


@pytest.mark.usefixtures("in_process")
def test_the_file_of_requests_is_no_place_for_results(kvist: Command, tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text(json.dumps(request(1)))  # without a newline, as a torn result would be
    before = path.read_bytes()
    (tmp_path / "link").hardlink_to(path)
    for output in (path, tmp_path / "link"):
        done = kvist("batch", str(path), "-o", str(output))
        assert (done.code, done.err.count("\n")) == (1, 1)
        assert "is the file of requests; give -o another one" in done.err
    assert path.read_bytes() == before


def test_what_is_printed_is_no_place_for_results(tmp_path: Path) -> None:
    file, printed = write(tmp_path / "r", request(1)), tmp_path / "printed"
    with printed.open("wb") as stdout:
        process = start("batch", file, "-o", "/dev/stdout", stdout=stdout)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"is where this command prints" in err
    assert printed.read_bytes() == b""


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, out: Path) -> None:
    file = write(tmp_path / "r", *(request(number, max_tokens=20) for number in range(30)))
    command = ("batch", file, "-o", str(out), "--in-flight", "3", "--json")
    process = start(*command, step_s="0.02")
    deadline = time.monotonic() + 60
    while (not out.exists() or out.read_bytes().count(b"\n") < 4) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"the same command goes on" in err
    num_done = out.read_bytes().count(b"\n")
    assert 4 <= num_done < 30
    with out.open("ab") as stream:
        stream.write(b'{"id": "batch_req_00')
    process = start(*command)
    stdout, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert b"was torn" in err
    document = json.loads(stdout.splitlines()[-1])
    assert (document["skipped"], document["succeeded"]) == (num_done, 30 - num_done)
    assert set(results(out)) == {f"r{number}" for number in range(30)}


def test_a_long_file_does_not_go_into_memory(tmp_path: Path) -> None:
    """Requests are read as they are needed: after the first results most of the file is unread."""
    from fakes.decoder import FakeDecoder
    from fakes.model import fake_files

    from kvist.cache.kv_cache import KvCache
    from kvist.engine.engine import Engine
    from kvist.openai.batch import BatchRun
    from kvist.openai.batch_results import ResultFile
    from kvist.spec.cache import CacheSpec

    files, spec = fake_files(), CacheSpec()
    decoder = FakeDecoder(files.spec)
    engine = Engine(
        decoder, KvCache(files.spec, spec, num_tokens=256), spec, context_length=256, tokenizer=files.tokenizer
    )
    path = tmp_path / "r"
    write(path, *(request(number, max_tokens=2) for number in range(500)))
    most = 0

    def look(_done: int) -> None:
        nonlocal most
        stats = engine.stats()
        most = max(most, stats.num_running + stats.num_waiting)

    with ResultFile(tmp_path / "out") as results_file:
        totals = BatchRun(engine, files, results_file, in_flight=8, on_line=look).run(path)
    assert totals.num_succeeded == 500
    assert most <= 8
    assert not engine.has_work


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, out: Path) -> None:
    """Nothing is cleaned up at the end of this one; its lock goes with it."""
    file = write(tmp_path / "r", *(request(number, max_tokens=20) for number in range(30)))
    command = ("batch", file, "-o", str(out), "--in-flight", "3", "--json")
    process = start(*command, step_s="0.02")
    deadline = time.monotonic() + 60
    while (not out.exists() or out.read_bytes().count(b"\n") < 4) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    before = out.read_bytes()
    whole = before[: before.rfind(b"\n") + 1]
    process = start(*command)
    stdout, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    document = json.loads(stdout.splitlines()[-1])
    assert document["skipped"] == whole.count(b"\n")
    assert out.read_bytes().startswith(whole)
    assert set(results(out)) == {f"r{number}" for number in range(30)}


def test_two_runs_into_one_file(tmp_path: Path, out: Path) -> None:
    """The second is refused in one line, and changes nothing."""
    file = write(tmp_path / "r", *(request(number, max_tokens=20) for number in range(30)))
    first = start("batch", file, "-o", str(out), "--in-flight", "3", step_s="0.5")
    try:
        deadline = time.monotonic() + 60
        while not (out.exists() and out.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)
        second = start("batch", file, "-o", str(out))
        _, err = second.communicate(timeout=60)
        assert (second.returncode, err.count(b"\n")) == (1, 1)
        assert b"another run is writing" in err
        first.send_signal(signal.SIGINT)
    finally:
        first.communicate(timeout=60)
    assert first.returncode == 130
    assert results(out)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("data", "num_failed"),
    [(b"", 0), (b"\n \n", 0), (b"\0" * 100, 1), (bytes(range(256)), 2), (b"[" * 100_000, 1), (b"\xff\xfe{\0}\0", 1)],
    ids=["empty", "blank", "zeros", "binary", "nested", "utf-16"],
)
def test_a_file_that_holds_no_requests(kvist: Command, tmp_path: Path, out: Path, data: bytes, num_failed: int) -> None:
    file = tmp_path / "r"
    file.write_bytes(data)
    done = kvist("batch", str(file), "-o", str(out), "--json")
    assert done.code == 0, done.err
    assert (done.json["requests"], done.json["failed"], done.json["succeeded"]) == (num_failed, num_failed, 0)
    assert out.read_bytes().count(b"\n") == num_failed
    again = kvist("batch", str(file), "-o", str(out), "--json")
    assert (again.json["skipped"], again.json["failed"]) == (num_failed, 0)
