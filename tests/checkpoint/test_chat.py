"""Chat templates give the text that transformers gives (recorded: tests/oracles/record_chat.py), or one clear line."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from checkpoint.chat_cases import CONVERSATIONS, LLAMA3, MISTRAL, PLAIN, REFUSED, SMOLLM2, cases

from kvist.checkpoint.catalog import open_checkpoint
from kvist.checkpoint.chat import MAX_MESSAGE_DEPTH, render_chat
from kvist.checkpoint.tokenizer import load_tokenizer
from kvist.errors import CheckpointError, RequestError

RECORDED: dict[str, str] = json.loads((Path(__file__).parents[1] / "data" / "chat_rendered.json").read_text())
CASES = cases()


def test_every_case_is_recorded() -> None:
    assert list(CASES) == list(RECORDED)
    assert 10 <= sum(text.startswith(REFUSED) for text in RECORDED.values()) <= 20


@pytest.mark.parametrize("name", CASES)
def test_text_is_that_of_transformers(name: str) -> None:
    template, arguments = CASES[name]
    expected = RECORDED[name]
    if expected.startswith(REFUSED):
        with pytest.raises((RequestError, CheckpointError)) as refusal:
            render_chat(template, **arguments)
        assert expected.removeprefix(REFUSED) in str(refusal.value)
    else:
        assert render_chat(template, **arguments) == expected


def test_smollm2s_own_template_is_the_one_compared() -> None:
    tokenizer = load_tokenizer(open_checkpoint("smollm2-135m"))
    assert tokenizer is not None
    assert tokenizer.chat_template == SMOLLM2
    ids = tokenizer.encode(render_chat(SMOLLM2, PLAIN, **tokenizer.template_tokens), add_special_tokens=False)
    names = [tokenizer.token_text(token_id) for token_id in ids if token_id in tokenizer.special_token_ids]
    assert names == ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<|im_end|>", "<|im_start|>"]


def test_the_clock_is_the_callers_to_set() -> None:
    text = render_chat(LLAMA3, PLAIN, strftime_now=datetime(2024, 7, 26, tzinfo=timezone.utc).strftime)
    assert "Today Date: 26 Jul 2024" in text
    today = [f"Today Date: {time.strftime('%d %b %Y')}"]
    text = render_chat(LLAMA3, PLAIN)
    today.append(f"Today Date: {time.strftime('%d %b %Y')}")  # midnight may have passed
    assert any(line in text for line in today)


def test_messages_are_not_changed_and_may_be_any_mapping() -> None:
    arguments: dict[str, Any] = CONVERSATIONS["tool use"]
    before = json.dumps(arguments)
    template = "{% for m in messages %}{{ m.role }}:{{ m.content is defined }} {% endfor %}"
    assert render_chat(template, **arguments) == "system:True user:True assistant:False tool:True "
    assert json.dumps(arguments) == before


def test_a_refusal_of_the_template_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match=r"the model's chat template refuses these messages: .*must alternate"):
        render_chat(MISTRAL, [*PLAIN, *PLAIN])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}\n{{ m.content }", r"broken at line 2: .*unexpected '}'"),
        ("{% if %}", "broken at line 1"),
        ("{{ messages | nofilter }}", "broken at line 1: .*No filter named 'nofilter'"),
        ("{% include 'x' %}", "fails on these messages: TypeError: .*no loader"),
        ("{% for a in " + "(" * 3000 + "%}", "can't be compiled: RecursionError"),
        ("{% for a in b %}" * 60 + "{% endfor %}" * 60, "can't be compiled: SyntaxError: .*nested blocks"),
        ("{{ messages[5].content }}", "fails on these messages: UndefinedError: .*has no element 5"),
        ("{{ messages[0].content + 1 }}", "fails on these messages: TypeError"),
        ("{{ 1 // 0 }}", "fails on these messages: ZeroDivisionError"),
        ("{% for a in range(10 ** 9) %}x{% endfor %}", "fails on these messages: OverflowError: .*Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails on these messages: RecursionError"),
    ],
)
def test_a_broken_template_is_one_line(template: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as refusal:
        render_chat(template, PLAIN)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.x }}",
        "{{ (messages | attr('__class__')).__base__ }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ strftime_now.__globals__['__builtins__'] }}",
        "{{ dict.__globals__.x }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'].system('id') }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(_x=1) }}",
        "{{ namespace({'__html__': 1}) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ messages.clear() }}",
        "{% do messages.pop() %}",
    ],
)
def test_no_way_out_of_the_sandbox(template: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        render_chat(template, PLAIN)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "expression", ["messages.__class__", "''.__class__", "dict.__globals__", "'{0.__class__}'.format(messages)"]
)
def test_what_is_forbidden_shows_as_nothing(expression: str) -> None:
    assert not render_chat("{{ " + expression + " }}", PLAIN)


def test_what_the_sandbox_forbids_is_called_so() -> None:
    with pytest.raises(CheckpointError, match=r"tries what its sandbox forbids: .*'__class__'.*is unsafe"):
        render_chat("{{ ''.__class__.__mro__ }}", PLAIN)


class Dangerous:
    def delete(self) -> str:
        return "deleted"


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else "x"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "messages must be a list of messages, got a str"),
        ({"role": "user"}, "messages must be a list of messages, got a dict"),
        (["hello"], 'message 0 must be a mapping with a text "role", got "hello"'),
        ([*PLAIN, {"content": "x"}], 'message 1 must be a mapping with a text "role"'),
        ([{"role": 3, "content": "x"}], 'message 0 must be a mapping with a text "role"'),
        ([{"role": "user", "content": Dangerous()}], "message 0 must hold only texts.*got a Dangerous"),
        ([{"role": "user", "content": b"x"}], "message 0 must hold only texts.*got a bytes"),
        ([{"role": "user", "content": nested(MAX_MESSAGE_DEPTH + 1)}], "message 0 must hold only texts.*got a list"),
    ],
)
def test_malformed_messages_are_named(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render_chat(SMOLLM2, messages)


def test_templates_may_be_fed_more_variables() -> None:
    assert render_chat("{{ a.b[0] }}{{ pad_token }}{{ eos_token }}", [], a={"b": (1, 2)}, pad_token="P") == "1P"
    with pytest.raises(RequestError, match="documents must hold only texts"):
        render_chat("", [], documents=[Dangerous()])
