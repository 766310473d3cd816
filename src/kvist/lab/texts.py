"""Text to measure on that every machine has: the documentation strings of Python's standard library.

They are read from the sources without importing them, in order of file name and line, so that a Python version has one
text. Another version has another: who compares numbers names the text's digest.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from kvist.errors import KvistError

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def library_text(num_characters: int, root: Path | None = None) -> str:
    """Return at least ``num_characters`` of documentation, or all there is; ``root`` is where the library lies.

    Raises KvistError where the library has no sources.
    """
    parts: list[str] = []
    length = 0
    for text in _documentation(root or Path(sysconfig.get_path("stdlib"))):
        parts.append(text)
        length += len(text) + 2
        if length >= num_characters:
            break
    if not parts:
        raise KvistError("this Python's standard library has no documentation to read; give a text with --text")
    return "\n\n".join(parts)


def _documentation(root: Path) -> Iterator[str]:
    """Yield each documentation string once, without the modules whose names begin with an underscore."""
    seen: set[str] = set()
    for path in sorted(root.glob("[a-z]*.py")):
        nodes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, _DOCUMENTED)]
        for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
            text = ast.get_docstring(node)
            if text and text not in seen:
                seen.add(text)
                yield text
