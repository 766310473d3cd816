"""OpenAI's bodies as requests, and results as theirs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fakes.model import byte_tokenizer, fake_files

from kvist.engine.request import SamplingParams
from kvist.engine.result import KvUsage, Result, TokenLogprobs
from kvist.errors import KvistError
from kvist.openai.answer import answer_body
from kvist.openai.body import CHAT, COMPLETIONS, Asked, read_body

FILES = fake_files(params=SamplingParams(temperature=0.5, top_k=7))
HELLO = [{"role": "user", "content": "Hello"}]
RESULT = Result(
    text="Hi", token_ids=(72, 105), prompt_tokens=20, cached_tokens=16, forward_tokens=5, finish_reason="stop",
    ttft_s=None, tpot_s=None, seed=0, kv=KvUsage("bf16", "bf16", 1, 1, 1, 1),
)  # fmt: skip


def test_a_chat_goes_through_the_template() -> None:
    asked = read_body(FILES, CHAT, {"model": "any", "messages": HELLO})
    assert [request.token_ids for request in asked.requests] == [tuple(FILES.encode_chat(HELLO))]
    assert asked.requests[0].params == FILES.params
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]
    assert read_body(FILES, CHAT, {"messages": parts}) == asked


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("ab", [(97, 98)]),
        ([1, 2], [(1, 2)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_prompts_in_every_form(prompt: Any, token_ids: list[tuple[int, ...]]) -> None:
    asked = read_body(FILES, COMPLETIONS, {"prompt": prompt})
    assert [request.token_ids for request in asked.requests] == token_ids


def test_every_setting_arrives() -> None:
    body = {
        "prompt": "x", "max_tokens": 5, "temperature": 1, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 9, "n": 2,
        "best_of": 3, "stop": "end", "stop_token_ids": [4], "presence_penalty": 0.1, "frequency_penalty": 0.2,
        "repetition_penalty": 1.1, "logit_bias": {"65": -1}, "logprobs": 2, "ignore_eos": True, "speculation": 4,
        "priority": 3, "cache_salt": "mine", "retention": "window:64", "on_limit": "slide",
        "user": "me", "stream": False, "echo": None,
    }  # fmt: skip
    (request,) = read_body(FILES, COMPLETIONS, body).requests
    assert request.params == SamplingParams(
        max_tokens=5, temperature=1, top_p=0.9, top_k=3, min_p=0.1, seed=9, n=2, best_of=3, stop=("end",),
        stop_token_ids=(4,), presence_penalty=0.1, frequency_penalty=0.2, repetition_penalty=1.1,
        logit_bias={65: -1.0}, logprobs=2, ignore_eos=True, speculation=4,
    )  # fmt: skip
    assert (request.priority, request.salt) == (3, "mine")
    assert (str(request.retention), request.on_limit) == ("window:64", "slide")
    chat = {"messages": HELLO, "max_completion_tokens": 6, "max_tokens": 5, "logprobs": True, "top_logprobs": 2}
    params = read_body(FILES, CHAT, chat).requests[0].params
    assert (params.max_tokens, params.logprobs, params.temperature, params.top_k) == (6, 2, 0.5, 7)
    assert read_body(FILES, CHAT, {"messages": HELLO, "logprobs": True}).requests[0].params.logprobs == 0


@pytest.mark.parametrize(
    ("url", "body", "said"),
    [
        ("/v1/embeddings", {}, 'unknown url "/v1/embeddings"'),
        (CHAT, {}, 'the body has no "messages"'),
        (CHAT, {"messages": []}, '"messages" in the body must be a list'),
        (CHAT, {"messages": ["x"]}, "message 0 in the body must be an object"),
        (CHAT, {"messages": [{"role": "user"}]}, 'message 0 in the body has no "content"'),
        (CHAT, {"messages": [{"content": "x"}]}, 'message 0 in the body has no "role"'),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "must be a text or a list of parts"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "must be a text such as"),
        (CHAT, {"messages": [{**HELLO[0], "tool_calls": []}]}, 'unknown field "tool_calls" in message 0'),
        (CHAT, {"messages": HELLO, "prompt": "x"}, 'unknown field "prompt" in the body'),
        (CHAT, {"messages": HELLO, "stream": True}, '"stream" has no meaning in a batch'),
        (CHAT, {"messages": HELLO, "tools": [{}]}, "calls no tools"),
        (CHAT, {"messages": HELLO, "response_format": {"type": "json_object"}}, "answers are text"),
        (CHAT, {"messages": HELLO, "top_logprobs": 3}, 'needs "logprobs": true'),
        (CHAT, {"messages": HELLO, "logprobs": 3}, '"logprobs" in the body must be true or false, got 3'),
        (COMPLETIONS, {}, 'the body has no "prompt"'),
        (COMPLETIONS, {"prompt": ""}, None),
        (COMPLETIONS, {"prompt": []}, '"prompt" in the body must be a text'),
        (COMPLETIONS, {"prompt": [1, "x"]}, '"prompt" in the body must be a text'),
        (COMPLETIONS, {"prompt": "x", "echo": True}, '"echo" isn\'t there'),
        (COMPLETIONS, {"prompt": "x", "temprature": 1}, 'unknown field "temprature" in the body; known: '),
        (COMPLETIONS, {"prompt": "x", "temperature": "hot"}, "\"temperature\" in the body must be a number, got 'hot'"),
        (COMPLETIONS, {"prompt": "x", "temperature": -1}, "temperature must be 0 (greedy) or more"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": True}, "must be a whole number, got True"),
        (COMPLETIONS, {"prompt": "x", "n": 0}, "n must be from 1"),
        (COMPLETIONS, {"prompt": "x", "stop": [1]}, "must be a text or a list of texts"),
        (COMPLETIONS, {"prompt": "x", "stop_token_ids": ["a"]}, "must be a list of whole numbers"),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {"a": 1}}, 'must be an object such as {"42": -1.5}'),
        (COMPLETIONS, {"prompt": "x", "logit_bias": [1]}, 'must be an object such as {"42": -1.5}'),
        (COMPLETIONS, {"prompt": "x", "cache_salt": 1}, "must be a text, got 1"),
        (COMPLETIONS, {"prompt": "x", "retention": "some"}, 'unknown policy "some" for "retention" in the body'),
        (COMPLETIONS, {"prompt": "x", "on_limit": "cry"}, 'unknown on_limit "cry"; known: stop, truncate'),
    ],
)
def test_what_is_wrong_is_named(url: str, body: dict[str, Any], said: str | None) -> None:
    if said is None:  # the engine refuses it with its own words
        assert read_body(FILES, url, body).requests[0].token_ids == ()
        return
    with pytest.raises(KvistError) as caught:
        read_body(FILES, url, body)
    assert said in str(caught.value)


def body_of(asked: Asked, *results: Result) -> dict[str, Any]:
    found = answer_body(
        asked, results, tokenizer=byte_tokenizer(), model="fake", request_id="id-1", created_s=1_700_000_000
    )
    return json.loads(json.dumps(found))


def test_a_chats_answer() -> None:
    found = body_of(Asked(CHAT, ()), replace(RESULT, finish_reason="context"))
    assert found == {
        "id": "id-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi"},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 20,
            "completion_tokens": 2,
            "total_tokens": 22,
            "prompt_tokens_details": {"cached_tokens": 16},
        },
    }


def test_choices_of_several_prompts_are_numbered_through() -> None:
    two = replace(RESULT, choices=(RESULT, replace(RESULT, text="Ho", finish_reason="length")))
    found = body_of(Asked(COMPLETIONS, ()), two, RESULT)
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in found["choices"]] == [
        (0, "Hi", "stop"),
        (1, "Ho", "length"),
        (2, "Hi", "stop"),
    ]
    assert found["usage"]["prompt_tokens"] == 40
    assert found["usage"]["completion_tokens"] == 6


def test_log_probabilities() -> None:
    entries = (TokenLogprobs(72, -0.5, ((72, -0.5), (73, -1.0))), TokenLogprobs(195, -0.25, ()))
    answer = replace(RESULT, logprobs=entries)
    content = body_of(Asked(CHAT, ()), answer)["choices"][0]["logprobs"]["content"]
    assert content[0]["token"] == "H"
    assert content[0]["bytes"] == [72]
    assert content[0]["top_logprobs"][1] == {"token": "I", "logprob": -1.0, "bytes": [73]}
    assert content[1]["bytes"] == [195]
    assert body_of(Asked(COMPLETIONS, ()), answer)["choices"][0]["logprobs"] == {
        "tokens": ["H", "�"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"H": -0.5, "I": -1.0}, {}],
        "text_offset": [0, 1],
    }
