"""``kvist explain``: two prompts, the tokenizer, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.command import Command
from fakes.model import install

SHARED = "You are a clerk. Answer in a word. "
REST = "The rules of the house are these: be kind, be brief, be right."


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert install(monkeypatch) == []
    monkeypatch.chdir(tmp_path)


def write(**texts: str) -> None:
    for name, text in texts.items():
        Path(f"{name}.txt").write_text(text, encoding="utf-8")


def test_where_two_prompts_part_and_what_to_move(kvist: Command) -> None:
    write(a=f"{SHARED}Today is Monday. {REST}", b=f"{SHARED}Today is Tuesday. {REST}")
    done = kvist("explain", "a.txt", "b.txt", "--json")
    assert done.code == 0, done.err
    found, at = done.json, len(SHARED) + len("Today is ")
    assert (found["shared_tokens"], found["shared_blocks"], found["block_tokens"]) == (at, at // 16, 16)
    assert (found["a_tokens"], found["b_tokens"]) == (at + 8 + len(REST), at + 9 + len(REST))
    assert found["shared_text"] == "rd. Today is "[-12:]
    assert (found["a_text"], found["b_text"]) == (f"Monday. {REST}"[:12], f"Tuesday. {REST}"[:12])
    again = found["again"]
    assert again["text"] == f"day. {REST}"
    assert (again["tokens"], again["a_position"], again["b_position"]) == (len(again["text"]), at + 3, at + 4)
    assert f"{at + again['tokens']} tokens are shared" in found["advice"]
    for part in (f"at token {at}", '"Monday. The ', '"Tuesday. The', "whole blocks of 16", "advice"):
        assert part in done.err


@pytest.mark.parametrize(
    ("a", "b", "shared", "advice"),
    [
        ("same", "same", 4, "the prompts are the same"),
        ("same", "same and more", 4, "the beginning of the longer one"),
        ("one", "two", 0, "no stretch of a block in common"),
    ],
)
def test_where_nothing_is_to_be_done(kvist: Command, a: str, b: str, shared: int, advice: str) -> None:
    write(a=a, b=b)
    found = kvist("explain", "a.txt", "b.txt", "--json").json
    assert found["shared_tokens"] == shared
    assert found["again"] is None
    assert advice in found["advice"]
    assert "advice" in kvist("explain", "a.txt", "b.txt").out


def test_texts_and_messages_in_the_chat_template(kvist: Command) -> None:
    write(a="Hello", b="Help")
    plain, chat = (
        kvist("explain", "a.txt", "b.txt", "--json").json,
        kvist("explain", "a.txt", "b.txt", "--chat", "--json").json,
    )
    head = len("user\n") + 1
    assert (plain["shared_tokens"], chat["shared_tokens"]) == (3, 3 + head)
    messages = [{"role": "user", "content": "Hello"}]
    Path("a.json").write_text(json.dumps(messages), encoding="utf-8")
    Path("b.json").write_text(json.dumps({"messages": messages, "n": 1}), encoding="utf-8")
    assert kvist("explain", "a.json", "b.json", "--json").json["is_same"]
    assert kvist("explain", "a.json", "a.txt", "--chat", "--json").json["is_same"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[1]", "no list of messages"),
        ('{"role": "user"}', "no list of messages"),
        ("[" * 100_000, "nested too deeply"),
        ("", "is empty; a prompt has at least one token"),
    ],
)
def test_a_file_that_holds_no_messages_is_one_line(kvist: Command, text: str, said: str) -> None:
    Path("a.json").write_text(text, encoding="utf-8")
    done = kvist("explain", "a.json", "a.json")
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1
    assert said in done.err


def test_a_missing_file_is_one_line(kvist: Command) -> None:
    done = kvist("explain", "no.txt", "no.txt")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "No such file" in done.err
