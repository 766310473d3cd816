"""What a chat template may take of text and time, whatever it tries."""

from __future__ import annotations

import resource

import pytest

from kvist.checkpoint import chat_limits
from kvist.checkpoint.chat import render_chat
from kvist.checkpoint.chat_limits import size_of
from kvist.errors import CheckpointError

MESSAGES = [{"role": "user", "content": "hi"}]
DOUBLING = "{%% set ns = namespace(x=%s) %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ ns.x }}"
LARGE = (
    "{{ 'a' * 3000000000 }}",
    "{{ 3000000000 * 'a' }}",
    "{{ [[1] * 1000] * 1000000 }}",
    "{{ '%2000000000d' % 1 }}",
    "{{ '%*d' % (2000000000, 1) }}",
    "{{ '%s' % ([['a' * 1000] * 1000] * 1000,) }}",
    "{{ '{:>3000000000}'.format(1) }}",
    "{{ '{:>{w}}'.format(1, w=3000000000) }}",
    "{{ '{}'.format([['a' * 1000] * 1000] * 1000) }}",
    "{% set wide = '{:>3000000000}'.format %}{{ wide(1) }}",
    "{{ 'a'.ljust(3000000000) }}",
    "{{ ('\t' * 10000).expandtabs(10000000) }}",
    "{{ ('a' * 100000).replace('a', 'a' * 100000) }}",
    "{{ 'abc'.replace('', 'x' * 9000000) }}",
    "{{ ('x' * 100000).join(range(9999)|map('string')|list) }}",
    "{{ 'a'|center(3000000000) }}",
    "{{ 'a'|center(width=3000000000) }}",
    "{{ ('a\n' * 100000)|indent(100000) }}",
    "{{ ('a\n' * 100000)|indent('x' * 100000) }}",
    "{{ 'aaa'|replace('a', 'x' * 9000000) }}",
    "{{ '%3000000000d'|format(1) }}",
    "{{ [1]|batch(1000000000, 0)|list }}",
    "{{ [1]|slice(1000000000)|list }}",
    "{{ ('a ' * 1000000)|wordwrap(1, wrapstring='x' * 1000) }}",
    "{{ range(99999)|list|join('a' * 100000) }}",
    "{{ (['a' * 100000] * 10000)|tojson }}",
    "{{ (['a' * 100000] * 10000)|string }}",
    "{{ messages|tojson(indent=2000000000) }}",
    DOUBLING % ("'a'", "ns.x ~ ns.x"),
    DOUBLING % ("'a'", "ns.x + ns.x"),
    DOUBLING % ("[1]", "ns.x + ns.x"),
    DOUBLING % ("[1]", "[ns.x, ns.x]"),
    DOUBLING % ("'a'", "ns.x|replace('a', 'aa')"),
    DOUBLING % ("'a'", "[ns.x, ns.x]|join"),
    "{% for a in range(99999) %}{{ 'a' * 100000 }}{% endfor %}",
    "{% set x %}{% for a in range(99999) %}{{ 'a' * 1000 }}{% endfor %}{% endset %}{{ x }}",
)
LONG = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% if b < 0 %}x{% endif %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
)


@pytest.mark.parametrize("template", LARGE)
def test_text_is_bounded(template: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        CheckpointError, match=r"sandbox forbids: .*(characters of text|format with a width)"
    ) as refusal:
        render_chat(template, MESSAGES)
    assert "\n" not in str(refusal.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


@pytest.mark.parametrize("template", LONG)
def test_time_is_bounded(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_limits, "MAX_SECONDS", 0.05)
    with pytest.raises(CheckpointError, match=r"sandbox forbids: .*more than 0.05 seconds"):
        render_chat(template, MESSAGES)


def test_numbers_are_bounded() -> None:
    for template in ("{{ 10 ** (10 ** 9) }}", DOUBLING % ("3", "ns.x * ns.x")):
        with pytest.raises(CheckpointError, match="more than 16384 bits"):
            render_chat(template, MESSAGES)


def test_what_serves_no_conversation_is_not_there() -> None:
    for name in ("lipsum(n=5)", "cycler(1)", "joiner()"):
        with pytest.raises(CheckpointError, match="is undefined"):
            render_chat(f"{{{{ {name} }}}}", MESSAGES)


def test_a_long_conversation_has_room_for_itself() -> None:
    """Tens of megabytes, each of which a template puts through several hands."""
    messages = [{"role": "user", "content": "word " * 200_000}] * 20
    loop = "{% for m in messages %}{{ '<' ~ m['role'] + '>' + m['content']|trim ~ (m|tojson) }}{% endfor %}"
    assert len(render_chat(loop, messages)) > 40_000_000


def test_what_is_written_otherwise_means_the_same() -> None:
    template = "{{ 'a' ~ 1 ~ [2] ~ none }}{{ '%05d' % 7 }}{{ '{:>4}'.format('x') }}{{ ['b', 'c']|join('-')|upper }}"
    loop = "{% for a in [1, 2] recursive %}{{ loop.index ~ (a if loop.last else ',') }}{% else %}{% endfor %}"
    assert render_chat(template + loop, MESSAGES) == "a1[2]None00007   xB-C1,22"


def test_sizes() -> None:
    assert size_of({"ab": ["c", 5, None]}) == 1 + 2 + 1 + 1 + 1 + 1
    endless: list[object] = []
    for _ in range(100):
        endless = [endless, endless]
    assert 1000 < size_of(endless, 1000) < 2000
