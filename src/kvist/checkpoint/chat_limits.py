"""What a chat template may take: a number of characters made and seconds passed, both counted while it runs.

Jinja's sandbox keeps a template from data that isn't its own; a loop in a loop, or ``'a' * 3000000000``, it lets pass.
So everything that makes text or lists is charged before it is made, and every turn of a loop or a macro looks at the
clock. What a conversation needs is a small multiple of its own length.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS = 1 << 24
"""Characters that a template may make, besides so many times those that it is given:"""
TIMES_GIVEN = 64
MAX_SECONDS = 10.0
MAX_BITS = 1 << 14
"""Of a whole number."""

_TURN = 8
"""Characters that a turn of a loop counts for at least."""
_WIDE = re.compile(r"\d{5,}|%[^a-zA-Z%]*\*|\{[^{}]*\{")
"""A format with a width of five digits or more, or one that an argument gives."""
_WITHHELD = ("lipsum", "cycler", "joiner")


class _Budget:
    """What is left of it for one run."""

    def __init__(self, num_given: int) -> None:
        self._most = MAX_CHARACTERS + TIMES_GIVEN * num_given
        self.left = self._most
        self._end_s = monotonic() + MAX_SECONDS

    def charge(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise SecurityError(f"more than {self._most} characters of text")

    def turn(self, count: int) -> None:
        self.charge(count)
        if monotonic() > self._end_s:
            raise SecurityError(f"more than {MAX_SECONDS:g} seconds")


_BUDGET: ContextVar[_Budget] = ContextVar("chat_budget")


@contextmanager
def limited(given: object) -> Iterator[None]:
    """Run a template within the limits of what it is ``given``."""
    token = _BUDGET.set(_Budget(size_of(given)))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def size_of(value: object, most: int | None = None) -> int:
    """Characters of a value's texts, and one for each other part of it; counted as far as ``most``."""
    count, waiting = 0, [value]
    while waiting and (most is None or count <= most):
        part = waiting.pop()
        count += len(part) if isinstance(part, str) else 1
        if isinstance(part, Mapping):
            waiting += part.keys()
            waiting += part.values()
        elif isinstance(part, (list, tuple)):
            waiting += part
    return count


def charge(count: int) -> None:
    """Count characters, or parts of a list, that are about to be made. Raises SecurityError where there is no room."""
    _BUDGET.get().charge(count)


def charge_text_of(value: object, times: int = 1) -> None:
    """Count what a value becomes as a text."""
    budget = _BUDGET.get()
    budget.charge(times * size_of(value, budget.left))


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with limits; its templates run within ``limited``."""

    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_finalize, **options)
        for name in _WITHHELD:
            del self.globals[name]
        self.globals["_kvist_turn"] = _turn
        self.globals["_kvist_joined"] = _joined
        self.filters = {name: _charged(name, made) for name, made in self.filters.items()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Let every turn of a loop or macro count, and every joining of texts."""
        template = super()._parse(source, name, filename)
        for node in [*template.find_all((nodes.For, nodes.Macro, nodes.CallBlock))]:
            length = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
            call = nodes.Call(nodes.Name("_kvist_turn", "load"), [nodes.Const(_TURN + length)], [], None, None)
            assert isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock))
            node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno, override=True))
        _replace_joins(template)
        template.set_environment(self)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, *args: Any, **named: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            charge_text_of(args)
            _check_method(function.__name__, owner, args, named)
        found = super().call(context, function, *args, **named)
        if isinstance(owner, str):
            charge_text_of(found)
        return found

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """What becomes of ``text.format``: checked when it is looked up, since a wide one is one call."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped


def _replace_joins(node: nodes.Node) -> None:
    """Make calls of all ``a ~ b``."""
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            _replace_joins(value)
            if isinstance(value, nodes.Concat):
                setattr(node, field, _as_call(value))
        elif isinstance(value, list):
            for at, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    _replace_joins(item)
                    if isinstance(item, nodes.Concat):
                        value[at] = _as_call(item)


def _as_call(join: nodes.Concat) -> nodes.Call:
    call = nodes.Call(nodes.Name("_kvist_joined", "load"), join.nodes, [], None, None)
    call.set_lineno(join.lineno, override=True)
    return call


def _turn(count: int) -> None:
    _BUDGET.get().turn(count)


def _joined(*parts: object) -> str:
    charge_text_of(parts)
    return "".join(map(str, parts))


def _finalize(value: Any) -> Any:
    """What is put out counts."""
    charge_text_of(value)
    return value


def _check_binop(operator: str, left: Any, right: Any) -> None:
    """Charge what an operation is about to make."""
    sizes = [len(part) if isinstance(part, (str, list, tuple)) else None for part in (left, right)]
    if operator == "+" and None not in sizes:
        charge(sum(size for size in sizes if size is not None))
    elif operator == "%" and isinstance(left, str):
        _check_format(left)
        charge_text_of((left, right))
    elif operator == "*":
        for part, times in ((left, right), (right, left)):
            if isinstance(part, (str, list, tuple)) and isinstance(times, int):
                charge_text_of(part, max(0, times))
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_BITS:
            raise SecurityError(f"a number of more than {MAX_BITS} bits")


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise SecurityError("a format with a width of five digits or more, or one that isn't written out")


def _check_method(name: str, text: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Charge what a method of ``text`` is about to make."""
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        widths = [arg for arg in (*args, *named.values()) if isinstance(arg, int)]
        charge(max([0, *widths]) * (1 + text.count("\t") if name == "expandtabs" else 1))
    elif name == "replace" and len(args) >= 2:
        _charge_replacing(text, args[0], args[1])
    elif name == "join" and args and isinstance(args[0], (list, tuple)):
        charge(len(text) * len(args[0]))


