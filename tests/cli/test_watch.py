"""``kvist watch`` on the fake model: lines where there is no terminal, frames in one."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys

import pytest
from fakes.command import TESTS, Command
from fakes.model import fake_spec, install

from kvist import LLM
from kvist.cli.watch_view import View, bars, line, steps
from kvist.engine.request import Request, SamplingParams
from kvist.lab.watching import CACHED, FREE, SHARED, Frame, Watch

PROMPT = "The same beginning, as long as two blocks. "
ANSWER = b"That is all there is to say."


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_spec(256), answer=list(ANSWER), step_tokens=32)


def test_without_a_terminal_it_is_a_line_a_pass(kvist: Command) -> None:
    done = kvist("watch", "--raw", "-p", PROMPT, "-n", "6")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("pass 1: A prefill 32 at 0 | blocks: ")
    assert lines[1].startswith("pass 2: A prefill 11 at 32 -> 'T' | ")
    assert [text.split(" | ")[0] for text in lines[2:]] == [
        f"pass {number}: A decode {40 + number} -> {chr(said)!r}" for number, said in enumerate(ANSWER[1:6], start=3)
    ]
    assert "\x1b" not in done.out


def test_a_prompt_is_a_users_message(kvist: Command) -> None:
    raw, asked = (kvist("watch", *more, "-p", "Hi", "-n", "4", "--json").json["results"][0] for more in (["--raw"], []))
    assert raw["prompt_tokens"] == 2
    assert asked["prompt_tokens"] > 2


def test_json_has_what_was_seen(kvist: Command) -> None:
    done = kvist("watch", "--raw", "-p", PROMPT + "One.", "-p", PROMPT + "Two.", "-n", "4", "--gap", "6", "--json")
    assert done.code == 0, done.err
    first, second = done.json["results"]
    assert (first["request"], second["request"]) == ("A", "B")
    assert first["cached_tokens"] == 0
    assert second["cached_tokens"] == len(PROMPT)
    assert first["generated_tokens"] == second["generated_tokens"] == 4
    assert done.json["stats"]["hit_rate"] == len(PROMPT) / (2 * len(PROMPT) + 8)
    assert done.json["passes"] >= 8
    assert done.out.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--head", "2"), "--head must be from 0 to 1, the last layer's query heads; got 2"),
        (("-n", "250"), "don't fit the context of 256"),
        (tuple(["-p", "x"] * 27), "at most 26 prompts, got 27"),
    ],
)
def test_what_cannot_be_watched_is_one_line(kvist: Command, options: tuple[str, ...], said: str) -> None:
    done = kvist("watch", *options)
    assert (done.code, done.out) == (1, "")
    assert said in done.err.splitlines()[-1]


# ---- frames --------------------------------------------------------------------------------------------------------


def frames(*prompts: str, gap: int = 0, max_tokens: int = 4) -> list[Frame]:
    with LLM("any", kv_budget="1MiB") as llm:
        params = SamplingParams(max_tokens=max_tokens)
        requests = [Request(tuple(llm.files.encode(prompt)), params) for prompt in prompts]
        found = list(Watch(llm.engine, requests, gap=gap).frames())
        assert not llm.engine.has_work
        llm.engine.on_pass(None, None)  # type: ignore[arg-type]  # nobody watches any more
        return found


def test_the_grid_shows_whose_a_block_is() -> None:
    alone = frames(PROMPT)
    assert [frame.blocks[0].count("A") for frame in alone] == [2, 3, 3, 3, 0]
    assert alone[-1].blocks[0].count(CACHED) == alone[-1].counts["cached"] > 0
    together = frames(PROMPT + "One.", PROMPT + "Two.", gap=3, max_tokens=12)
    shared = [frame for frame in together if SHARED in frame.blocks[0]]
    assert shared and all(frame.blocks[0].count(SHARED) == 2 for frame in shared[:4])
    for frame in (*alone, *together):
        grid = frame.blocks[0]
        used = len(grid) - grid.count(FREE) - grid.count(CACHED)
        assert {"free": grid.count(FREE), "cached": grid.count(CACHED), "used": used} == frame.counts


def test_works_say_where_tokens_went() -> None:
    first, second, third, *_ = frames(PROMPT)
    (work,) = first.works
    assert (work.is_prefill, work.position, len(work.token_ids), work.chosen) == (True, 0, 32, None)
    (work,) = second.works
    assert (work.position, work.num_seen, work.chosen) == (32, 43, ord("T"))
    (work,) = third.works
    assert not work.is_prefill
    assert (work.position, work.token_ids, work.block, work.place) == (43, (ord("T"),), 2, 11)
    said = steps(third, chr)
    assert [text.split(":")[0] for text in said] == ["A decode", "A append", "A attend", "A choose"]
    assert "44 keys" in said[2]
    assert line(third, chr).startswith("pass 3: A decode 43 -> 'h' | blocks: ")


def test_attention_is_of_the_pass_that_ran() -> None:
    for frame in frames(PROMPT):
        found, (work,) = frame.attention, frame.works
        assert found is not None
        assert found.positions == tuple(range(work.num_seen))
        assert sum(found.weights) == pytest.approx(1)
        assert found.top(1) == [(work.num_seen - 1, work.token_ids[-1], 0.5)]


def test_looking_takes_none_of_the_engines_time() -> None:
    now_s = 0.0
    with LLM("any", kv_budget="1MiB") as llm:

        def clock() -> float:
            return now_s

        llm.engine.clock = clock
        request = Request(tuple(llm.files.encode(PROMPT)), SamplingParams(max_tokens=3))
        results = []
        for frame in Watch(llm.engine, [request]).frames():
            now_s += 1000
            results.append(frame.results[0][1])
        assert llm.engine.clock is clock
    assert results[-1].ttft_s == results[-1].tpot_s == 0


def test_bars_have_the_width_and_keep_the_largest() -> None:
    assert bars((0.25, 1.0, 0.0), 80) == "▄█ "
    long = [0.0] * 1000
    long[617] = 1.0
    drawn = bars(tuple(long), 50)
    assert len(drawn) == 50
    assert drawn.index("█") == 617 // 20


def test_a_frame_is_drawn_in_the_width_there_is() -> None:
    from rich.console import Console

    *_, frame = frames(PROMPT + "One.", PROMPT + "Two.", gap=3, max_tokens=12)[:8]
    console = Console(width=60, force_terminal=False, record=True, file=io.StringIO())
    console.print(View("about", chr, 60).render(frame, "what happens"))
    text = console.export_text()
    assert all(len(row) <= 60 for row in text.splitlines())
    assert "what happens" in text and "hit rate" in text and "attention of B's token" in text
    assert text.count(SHARED) >= 2


def test_in_a_terminal_frames_take_each_others_place() -> None:
    """As a process in a pseudo terminal: colours, the grid, and --slow's steps in order."""
    main, terminal = pty.openpty()
    environment = os.environ | {
        "FAKE_ANSWER": ANSWER.decode(),
        "TERM": "xterm-256color",
        "COLUMNS": "90",
        "LINES": "40",
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "fakes", "watch", "-p", PROMPT, "-n", "3", "--slow", "0"]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    written = b""
    while select.select([main], [], [], 60)[0]:
        try:
            piece = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        written += piece
    assert process.wait(60) == 0, written
    os.close(main)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())
    assert b"\x1b[" in written
    places = [text.index(word) for word in ("A prefill", "A append", "A attend", "A choose", "A decode")]
    assert places == sorted(places)
    assert "AAA" in text and "attention of A's token" in text
