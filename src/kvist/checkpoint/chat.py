"""From messages to the text that a model was trained on, by the Jinja template that its checkpoint brings.

A template is a program by a stranger. It runs in Jinja's immutable sandbox, set up as transformers does it, and
sees nothing but JSON values: no attribute beginning with an underscore, no change to what it is given; `chat_limits`
bounds the text that it makes and the time that it takes. Of the clock it has `strftime_now`, unless the caller gives
another.

Rules: https://huggingface.co/docs/transformers/main/en/chat_templating_writing
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.utils import Namespace

from kvist.checkpoint.chat_limits import LimitedEnvironment, charge_text_of, limited
from kvist.checkpoint.files import quote
from kvist.errors import CheckpointError, RequestError

MAX_MESSAGE_DEPTH = 32
_MAX_QUOTED = 300


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, object]] | None = None,
    bos_token: str = "",
    eos_token: str = "",
    **extra: object,
) -> str:
    """The text of a conversation, with the start of the assistant's reply if `add_generation_prompt`.

    A message is a mapping with at least `role`; keys whose value is None count as missing. `tools` are JSON
    schemas of functions. `extra` are more variables for the template (`enable_thinking`, `pad_token`,
    `strftime_now` ...). The text holds what BOS it needs: encode it with `add_special_tokens=False`.

    Raises RequestError for messages that are malformed or that the template refuses, CheckpointError for a template
    that is broken, fails, or tries what the sandbox forbids.
    """
    variables = {
        "messages": checked_messages(messages),
        "tools": None if tools is None else plain_value(tools, "tools"),
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos_token,
        "eos_token": eos_token,
        **{name: value if callable(value) else plain_value(value, name) for name, value in extra.items()},
    }
    compiled = _compile(template)
    try:
        with limited(variables):
            return compiled.render(variables)
    except _Refusal as refusal:
        raise RequestError(f"the model's chat template refuses these messages: {_one_line(refusal)}") from None
    except SecurityError as error:
        raise CheckpointError(f"the chat template tries what its sandbox forbids: {_one_line(error)}") from None
    except Exception as error:  # noqa: BLE001 (a template can raise whatever Python can)
        raise CheckpointError(
            f"the chat template fails on these messages: {type(error).__name__}: {_one_line(error)}"
        ) from None


class _Refusal(jinja2.TemplateError):
    """A template called `raise_exception`: the messages don't suit it."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant said, for training; here it only lets its body through."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own spelling)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_pass_through"), [], [], body).set_lineno(line)

    @staticmethod
    def _pass_through(caller: Callable[[], str]) -> str:
        return caller()


class _SafeNamespace(Namespace):
    """`namespace(...)` without attributes that begin with an underscore."""

    def __init__(*args: object, **kwargs: object) -> None:
        for name in dict(*args[1:], **kwargs):
            _refuse_underscore(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: object) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace with the attribute {name}")


@lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    environment = LimitedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, LoopControlExtension]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _SafeNamespace
    environment.globals["dict"] = _dict
    try:
        return environment.from_string(template)
    except TemplateSyntaxError as error:
        raise CheckpointError(
            f"the chat template is broken at line {error.lineno}: {_one_line(error.message)}"
        ) from None
    except Exception as error:  # noqa: BLE001 (Python's compiler and Jinja's raise many kinds)
        raise CheckpointError(
            f"the chat template can't be compiled: {type(error).__name__}: {_one_line(error)}"
        ) from None


def _raise_exception(message: object) -> None:
    raise _Refusal(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # noqa: DTZ005 (local time, as templates expect)


def _dict(*args: object, **kwargs: object) -> dict[str, object]:
    return dict(*args, **kwargs)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's filter of this name it escapes nothing for HTML."""
    charge_text_of(value, 1 + (max(0, indent) if isinstance(indent, int) else len(indent or "")))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def checked_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """A copy made of plain values; keys whose value is None are left out. Raises RequestError for malformed ones."""
    if isinstance(messages, (str, bytes, Mapping)):
        raise RequestError(f"messages must be a list of messages, got a {type(messages).__name__}")
    return [_checked_message(message, number) for number, message in enumerate(messages)]


def _checked_message(message: object, number: int) -> dict[str, object]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f'message {number} must be a mapping with a text "role", got {quote(message)}')
    where = f"message {number}"
    return {str(key): plain_value(value, where) for key, value in message.items() if value is not None}


def plain_value(value: object, where: str, depth: int = 0) -> object:
    """A copy made of nothing but JSON's kinds of values, whose methods the sandbox knows. Else RequestError."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth < MAX_MESSAGE_DEPTH and isinstance(value, Mapping):
        return {str(key): plain_value(item, where, depth + 1) for key, item in value.items()}
    if depth < MAX_MESSAGE_DEPTH and isinstance(value, (list, tuple)):
        return [plain_value(item, where, depth + 1) for item in value]
    raise RequestError(
        f"{where} must hold only texts, numbers, booleans, lists and mappings, at most {MAX_MESSAGE_DEPTH} deep, "
        f"got a {type(value).__name__}"
    )


def _one_line(error: object) -> str:
    return quote(" ".join(str(error).split()), _MAX_QUOTED)
