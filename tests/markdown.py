"""Code blocks of the documentation, for the tests that run them. Knows Markdown's fences and nothing else of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block: the word after its fence, its text, and the number of its first line in the page."""

    page: Path
    language: str
    text: str
    line: int
    is_adjacent: bool
    """Only blank lines stand between it and the block before it."""


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order; an unclosed fence is an error."""
    blocks: list[Block] = []
    start: int | None = None
    language, is_adjacent = "", False
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            is_adjacent = is_adjacent and (start is not None or not line.strip())
        elif start is None:
            start, language = number + 1, line[3:].strip()
        else:
            text = "\n".join(lines[start:number]) + "\n"
            blocks.append(Block(page, language, text, start + 1, is_adjacent))
            start, is_adjacent = None, True
    assert start is None, f"{page}: the fence in line {start} isn't closed"
    return blocks
