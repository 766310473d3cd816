"""Put the pages of docs/lesson into one notebook: prose, and Python blocks as cells with their output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LESSON = Path(__file__).parents[1] / "docs" / "lesson"


def cells(page: Path) -> list[dict[str, Any]]:
    """A page's cells. A ``text`` block right behind a ``python`` block is that one's output."""
    found: list[dict[str, Any]] = []
    for number, part in enumerate(page.read_text(encoding="utf-8").split("\n```")):
        language, _, text = part.partition("\n")
        if number % 2 == 0:
            prose = (part if number == 0 else text).strip("\n")
            if prose:
                found.append({"cell_type": "markdown", "source": prose})
        elif language == "python":
            found.append({"cell_type": "code", "source": text, "outputs": [], "execution_count": None})
        elif language == "text" and found and found[-1]["cell_type"] == "code" and not found[-1]["outputs"]:
            output = {"output_type": "stream", "name": "stdout", "text": (text + "\n").splitlines(keepends=True)}
            found[-1]["outputs"] = [output]
        else:
            found.append({"cell_type": "markdown", "source": f"```{part}\n```"})
    for number, cell in enumerate(found):
        cell |= {"id": f"{page.stem}-{number}", "metadata": {}, "source": cell["source"].splitlines(keepends=True)}
    return found


def main() -> None:
    """Write docs/lesson/lesson.ipynb."""
    pages = sorted(LESSON.glob("[1-9]*.md"))
    notebook = {
        "cells": [cell for page in pages for cell in cells(page)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    text = json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    (LESSON / "lesson.ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
