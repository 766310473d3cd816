"""The command line on SmolLM2 itself: the cache changes speed and never results, and counts say so."""

from __future__ import annotations

import threading

import pytest
from fakes.command import Command

from kvist import LLM, SamplingParams
from kvist.spec.cache import CacheSpec, allocated_bytes, logical_bytes

OPTIONS = ("-p", "Tell me about rivers.", "--json", "--logits-digest", "--context", "512")
SHORT = SamplingParams(max_tokens=12)


@pytest.fixture(scope="module")
def expected() -> tuple[str, int]:
    """The digest of 12 greedy tokens, and the prompt's length."""
    with LLM("smollm2-135m", context=512) as llm:
        prompt = llm.files.encode_chat([{"role": "user", "content": "Tell me about rivers."}])
        result = llm.generate(prompt, SHORT, digest=True)
    assert result.logits_sha256 is not None
    return result.logits_sha256, len(prompt)


@pytest.mark.parametrize(
    "options", [(), ("--no-cache",), ("--threads", "1"), ("--threads", "3"), ("--kv-budget", "8MiB")]
)
def test_what_changes_speed_changes_no_bit(kvist: Command, expected: tuple[str, int], options: tuple[str, ...]) -> None:
    found = kvist("generate", *OPTIONS, "-n", "12", *options).json
    digest, num_prompt = expected
    assert found["logits_sha256"] == digest
    num_held = num_prompt + 11
    rows = sum(range(num_prompt, num_prompt + 12)) if "--no-cache" in options else num_held
    assert found["forward_tokens"] == rows
    with LLM("smollm2-135m", context=64) as llm:
        spec = llm.spec
    assert found["kv"]["logical_bytes"] == logical_bytes(spec, CacheSpec(), num_held)
    assert found["kv"]["allocated_bytes"] == allocated_bytes(spec, CacheSpec(), num_held)


def test_sampled_answers_are_the_same_with_and_without_the_cache(kvist: Command) -> None:
    sampling = ("-n", "12", "--temperature", "0.9", "--top-p", "0.95", "--top-k", "200", "--seed", "11")
    cached, uncached = (kvist("generate", *OPTIONS, *sampling, *more).json for more in ((), ("--no-cache",)))
    assert cached["token_ids"] == uncached["token_ids"]
    assert cached["logits_sha256"] == uncached["logits_sha256"]


def test_chats_second_turn_computes_only_its_new_text(kvist: Command) -> None:
    done = kvist("chat", "--json", "-n", "10", "--context", "512", stdin=b"Hello\nAnd what is a twig?\n")
    first, second = done.json["turns"]
    assert second["cached_tokens"] == first["prompt_tokens"] + first["generated_tokens"] - 1
    new_tokens = second["prompt_tokens"] - second["cached_tokens"]
    assert second["forward_tokens"] == new_tokens + second["generated_tokens"] - 1
    with LLM("smollm2-135m", context=512) as llm:
        messages = done.json["messages"]
        alone = llm.chat(messages[:3], SamplingParams(max_tokens=10))
    assert alone.text == messages[3]["content"]


def test_two_models_generate_at_the_same_time(expected: tuple[str, int]) -> None:
    prompt = [{"role": "user", "content": "Tell me about rivers."}]
    digests: list[str | None] = []

    def generate(llm: LLM) -> None:
        for _ in range(3):
            result = llm.generate(llm.files.encode_chat(prompt), SHORT, digest=True)
            digests.append(result.logits_sha256)

    with LLM("smollm2-135m", context=512) as one, LLM("smollm2-135m", context=512) as two:
        threads = [threading.Thread(target=generate, args=(llm,)) for llm in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert digests == [expected[0]] * 6
