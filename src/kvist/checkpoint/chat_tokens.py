"""From messages to token ids, where only the template may use special tokens.

A template joins its own special tokens and what people and tools wrote into one text, in which they can't be told
apart. So their names are hidden in the messages while the template runs, and count as plain text afterwards:
`<|im_end|>` in a message ends nothing. Messages without such names give the ids of the rendered text.

Not covered: a template that makes a name out of parts (`'<|' + role + '|>'`) takes those parts from the messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvist.checkpoint.chat import checked_messages, plain_value, render_chat
from kvist.checkpoint.tokenizer import Tokenizer
from kvist.errors import RequestError

_PRIVATE_USE = range(0xE000, 0xF900)


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, object]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, object]] | None = None,
    **extra: object,
) -> list[int]:
    """The ids of a conversation in the model's template. Arguments and errors are those of `render_chat`.

    Raises RequestError for a model without a template.
    """
    template = tokenizer.template_for(has_tools=bool(tools))
    if template is None:
        raise RequestError("the model has no chat template; give the prompt as plain text")
    given = {"messages": checked_messages(messages), "tools": None if tools is None else plain_value(tools, "tools")}
    names = _names_pattern(tokenizer.special_tokens)
    hiding = _Hiding(names, _unused_character([template, *_texts(given)]))
    hidden = _with_texts(given, hiding.hide)
    variables: dict[str, Any] = {**tokenizer.template_tokens, **extra, **hidden}
    rendered = render_chat(template, add_generation_prompt=add_generation_prompt, **variables)
    if hidden == given:
        return tokenizer.encode(rendered, add_special_tokens=False)
    pieces = names.split(rendered)  # text, name, text, name, ..., text
    texts, found = map(hiding.show, pieces[::2]), (tokenizer.special_tokens[name] for name in pieces[1::2])
    parts: list[str | int] = [next(texts)]
    for token_id, text in zip(found, texts, strict=True):
        parts += [token_id, text]
    return tokenizer.encode_parts([part for part in parts if part != ""])


class _Hiding:
    """Writes a name as its number between two marks, which no template takes for anything, and back again."""

    def __init__(self, names: re.Pattern[str], mark: str) -> None:
        self._names = names
        self._mark = mark
        self._numbers: dict[str, int] = {}

    def hide(self, text: str) -> str:
        return self._names.sub(lambda found: self._mark + str(self._number(found[0])) + self._mark, text)

    def show(self, text: str) -> str:
        """Marks that a template tore apart are dropped."""
        shown = {str(number): name for name, number in self._numbers.items()}
        text = re.sub(f"{self._mark}([0-9]+){self._mark}", lambda found: shown.get(found[1], ""), text)
        return text.replace(self._mark, "")

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))


def _names_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Finds any of the names, the longest where several begin at one place; one group holds what was found."""
    return re.compile("(" + ("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)") + ")")


def _unused_character(texts: Iterable[str]) -> str:
    """A private-use character that none of the texts has."""
    used = set().union(*map(set, texts))
    free = next((chr(code) for code in _PRIVATE_USE if chr(code) not in used), None)
    if free is None:
        raise RequestError("the messages use every private-use character of Unicode; leave one out")
    return free


def _texts(value: object) -> Iterator[str]:
    """Every text in lists and mappings, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy with every text changed, keys left as they are."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _with_texts(item, change) for key, item in value.items()}
    return [_with_texts(item, change) for item in value] if isinstance(value, list) else value
