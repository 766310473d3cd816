"""The documentation's Python runs and prints what it says.

A page's ``python`` blocks run in order in one namespace. A ``text`` block that follows one directly is what it prints.
"""

from __future__ import annotations

import contextlib
import io
from itertools import pairwise, zip_longest
from pathlib import Path

import pytest
from markdown import PAGES, Block, code_blocks, page_name

WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in code_blocks(page))]


def run(block: Block, names: dict[str, object]) -> str:
    """Run a block with its page's line numbers in tracebacks; return what it printed."""
    code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        exec(code, names)
    return stdout.getvalue()


@pytest.mark.parametrize("page", WITH_PYTHON, ids=page_name)
def test_python_blocks_run_and_print_what_they_say(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    blocks = code_blocks(page)
    for block, following in zip_longest(blocks, blocks[1:]):
        if block.language == "python":
            printed = run(block, names)
            if following is not None and following.language == "text" and following.is_adjacent:
                assert printed == following.text, f"{page_name(page)}, line {following.line}"


def test_the_first_page_has_python_and_its_output() -> None:
    blocks = code_blocks(PAGES[0])
    pairs = [(block.language, following.language) for block, following in pairwise(blocks)]
    assert ("python", "text") in pairs
