"""``kvist chat``: turns that compute only their new text, its commands, and a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fakes.command import TESTS, Command, start
from fakes.model import fake_spec, install

if TYPE_CHECKING:
    from typing_extensions import Self


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_spec(512), answer=[*b"Yes.", 257])


def test_turn_two_computes_only_its_new_text(kvist: Command) -> None:
    done = kvist("chat", "--json", "--system", "Be brief", stdin=b"Hello\nAnd now?\n")
    assert done.code == 0
    first, second = done.json["turns"]
    assert first["cached_tokens"] == 0
    assert first["forward_tokens"] == first["prompt_tokens"] + 4
    # <|im_end|> ended the answer without entering the model; "\n" + the new turn + the answer's four letters follow.
    new = 1 + len("\n") + 1 + len("user\nAnd now?") + 1 + len("\n") + 1 + len("assistant\n")
    assert second["cached_tokens"] == first["forward_tokens"]
    assert second["forward_tokens"] == new + 4
    assert second["prompt_tokens"] == second["cached_tokens"] + new
    assert done.json["messages"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": "Yes."},
    ]


def test_answers_go_to_stdout_and_lines_about_them_to_stderr(kvist: Command) -> None:
    done = kvist("chat", stdin=b"Hello\n\nAgain\n/exit\nnever\n")
    assert done.out == "Yes.\nYes.\n"
    assert done.err.count("prompt tokens") == 2
    assert "from the cache" in done.err


def test_reset_forgets(kvist: Command) -> None:
    done = kvist("chat", "--json", stdin=b"Hello\n/reset\nHello\n")
    first, second = done.json["turns"]
    assert (first["prompt_tokens"], first["text"]) == (second["prompt_tokens"], second["text"])  # nothing comes before
    assert (first["cached_tokens"], second["cached_tokens"]) == (0, first["prompt_tokens"] - 1)  # but the cache has it
    assert len(done.json["messages"]) == 2


def test_save(kvist: Command, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    done = kvist("chat", stdin=f"Hello\n/save {file}\nMore\n/save {file}\n".encode())
    assert done.code == 0
    saved = json.loads(file.read_text())
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant", "user", "assistant"]
    assert kvist("chat", stdin=f"Hello\n/save {file}\n".encode()).code == 1
    assert json.loads(file.read_text()) == saved


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/save", "/save needs a file name"),
        ("/save /no/such/directory/x", "No such file or directory"),
        ("/nonsense", "unknown command /nonsense; known: /help, /reset, /save"),
        ("x" * 600, "the context holds 512"),
        ("caf\udcff", "line 1 of stdin isn't valid UTF-8"),
    ],
)
def test_a_pipes_first_error_ends_the_chat(kvist: Command, line: str, said: str) -> None:
    done = kvist("chat", stdin=f"{line}\nHello\n".encode(errors="surrogateescape"))
    assert done.code == 1
    assert done.out == ""
    assert said in done.err


def test_help(kvist: Command) -> None:
    done = kvist("chat", stdin=b"/help\n")
    for command in ("/help", "/reset", "/save FILE", "/exit"):
        assert command in done.err


def test_a_full_context_leaves_out_the_oldest_turns_and_says_so(kvist: Command) -> None:
    lines = "".join(f"Question {number} {'x' * 60}\n" for number in range(12))
    done = kvist("chat", "--json", stdin=lines.encode())
    assert done.code == 0
    assert "the context holds 512 tokens: left out the oldest" in done.err
    assert all(turn["prompt_tokens"] < 512 for turn in done.json["turns"])
    assert len(done.json["messages"]) == 24


def test_a_chat_that_slides_leaves_out_nothing_by_itself(kvist: Command) -> None:
    lines = "".join(f"Question {number} {'x' * 60}\n" for number in range(12))
    done = kvist("chat", "--on-limit", "slide", "--json", stdin=lines.encode())
    assert done.code == 0
    assert "left out the oldest" not in done.err
    last = done.json["turns"][-1]
    assert last["prompt_tokens"] > 512
    assert last["dropped_tokens"] > last["prompt_tokens"] - 512
    assert f"{last['dropped_tokens']} oldest tokens forgotten" in done.err


def test_a_model_without_a_template_is_refused(kvist: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, template=None)
    done = kvist("chat", stdin=b"Hello\n")
    assert done.code == 1
    assert "no chat template" in done.err


def test_names_of_special_tokens_in_a_message_are_text(kvist: Command) -> None:
    plain = kvist("chat", "--json", stdin=b"a\n").json["turns"][0]["prompt_tokens"]
    steering = kvist("chat", "--json", stdin=b"<|im_end|>\n").json["turns"][0]["prompt_tokens"]
    assert steering == plain + len("<|im_end|>") - 1


class Terminal:
    """A chat in a terminal of its own."""

    def __init__(self, home: Path, **fake: str) -> None:
        environment = {f"FAKE_{name.upper()}": value for name, value in fake.items()}
        environment |= {"PYTHONPATH": str(TESTS), "XDG_STATE_HOME": str(home), "TERM": "dumb"}
        self._descriptor, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fakes", "chat"],
            env=os.environ | environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def send(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def expect(self, text: str) -> None:
        """Read until ``text`` has been shown; forget what was up to there."""
        end = time.monotonic() + 60
        while text not in self.seen:
            assert select.select([self._descriptor], [], [], max(0.0, end - time.monotonic()))[0], self.seen
            self.seen += os.read(self._descriptor, 4096).decode()
        self.seen = self.seen.partition(text)[2]

    def interrupt(self) -> int:
        """Press Ctrl-C until the chat ends; return its exit code.

        Python misses the first one where it comes between the prompt and the wait for a key: a person presses again.
        """
        for _ in range(12):
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(timeout=10)
        raise AssertionError(f"no end after many Ctrl-C: {self.seen}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._descriptor)


def test_a_terminal(tmp_path: Path) -> None:
    with Terminal(tmp_path, answer="Yes. " * 100, step_s="0.1") as terminal:  # longer than the next takes
        terminal.expect("/help lists commands")
        terminal.expect("> ")
        terminal.send("/nonsense\r")
        terminal.expect("error: unknown command /nonsense")
        terminal.send("Hello\r")
        terminal.expect("Yes.")
        terminal.process.send_signal(signal.SIGINT)
        terminal.expect("interrupted")
        terminal.expect("> ")
        terminal.send("\x1b[A\x1b[A\r")
        terminal.expect("error: unknown command /nonsense")
        terminal.expect("> ")
        terminal.send("\x04")
        assert terminal.process.wait(timeout=60) == 0
    history = tmp_path / "kvist" / "chat_history"
    assert history.read_text().splitlines() == ["/nonsense", "Hello", "/nonsense"]
    assert history.stat().st_mode & 0o077 == 0


def test_ctrl_c_at_the_prompt_leaves(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.expect("> ")
        assert terminal.interrupt() == 130


def test_ctrl_c_ends_a_chat_from_a_pipe() -> None:
    process = start("chat", "--json", stdin=-1, step_s="0.05", answer="abcdefghijklmnopqrstuvwxyz")
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"Hello\nAgain\n")
    process.stdin.flush()
    assert os.read(process.stderr.fileno(), 1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    found = json.loads(out)
    assert [message["role"] for message in found["messages"]] == ["user", "assistant"]
    assert "abcdefghijklmnopqrstuvwxyz".startswith(found["messages"][1]["content"])
