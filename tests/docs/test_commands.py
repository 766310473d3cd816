"""Every command line in the documentation is one that kvist, or make, understands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from markdown import PAGES, ROOT, code_blocks, page_name
from typer.core import TyperGroup

from kvist.cli.main import app


def command_lines() -> list[tuple[Path, list[str]]]:
    """Return the words of each line that begins with a prompt sign in a ``console`` block."""
    return [
        (page, shlex.split(line[2:], comments=True))
        for page in PAGES
        for block in code_blocks(page)
        if block.language == "console"
        for line in block.text.splitlines()
        if line.startswith("$ ")
    ]


def parse(command: Any, name: str, words: list[str], parent: Any = None) -> None:
    """Parse ``words`` as the command would, down to its last subcommand, and run nothing."""
    context = command.make_context(name, list(words), parent=parent)
    if isinstance(command, TyperGroup):
        found, subcommand, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        parse(subcommand, str(found), rest, context)


@pytest.mark.parametrize(
    ("page", "words"), command_lines(), ids=lambda part: page_name(part) if isinstance(part, Path) else " ".join(part)
)
def test_the_command_line_parses(page: Path, words: list[str]) -> None:
    if words[0] == "kvist":
        parse(typer.main.get_command(app), "kvist", words[1:])
    elif words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(f"\n{target}:" in makefile for target in words[1:] if "=" not in target)
    elif words[0] == ".venv/bin/python":
        assert (ROOT / words[1]).is_file(), words
    else:
        assert words[0] in ("pip", "apt"), words


@pytest.mark.parametrize("line", ["bench cache --nope", "nope", "generate --max-tokens few"])
def test_a_line_that_does_not_parse_is_noticed(line: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|valid"):
        parse(typer.main.get_command(app), "kvist", line.split())
