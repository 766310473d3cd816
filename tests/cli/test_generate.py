"""``kvist generate``: what it prints where, what it refuses, and what its JSON holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.command import Command
from fakes.model import START, fake_spec, install

from kvist import LLM, SamplingParams

KEYS = {
    "text",
    "token_ids",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "finish_reason",
    "dropped_tokens",
    "queue_s",
    "num_preemptions",
    "drafted_tokens",
    "accepted_tokens",
    "miss",
    "forward_tokens",
}
KEYS |= {"ttft_s", "tpot_s", "seed", "kv", "model", "context_length", "threads", "startup_s"}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, answer=list("Hellå there.".encode()))


def test_text_goes_to_stdout_and_one_line_to_stderr(kvist: Command) -> None:
    done = kvist("generate", "-p", "Hello", "-n", "13")
    assert (done.code, done.out) == (0, "Hellå there.\n")
    assert done.err.count("\n") == 1
    for part in ("24 prompt tokens", "first token after", "13 generated", "ms each", "KV", "reserved", "-n sets"):
        assert part in done.err


def test_json_is_the_last_line_and_text_goes_to_stderr(kvist: Command) -> None:
    done = kvist("generate", "-p", "Hello", "-n", "13", "--json", "--logits-digest", "--logprobs", "2")
    assert done.out.count("\n") == 1
    assert done.err.startswith("Hellå there.\n")
    found = done.json
    assert set(found) == KEYS | {"logits_sha256", "logprobs"}
    assert found["text"] == "Hellå there."
    assert found["prompt_tokens"] + found["generated_tokens"] - 1 == found["forward_tokens"] == 24 + 12
    assert set(found["kv"]) == {"k", "v", "bytes_per_token", "logical_bytes", "allocated_bytes", "pool_bytes"}
    assert set(found["startup_s"]) == {"import", "load", "compile", "prefill", "total"}
    assert found["startup_s"]["total"] == pytest.approx(sum(found["startup_s"].values()) / 2)
    assert [len(entry["top"]) for entry in found["logprobs"]] == [2] * 13
    assert found["logprobs"][0]["token"] == "H"
    assert found["logprobs"][0]["logprob"] < 0


def test_no_cache_recomputes_and_says_the_same(kvist: Command) -> None:
    options = ("generate", "-p", "Hello", "-n", "5", "--json", "--logits-digest")
    cached, uncached = kvist(*options).json, kvist(*options, "--no-cache").json
    assert cached["logits_sha256"] == uncached["logits_sha256"]
    assert uncached["forward_tokens"] == sum(24 + n for n in range(5))


def test_the_template_is_the_default_and_raw_leaves_it_out(kvist: Command) -> None:
    assert kvist("generate", "-p", "Hello", "--json", "-n", "1").json["prompt_tokens"] == 24
    assert kvist("generate", "-p", "Hello", "--json", "-n", "1", "--raw").json["prompt_tokens"] == 5
    system = kvist("generate", "-p", "Hello", "--json", "-n", "1", "--system", "Be brief").json
    assert system["prompt_tokens"] == 24 + len("system\nBe brief\n") + 2


def test_without_a_template_the_prompt_is_given_as_it_is(kvist: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, template=None)
    assert kvist("generate", "-p", "Hello", "--json", "-n", "1").json["prompt_tokens"] == 5
    done = kvist("generate", "-p", "Hello", "--chat")
    assert done.code == 1
    assert "no chat template" in done.err


def test_prompts_from_a_file_and_from_stdin(kvist: Command, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"Hello\n")
    alone = kvist("generate", "-p", "Hello", "--json", "-n", "3", "--raw").json["token_ids"]
    for options, stdin in (
        (("--prompt-file", str(file)), b""),
        (("--prompt-file", "-"), b"Hello\n"),
        ((), b"Hello\r\n"),
        ((), b"Hello"),
    ):
        found = kvist("generate", *options, "--json", "-n", "3", "--raw", stdin=stdin).json
        assert (found["prompt_tokens"], found["token_ids"]) == (5, alone)


def test_special_tokens_in_a_raw_prompt_are_special(kvist: Command) -> None:
    assert kvist("generate", "--raw", "-p", "<|im_start|>x", "--json", "-n", "1").json["prompt_tokens"] == 2
    assert START == 256


def test_settings_reach_the_engine(kvist: Command) -> None:
    options = ("-n", "20", "--temperature", "1.5", "--seed", "7", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.01")
    penalties = ("--repetition-penalty", "1.1", "--presence-penalty", "0.2", "--frequency-penalty", "0.3")
    ends = ("--stop", "zz", "--stop", "qq", "--stop-token-id", "3", "--ignore-eos", "--logit-bias", "65=-2.5")
    found = kvist("generate", "-p", "Hello", "--raw", "--json", *options, *penalties, *ends).json
    params = SamplingParams(
        max_tokens=20, temperature=1.5, seed=7, top_k=40, top_p=0.9, min_p=0.01, repetition_penalty=1.1,
        presence_penalty=0.2, frequency_penalty=0.3, stop=("zz", "qq"), stop_token_ids=(3,), ignore_eos=True,
        logit_bias={65: -2.5},
    )  # fmt: skip
    with LLM("any") as llm:
        assert list(llm.generate("Hello", params).token_ids) == found["token_ids"]
    assert found["seed"] == 7


def test_sampling_defaults_are_the_models_own(kvist: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, generation_config={"do_sample": True, "temperature": 1.5, "top_k": 30})
    options = ("generate", "-p", "Hello", "--raw", "--json", "-n", "20", "--seed", "3")
    with LLM("any") as llm:
        own = llm.generate("Hello", SamplingParams(max_tokens=20, temperature=1.5, top_k=30, seed=3))
        greedy = llm.generate("Hello", SamplingParams(max_tokens=20))
    assert kvist(*options).json["token_ids"] == list(own.token_ids)
    assert kvist(*options, "--temperature", "0").json["token_ids"] == list(greedy.token_ids)


def test_settings_without_effect_are_named(kvist: Command) -> None:
    done = kvist("generate", "-p", "Hello", "-n", "1", "--top-k", "5", "--min-p", "0.1")
    assert "--top-k, --min-p changes nothing at temperature 0" in done.err


def test_memory_and_context(kvist: Command) -> None:
    found = kvist("generate", "-p", "Hello", "--json", "-n", "1", "--ctx", "64", "--threads", "3", "--kv-k", "f32").json
    assert (found["context_length"], found["threads"]) == (64, 3)
    assert (found["kv"]["k"], found["kv"]["v"]) == ("f32", "bf16")
    budget = kvist("generate", "-p", "Hello", "--json", "-n", "1", "--kv-budget", "1MiB").json
    assert 2**20 - 16 * budget["kv"]["bytes_per_token"] < budget["kv"]["pool_bytes"] <= 2**20


def test_a_cache_that_holds_less_than_the_context_is_named(kvist: Command) -> None:
    done = kvist("generate", "-p", "Hello", "-n", "1", "--kv-budget", "9KiB")
    assert "the cache holds 64 of the context's 256 tokens: a budget of 9KiB; --kv-budget sets it" in done.err


def test_the_end_of_the_context_is_named(kvist: Command) -> None:
    done = kvist("generate", "-p", "Hello", "--raw", "--context", "32", "--ignore-eos")
    assert done.code == 0
    assert "ended at the context's 32 tokens" in done.err


@pytest.mark.parametrize(
    ("options", "stdin", "said"),
    [
        (("-p", ""), b"", "the prompt is empty"),
        ((), b"abc\xff", "stdin isn't valid UTF-8 (byte 0xFF at offset 3)"),
        (("-p", "caf\udce9"), b"", "isn't valid UTF-8"),
        (("--prompt-file", "/no/such/file"), b"", "No such file"),
        (("--prompt-file", "/"), b"", "Is a directory"),
        (("-p", "x" * 300), b"", "the prompt has 300 tokens and the context holds 256"),
        (("-p", "x", "--temperature", "-1"), b"", "temperature must be 0 (greedy) or more, got -1.0"),
        (("-p", "x", "-n", "0"), b"", "max_tokens must be at least 1"),
        (("-p", "x", "--kv", "int3"), b"", 'unknown codec "int3" for --kv; known: f32, bf16'),
        (("-p", "x", "--kv-v", "int3"), b"", 'unknown codec "int3" for --kv-v; known: f32, bf16, int8, int4'),
        (("-p", "x", "--kv-budget", "1KiB"), b"", "a KV budget of 1024 bytes holds no block"),
        (("-p", "x", "--kv-budget", "much"), b"", 'not a size: "much"'),
        (("-p", "x", "--kv-budget", "900TiB"), b"", "of free memory"),
        (("-p", "x", "--context", "0"), b"", "the context must be at least 1 token, got 0"),
        (("-p", "x", "--threads", "0"), b"", "threads must be from 1"),
        (("-p", "x", "--logit-bias", "999=1"), b"", "logit_bias must be token ids from 0 to 263, got 999"),
    ],
)
def test_bad_input_is_one_line_and_1(kvist: Command, options: tuple[str, ...], stdin: bytes, said: str) -> None:
    done = kvist("generate", "--raw", *options, stdin=stdin)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert said in done.err


def test_bad_input_is_refused_before_anything_is_loaded(kvist: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = install(monkeypatch)
    for options in (("-p", "x" * 300), ("-p", "x", "--kv-budget", "1KiB"), ("-p", "x", "--top-p", "2")):
        assert kvist("generate", *options).code == 1
    assert loaded == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--no-such-option",), "--no-such-option"),
        (("-n", "many"), "-n"),
        (("-p", "a", "--prompt-file", "b"), "not both"),
        (("-p", "a", "--raw", "--chat"), "--raw"),
        (("-p", "a", "--logit-bias", "5"), "ID=BIAS"),
    ],
)
def test_usage_errors_are_2(kvist: Command, options: tuple[str, ...], said: str) -> None:
    done = kvist("generate", *options)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_broken_template_is_one_line(kvist: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, template="{% for %}")
    done = kvist("generate", "-p", "x")
    assert done.code == 1
    assert done.err.startswith("error: the chat template is broken at line 1")
    assert done.err.count("\n") == 1


def test_the_prompt_longer_than_a_small_context(kvist: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_spec(context_length=8))
    assert "the prompt has 9 tokens and the context holds 8" in kvist("generate", "--raw", "-p", "123456789").err


def test_several_answers_to_one_prompt(kvist: Command) -> None:
    settings = ("--temperature", "9", "--seed", "3", "-n", "6", "--ignore-eos")
    done = kvist("generate", "-p", "Hello", "--choices", "2", "--best-of", "3", "--json", *settings)
    choices = done.json["choices"]
    assert [choice["generated_tokens"] for choice in choices] == [6, 6]
    assert choices[0]["text"] == done.json["text"] != choices[1]["text"]
    shown = kvist("generate", "-p", "Hello", "--choices", "2", "--best-of", "3", *settings)
    assert shown.out == f"[1] {choices[0]['text']}\n\n[2] {choices[1]['text']}\n"
    best = kvist("generate", "-p", "Hello", "--best-of", "3", *settings)
    assert best.out == choices[0]["text"] + "\n"


def test_why_nothing_came_from_the_cache(kvist: Command) -> None:
    done = kvist("generate", "-p", "Hello", "-n", "2", "--explain", "--json")
    assert done.json["miss"] == {"kind": "never_stored", "position": 0}
    assert "from the cache: the first 0 tokens; nothing that goes on like it was stored" in done.err
    assert (done.json["num_preemptions"], done.json["drafted_tokens"]) == (0, 0)
    assert done.json["queue_s"] >= 0


def test_guessing_ahead_gives_the_same(kvist: Command) -> None:
    plain = kvist("generate", "-p", "abcabcabcabc", "-n", "60", "--logits-digest", "--json")
    guessed = kvist("generate", "-p", "abcabcabcabc", "-n", "60", "--logits-digest", "--json", "--speculation", "8")
    assert guessed.json["logits_sha256"] == plain.json["logits_sha256"]
    assert plain.json["drafted_tokens"] == 0
