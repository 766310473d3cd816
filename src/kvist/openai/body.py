"""A request's body as OpenAI's endpoints take it, made into the engine's requests.

What a body leaves out is the model's own, else ``SamplingParams``' default. Besides OpenAI's fields it may have those
that other engines know too (``top_k``, ``min_p``, ``repetition_penalty``, ``stop_token_ids``, ``ignore_eos``) and
kvist's own (``priority``, ``cache_salt``, ``speculation``, ``retention``, ``on_limit``). A field that nobody would look
at is refused, not dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvist.engine.files import ModelFiles
from kvist.engine.limit import ON_LIMIT, OnLimit, check_on_limit
from kvist.engine.request import Request, SamplingParams
from kvist.errors import RequestError
from kvist.openai.fields import Fields, is_token_ids, wrong
from kvist.spec.retention import parse_retention

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
URLS = (CHAT, COMPLETIONS)

_NUMBERS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
_WHOLES = ("top_k", "seed", "n", "speculation")
_SHARED = (
    *_NUMBERS, *_WHOLES, "model", "max_tokens", "stop", "stop_token_ids", "ignore_eos", "logit_bias", "logprobs",
    "priority", "cache_salt", "retention", "on_limit", "stream", "user", "metadata", "store", "service_tier",
)  # fmt: skip
_CHAT_ALONE = (
    "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "response_format", "modalities",
    "parallel_tool_calls",
)  # fmt: skip
_COMPLETIONS_ALONE = ("prompt", "best_of", "echo", "suffix")


@dataclass(frozen=True)
class Asked:
    """What a body asks for: a request for each prompt, with the same settings, to be answered in ``url``'s shape."""

    url: str
    requests: tuple[Request, ...]

    @property
    def is_chat(self) -> bool:
        return self.url == CHAT


def read_body(files: ModelFiles, url: str, body: Mapping[str, Any]) -> Asked:
    """Return what ``body`` asks of the endpoint ``url``. Raises RequestError naming the field that is wrong."""
    fields = Fields(body, "the body")
    if url not in URLS:
        raise RequestError(f'unknown url "{url}"; known: {", ".join(URLS)}')
    fields.refuse({"stream": False}, "has no meaning in a batch")
    if url == CHAT:
        fields.check_known((*_SHARED, *_CHAT_ALONE))
        fields.refuse({"tools": [], "tool_choice": "none"}, "isn't there: kvist calls no tools")
        fields.refuse({"response_format": {"type": "text"}, "modalities": ["text"]}, "isn't there: answers are text")
        return Asked(url, (_chat_request(files, fields),))
    fields.check_known((*_SHARED, *_COMPLETIONS_ALONE))
    fields.refuse({"echo": False, "suffix": ""}, "isn't there")
    prompts = _prompts(files, fields.needed("prompt"))
    params = _params(files, fields, fields.whole("logprobs"))
    return Asked(url, tuple(_request(fields, ids, params) for ids in prompts))


def _chat_request(files: ModelFiles, fields: Fields) -> Request:
    messages = _messages(fields.needed("messages"))
    token_ids = files.encode_chat(messages)
    params = _params(files, fields, _chat_logprobs(fields))
    return _request(fields, token_ids, params, num_first=files.num_system_tokens(messages, token_ids))


def _request(fields: Fields, token_ids: Sequence[int], params: SamplingParams, *, num_first: int = 0) -> Request:
    """Return a request with what is said of it besides its sampling."""
    retention, on_limit = fields.text("retention"), fields.text("on_limit")
    return Request(
        tuple(token_ids),
        params,
        priority=fields.whole("priority") or 0,
        salt=fields.text("cache_salt") or "",
        retention=None if retention is None else parse_retention(retention, '"retention" in the body'),
        on_limit=None if on_limit is None else _on_limit(on_limit),
        num_first=num_first,
    )


def _on_limit(name: str) -> OnLimit:
    check_on_limit(name)
    return next(known for known in ON_LIMIT if known == name)


def _params(files: ModelFiles, fields: Fields, logprobs: int | None) -> SamplingParams:
    given: dict[str, Any] = {name: fields.number(name) for name in _NUMBERS}
    given |= {name: fields.whole(name) for name in (*_WHOLES, "best_of")}
    given["max_tokens"] = fields.whole("max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens")
    given["stop"] = fields.texts("stop")
    given["stop_token_ids"] = fields.wholes("stop_token_ids")
    given["ignore_eos"] = fields.boolean("ignore_eos")
    given["logit_bias"] = fields.biases("logit_bias")
    given["logprobs"] = logprobs
    return replace(files.params, **{name: value for name, value in given.items() if value is not None})


def _chat_logprobs(fields: Fields) -> int | None:
    """Return how many likeliest tokens a chat's body wants at each position; None: no log-probabilities."""
    is_wanted, num_top = fields.boolean("logprobs"), fields.whole("top_logprobs")
    if num_top is not None and not is_wanted:
        raise RequestError('"top_logprobs" in the body needs "logprobs": true')
    return (num_top or 0) if is_wanted else None


def _messages(found: Any) -> list[dict[str, str]]:
    if not isinstance(found, list) or not found:
        raise wrong('"messages" in the body', 'a list such as [{"role": "user", "content": "Hello"}]', found)
    return [_message(message, number) for number, message in enumerate(found)]


def _message(found: Any, number: int) -> dict[str, str]:
    what = f"message {number} in the body"
    if not isinstance(found, dict):
        raise wrong(what, 'an object such as {"role": "user", "content": "Hello"}', found)
    fields = Fields(found, what)
    fields.check_known(("role", "content", "name"))
    role, content = fields.text("role"), fields.needed("content")
    if role is None:
        raise RequestError(f'{what} has no "role"')
    return {"role": role, "content": content if isinstance(content, str) else _joined(content, what)}


def _joined(parts: Any, what: str) -> str:
    """Return the text of a content that comes in parts."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise wrong(f'"content" of {what}', "a text or a list of parts", parts)
    for part in parts:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise wrong(f'a part of the "content" of {what}', 'a text such as {"type": "text", "text": "Hello"}', part)
    return "".join(part["text"] for part in parts)


def _prompts(files: ModelFiles, found: Any) -> list[list[int]]:
    """Return the token ids of each prompt: a text, token ids, or a list of either."""
    if isinstance(found, str):
        return [files.encode(found)]
    if is_token_ids(found) and found:
        return [found]
    if isinstance(found, list) and found and all(isinstance(part, str) or is_token_ids(part) for part in found):
        return [files.encode(part) if isinstance(part, str) else part for part in found]
    raise wrong('"prompt" in the body', "a text, a list of token ids, or a list of either", found)
