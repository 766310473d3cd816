"""``kvist eval`` on a tiny model with a tokenizer of bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.command import Command
from fakes.model import byte_tokenizer
from tiny.models import tiny_model
from tiny.tensors import write_directory

from kvist.checkpoint.tokenizer import Tokenizer
from kvist.engine import files
from kvist.kernels import jit

KEYS = {
    "k", "v", "keep_layers", "retention", "bytes_per_token", "bytes", "perplexity", "perplexity_change", "kl_mean",
    "kl_p99", "top1_agreement", "tpot_s", "needle", "needle_depths",
}  # fmt: skip


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    assert jit.cache_directory() is not None  # settled, so that kernels stay where they are
    monkeypatch.setattr(jit, "cache_root", lambda: tmp_path / "cache")
    monkeypatch.setattr(files, "load_tokenizer", lambda _: byte_tokenizer())
    (tmp_path / "text.txt").write_bytes(b"The quick brown fox jumps over the lazy dog. " * 20)
    made = tiny_model("llama", 6)
    return str(write_directory(replace(made, config=made.config | {"vocab_size": 258}), tmp_path / "model"))


class Beginning:
    """A tokenizer that begins what it encodes with token 1."""

    bos_token_id = 1

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_ids = tokenizer.eos_token_ids
        self.vocab_size, self.special_token_ids = tokenizer.vocab_size, tokenizer.special_token_ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + self._tokenizer.encode(text, add_special_tokens=False)


def test_a_row_for_each_combination_and_a_second_run_that_measures_nothing(
    kvist: Command, model: str, tmp_path: Path
) -> None:
    text = ("--text", str(tmp_path / "text.txt"), "--tokens", "500", "--context", "200", "--depths", "0.5")
    options = (*text, "--kv", "bf16,f32/bf16,bf16", "--threads", "1", "--json")
    done = kvist("eval", model, *options, "--plot", str(tmp_path / "quality.svg"))
    assert done.code == 0, done.err
    found = done.json
    assert [(row["k"], row["v"], row["retention"]) for row in found["rows"]] == [
        ("bf16", "bf16", "all"),
        ("f32", "bf16", "all"),
    ]
    assert all(set(row) == KEYS for row in found["rows"])
    assert found["rows"][1]["bytes"] > found["rows"][0]["bytes"]
    assert (found["context"], found["text_tokens"], found["compared_tokens"]) == (200, 500, 497)
    assert {"reference_perplexity", "machine", "model", "threads", "text_digest"} <= set(found)
    assert "KL mean" in done.err
    assert (tmp_path / "quality.svg").stat().st_size > 1000
    again = kvist("eval", model, *options)
    assert again.json["rows"] == found["rows"]
    assert "100% was done before" in again.err
    anew = kvist("eval", model, *options, "--times", "again")
    assert without_times(anew.json) == without_times(found)
    assert "% was done before" in anew.err and "100%" not in anew.err
    assert "was done before" not in kvist("eval", model, *options, "--state", str(tmp_path / "other")).err


def without_times(document: dict[str, Any]) -> list[dict[str, object]]:
    return [{**row, "tpot_s": None} for row in document["rows"]]


def test_decode_times_may_wait(kvist: Command, model: str, tmp_path: Path) -> None:
    text = ("--text", str(tmp_path / "text.txt"), "--tokens", "200", "--depths", "none", "--kv", "bf16", "--json")
    skipped = kvist("eval", model, *text, "--threads", "1", "--times", "skip")
    assert skipped.json["rows"] == without_times(skipped.json)
    assert " - " in skipped.err.splitlines()[-1]
    added = kvist("eval", model, *text, "--threads", "2")
    assert without_times(added.json) == skipped.json["rows"]
    assert added.json["rows"][0]["tpot_s"] > 0
    assert "% was done before" in added.err, "whatever the number of threads"


def test_the_default_text_is_there(kvist: Command, model: str) -> None:
    found = kvist("eval", model, "--tokens", "64", "--context", "64", "--depths", "none", "--kv", "bf16", "--json").json
    assert found["text_tokens"] == 64
    assert found["rows"][0]["needle"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--kv", "int3"), 'unknown codec "int3" for --kv'),
        (("--kv", "bf16/int3"), 'unknown codec "int3" for --kv'),
        (("--kv", "bf16,,f32"), "--kv takes a list with commas"),
        (("--retention", "some"), 'unknown policy "some" for --retention'),
        (("--depths", "2"), "--depths takes numbers from 0 to 1"),
        (("--depths", "deep"), "--depths takes numbers from 0 to 1"),
        (("--context", "30", "--tokens", "90"), "hide no pass key"),
        (("--context", "641"), "--context must be from 2 to 640 tokens, as trained, got 641"),
        (("--text", "/no/such/file"), 'can\'t read the text file "/no/such/file": No such file'),
        (("--text", "-"), "the text on stdin isn't valid UTF-8"),
        (("--kv", ""), '--kv takes a list with commas, got ""; known: f32, bf16, int8, int4'),
        (("--kv", "bf16/int8/int4"), '--kv takes a codec, or two as K/V, got "bf16/int8/int4"; known: f32, bf16'),
        (("--kv", "bf16/"), 'unknown codec "" for --kv'),
        (("--retention", ""), '--retention takes a list with commas, got ""; known: all, window:N'),
        (("--kv", "bf16,f32", "--kv-keep-layers", "99"), "there is no layer 99 to keep in bf16"),
        (("--kv", "int8", "--kv-keep-layers", "99"), "there is no layer 99 to keep in bf16"),
        (
            ("--tokens", "100", "--context", "128"),
            "--tokens 100 takes less of the text than a context of 128 needs; raise",
        ),
        (("--threads", "0"), "threads must be from 1 to 1024, got 0"),
        (("--threads", "100000"), "threads must be from 1 to 1024, got 100000"),
        (("--state", "/dev/null"), '"/dev/null", which is no file; give another to --state'),
        (("--state", "/dev/null/x"), "Not a directory; give --state a file that can be read and written"),
        (("--state", __file__), "holds no state of kvist eval"),
        (("--state", __file__, "--fresh"), "holds no state of kvist eval"),
        (("--state", "book.svg", "--text", "./book.svg"), '--state and --text are the same file, "book.svg"; give'),
        (("--state", "./book.svg", "--plot", "book.svg", "--fresh"), "--state and --plot are the same file"),
        (("--plot", "picture.gif"), "can't draw into"),
        (("--times", "never"), '--times takes once, skip, again; got "never"'),
    ],
)
def test_what_cannot_be_measured_is_one_line(kvist: Command, model: str, options: tuple[str, ...], said: str) -> None:
    done = kvist("eval", model, *options, stdin=b"\xff")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert said in done.err


def test_a_text_that_is_too_short_is_refused_where_a_context_is_asked_for(
    kvist: Command, model: str, tmp_path: Path
) -> None:
    (tmp_path / "short.txt").write_bytes(b"short")
    short = ("eval", model, "--text", str(tmp_path / "short.txt"), "--kv", "bf16", "--depths", "none", "--json")
    done = kvist(*short, "--context", "200")
    assert done.code == 1
    assert "the text has 5 tokens, fewer than a context of 200" in done.err
    assert kvist(*short).json["context"] == 5
    (tmp_path / "short.txt").write_bytes(b"s")
    assert "the text has 1 token, fewer than a context of 2" in kvist(*short).err


@pytest.mark.parametrize("threads", ["0", "-1", "100000"])
@pytest.mark.parametrize(
    "command", ["eval", "bench speed", "bench memory", "bench codec", "bench long", "report -o page.html"]
)
def test_threads_are_refused_as_an_engine_refuses_them(kvist: Command, model: str, command: str, threads: str) -> None:
    done = kvist(*command.split(), model, "--threads", threads)
    assert done.code == 1
    assert done.err == kvist("generate", model, "--raw", "-p", "hello", "--threads", threads).err


def test_a_state_that_no_run_could_use_is_told_before_a_model_is_opened(kvist: Command, tmp_path: Path) -> None:
    done = kvist("eval", str(tmp_path / "no model"), "--state", str(tmp_path))
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "which is no file; give another to --state" in done.err
    (tmp_path / "file").touch()
    done = kvist("eval", str(tmp_path / "no model"), "--state", str(tmp_path / "file" / "state"), "--fresh")
    assert "Not a directory; give --state" in done.err


def test_a_window_without_two_tokens_of_the_text_is_one_line(
    kvist: Command, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beginning = Beginning(byte_tokenizer())
    monkeypatch.setattr(files, "load_tokenizer", lambda _: beginning)
    (tmp_path / "two.txt").write_bytes(b"ab")
    short = ("eval", model, "--depths", "none", "--kv", "bf16")
    done = kvist(*short, "--context", "2")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "--context 2 has no place for two tokens of the text beside the 1 that the model begins with" in done.err
    done = kvist(*short, "--text", str(tmp_path / "two.txt"))
    assert "the text has 2 tokens, fewer than a context of 3" in done.err


def test_a_cache_directory_that_cannot_be_written_is_told_before_a_model_is_opened(
    kvist: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(jit, "cache_root", lambda: tmp_path / "file")
    assert "give --state a file that can be read and written" in kvist("eval", str(tmp_path / "no model")).err
