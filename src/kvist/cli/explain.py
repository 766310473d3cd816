"""``kvist explain``: what two prompts share as the cache sees it, where they part, and what to move to share more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvist.cli import options
from kvist.cli.output import Output, command
from kvist.cli.prompt import read_prompt
from kvist.errors import RequestError
from kvist.spec.cache import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvist.cache.explain import Shared
    from kvist.engine.files import ModelFiles

_AROUND = 12
"""Tokens that are shown on either side of where the prompts part."""
_LEAST_WORTH = BLOCK_TOKENS
"""A common stretch shorter than this isn't worth an advice."""


@command
def explain(
    a: Annotated[str, typer.Argument(metavar="A", help="A prompt's file: text, or a .json with a list of messages.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="Whose tokenizer: a name, a path, or hf:ORG/NAME[:FILE].")
    ] = options.DEFAULT_MODEL,
    is_chat: Annotated[
        bool, typer.Option("--chat", help="Put each text into the chat template, as a user's message.")
    ] = False,
    is_json: options.Json = False,
) -> None:
    """Compare two prompts as the cache does: tokens and blocks that they share, where they part, what to move."""
    from kvist.cache.explain import explain_pair
    from kvist.engine.files import open_model

    out = Output(is_json)
    with open_model(model) as files:
        a_ids, b_ids = (_token_ids(files, name, is_chat=is_chat) for name in (a, b))
        found = explain_pair(a_ids, b_ids)
        facts = _facts(files, found, a_ids, b_ids)
    for line in _lines(facts, Path(a).name, Path(b).name):
        out.line(line)
    out.finish({"model": model, "a": a, "b": b, **facts})


def _token_ids(files: ModelFiles, name: str, *, is_chat: bool) -> list[int]:
    text = read_prompt(None, name)
    if not text:
        raise RequestError(f'"{name}" is empty; a prompt has at least one token')
    if name.lower().endswith(".json"):
        return files.encode_chat(_messages(name, text))
    return files.encode_chat([{"role": "user", "content": text}]) if is_chat else files.encode(text)


def _messages(name: str, text: str) -> list[dict[str, str]]:
    """Return the messages of a list of them, or of an object that has such a list under "messages"."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise RequestError(f'"{name}" is nested too deeply for a list of messages') from None
    except ValueError as error:
        raise RequestError(f'"{name}" is no JSON: {error}; a prompt as text goes into a file of another name') from None
    messages = found.get("messages") if isinstance(found, dict) else found
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        raise RequestError(f'"{name}" holds no list of messages such as [{{"role": "user", "content": "Hello"}}]')
    return messages


def _is_message(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("role"), str) and isinstance(found.get("content"), str)


def _facts(files: ModelFiles, found: Shared, a_ids: Sequence[int], b_ids: Sequence[int]) -> dict[str, Any]:
    tokenizer = files.require_tokenizer()

    def text(ids: Sequence[int], start: int, end: int) -> str:
        return tokenizer.decode(ids[max(0, start) : end], continues_text=start > 0)

    at = found.num_shared
    again = {
        "tokens": found.num_again,
        "a_position": found.again_a,
        "b_position": found.again_b,
        "text": text(a_ids, found.again_a, found.again_a + found.num_again),
    }
    return {
        "a_tokens": found.num_a,
        "b_tokens": found.num_b,
        "shared_tokens": at,
        "shared_blocks": found.num_shared_blocks,
        "block_tokens": BLOCK_TOKENS,
        "is_same": found.is_same,
        "shared_text": text(a_ids, at - _AROUND, at),
        "a_text": text(a_ids, at, at + _AROUND),
        "b_text": text(b_ids, at, at + _AROUND),
        "again": again if found.num_again >= _LEAST_WORTH else None,
        "advice": _advice(found),
    }


def _advice(found: Shared) -> str:
    """Return what to do to share more."""
    if found.is_same:
        return "nothing to do: the prompts are the same, and all but the last token is reused"
    if found.num_shared == min(found.num_a, found.num_b):
        return "nothing to do: the shorter prompt is the beginning of the longer one"
    if found.num_again < _LEAST_WORTH:
        return "nothing to move: behind the place where they part they have no stretch of a block in common"
    return (
        f"put the {found.num_again} tokens that both have further on before what differs: then "
        f"{found.num_shared + found.num_again} tokens are shared, about, instead of {found.num_shared}"
    )


def _lines(facts: dict[str, Any], a: str, b: str) -> list[str]:
    at, again = facts["shared_tokens"], facts["again"]
    rest = at - facts["shared_blocks"] * BLOCK_TOKENS
    more = f", and {rest} tokens of the next, which are copied" if rest else ""
    rows = [
        (a, f"{facts['a_tokens']} tokens"),
        (b, f"{facts['b_tokens']} tokens"),
        ("shared", f"{at} tokens: {facts['shared_blocks']} whole blocks of {BLOCK_TOKENS}{more}"),
    ]
    if not facts["is_same"]:
        rows.append(
            ("parting", f"at token {at}, after {_quoted(facts['shared_text'])}" if at else "at the first token")
        )
        rows += [(f"  {name}", _quoted(facts[key]) if facts[key] else "ends here") for name, key in _sides(a, b)]
    if again is not None:
        places = f"token {again['a_position']} of {a} and token {again['b_position']} of {b}"
        rows.append(("again", f"{again['tokens']} tokens, from {places} on: {_quoted(_shortened(again['text']))}"))
    rows.append(("advice", facts["advice"]))
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


def _sides(a: str, b: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (a, "a_text"), (b, "b_text")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:60]} ... {text[-30:]}"
