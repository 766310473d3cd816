"""Write docs/cli.md from the commands themselves; with --check only say whether it is current (exit code 1 if not).

Made of names, metavars, helps and defaults, not of rendered --help, which looks different in each version of Typer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from kvist.cli.main import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = """# The command line

Made by `python tools/cli_reference.py` from what `--help` shows; a test compares.

`kvist` (or `python -m kvist`) ends with 0, with 1 and one line on stderr for what you can put right, with 2 where
the command line is wrong, and with 130 after Ctrl-C. With `--json` the last line of stdout is a JSON document, and all
other text goes to stderr. Sizes are bytes in JSON and binary units on screen; times are seconds.
"""


def reference() -> str:
    """Return the page."""
    return HEAD + "".join(f"\n{section}" for section in sections("kvist", typer.main.get_command(app)))


def sections(name: str, command: Any) -> Iterator[str]:
    """Yield a section for each command, those of a group in the group's place."""
    if hasattr(command, "commands"):
        for child, child_command in command.commands.items():
            yield from sections(f"{name} {child}", child_command)
        return
    arguments = [f"[{p.metavar}]" for p in command.params if p.param_type_name == "argument"]
    lines = [f"## {name}", "", " ".join(command.help.split()), "", "```console", example(command), "```", ""]
    lines += [f"Usage: `{' '.join([name, '[OPTIONS]', *arguments])}`", "", "| option | |", "|---|---|"]
    lines += [row(parameter) for parameter in command.params if parameter.name != "help"]
    yield "\n".join(lines) + "\n"


def example(command: Any) -> str:
    prefix, _, text = command.epilog.partition(": ")
    assert prefix == "Example", command.epilog
    return f"$ {text}"


def row(parameter: Any) -> str:
    """Return an option or argument as a row of a table."""
    is_argument = parameter.param_type_name == "argument"
    spelling = parameter.metavar if is_argument else ", ".join([*parameter.opts, *parameter.secondary_opts])
    value = f" {parameter.metavar}" if parameter.metavar and not is_argument else ""
    default = "" if parameter.default in (None, False, ()) else f" Default: {parameter.default}."
    return f"| `{spelling}{value}` | {' '.join(parameter.help.split())}{default} |".replace(" | |", " |")


def main() -> None:
    if "--check" in sys.argv[1:]:
        is_current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == reference()
        if not is_current:
            print(f"{PAGE.name} is not what the commands say; run: python tools/cli_reference.py")
        sys.exit(0 if is_current else 1)
    PAGE.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