def _charge_replacing(text: str, old: object, new: object) -> None:
    count = text.count(str(old)) if str(old) else len(text) + 1
    charge(len(text) + count * len(str(new)))


def _charged(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that charges what it is about to make where that may be more than it is given, and what it made."""
    before = _BEFORE.get(name)
    skipped = 1 if getattr(made, "jinja_pass_arg", None) else 0

    @functools.wraps(made)  # with Jinja's own mark of what comes first
    def run(*args: Any, **named: Any) -> Any:
        value, *more = args[skipped:]
        if name in _READS_ALL:
            charge_text_of(value)
        if before is not None:
            before(value, (*more, *named.values()))
        found = made(*args, **named)
        if isinstance(found, (str, list, tuple)):
            charge(len(found))
        return found

    return run


def _whole(args: tuple[Any, ...]) -> int:
    return max([0, *(arg for arg in args if isinstance(arg, int))])


def _before_center(_: Any, args: tuple[Any, ...]) -> None:
    charge(_whole(args))


def _before_indent(value: Any, args: tuple[Any, ...]) -> None:
    width = max([_whole(args), *(len(arg) for arg in args if isinstance(arg, str))])
    charge(len(str(value)) + width * (1 + str(value).count("\n")))


def _before_replace(value: Any, args: tuple[Any, ...]) -> None:
    if len(args) >= 2:
        _charge_replacing(str(value), args[0], args[1])


def _before_format(value: Any, args: tuple[Any, ...]) -> None:
    _check_format(str(value))
    charge_text_of(args)


def _before_join(value: Any, args: tuple[Any, ...]) -> None:
    if isinstance(value, (str, list, tuple, range)):
        separator = str(args[0]) if args else ""
        charge(len(value) * len(separator))


def _before_wordwrap(value: Any, args: tuple[Any, ...]) -> None:
    longest = max([1, *(len(arg) for arg in args if isinstance(arg, str))])
    charge(len(str(value)) * (1 + longest))


# fmt: off
_READS_ALL = frozenset((
    "capitalize", "center", "e", "escape", "float", "forceescape", "format", "indent", "int", "join", "lower", "pprint",
    "replace", "safe", "string", "striptags", "title", "tojson", "trim", "truncate", "upper", "urlencode", "urlize",
    "wordcount", "wordwrap", "xmlattr",
))
# fmt: on
"""Filters that make a text of whatever they are given."""

_BEFORE: dict[str, Callable[[Any, tuple[Any, ...]], None]] = {
    "center": _before_center,
    "batch": _before_center,
    "slice": _before_center,
    "indent": _before_indent,
    "replace": _before_replace,
    "format": _before_format,
    "join": _before_join,
    "wordwrap": _before_wordwrap,
}
