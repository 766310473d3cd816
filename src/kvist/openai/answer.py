"""Results as the body of an answer in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvist.checkpoint.tokenizer import Tokenizer
from kvist.engine.result import FinishReason, Result, TokenLogprobs
from kvist.openai.body import Asked

_REASONS: dict[FinishReason, str] = {"stop": "stop", "length": "length", "context": "length"}
"""OpenAI has one word for every end for want of room."""


def answer_body(
    asked: Asked, results: Sequence[Result], *, tokenizer: Tokenizer, model: str, request_id: str, created_s: int
) -> dict[str, Any]:
    """Return the body: a choice for each answer, the prompts' in their order, and what was used."""
    answers = [answer for result in results for answer in result.choices or (result,)]
    choose = _chat_choice if asked.is_chat else _text_choice
    return {
        "id": request_id,
        "object": "chat.completion" if asked.is_chat else "text_completion",
        "created": created_s,
        "model": model,
        "choices": [choose(answer, index, tokenizer) for index, answer in enumerate(answers)],
        "usage": _usage(results, answers),
    }


def _usage(results: Sequence[Result], answers: Sequence[Result]) -> dict[str, Any]:
    prompt_tokens = sum(result.prompt_tokens for result in results)
    completion_tokens = sum(answer.generated_tokens for answer in answers)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(result.cached_tokens for result in results)},
    }


def _chat_choice(answer: Result, index: int, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": answer.text},
        "logprobs": _chat_logprobs(answer, tokenizer),
        "finish_reason": _REASONS[answer.finish_reason],
    }


def _text_choice(answer: Result, index: int, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "index": index,
        "text": answer.text,
        "logprobs": _text_logprobs(answer, tokenizer),
        "finish_reason": _REASONS[answer.finish_reason],
    }


def _chat_logprobs(answer: Result, tokenizer: Tokenizer) -> dict[str, Any] | None:
    if answer.logprobs is None:
        return None

    def token(token_id: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token_id)
        return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}

    def position(entry: TokenLogprobs) -> dict[str, Any]:
        top = [token(token_id, logprob) for token_id, logprob in entry.top]
        return {**token(entry.token_id, entry.logprob), "top_logprobs": top}

    return {"content": [position(entry) for entry in answer.logprobs]}


def _text_logprobs(answer: Result, tokenizer: Tokenizer) -> dict[str, Any] | None:
    if answer.logprobs is None:
        return None
    tokens = [tokenizer.token_text(entry.token_id) for entry in answer.logprobs]
    offsets = [sum(map(len, tokens[:number])) for number in range(len(tokens))]
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in answer.logprobs],
        "top_logprobs": [
            {tokenizer.token_text(token_id): logprob for token_id, logprob in entry.top} for entry in answer.logprobs
        ],
        "text_offset": offsets,
    }
