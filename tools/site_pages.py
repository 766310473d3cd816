"""Pages of the documentation site that stand elsewhere, for MkDocs' hooks: the README, the changes, the public names.

The site's first page is the README with its links turned; what isn't on the site becomes the bare name of its file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]+)\)")
SITE = {"CHANGELOG.md": "changelog.md"}
PUBLIC = {
    "Run": ["kvist.llm.LLM", "kvist.engine.request.SamplingParams", "kvist.llm.RequestOptions"],
    "Results": ["kvist.engine.result.Result", "kvist.engine.result.TokenEvent", "kvist.engine.result.KvUsage"],
    "Plan": [
        "kvist.planner.plan.plan",
        "kvist.planner.plan.Plan",
        "kvist.spec.cache.CacheSpec",
        "kvist.spec.model.ModelSpec",
    ],
    "Errors": ["kvist.errors"],
}


def turned(text: str) -> str:
    """The text with links as they are from the site's root."""

    def turn(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        target = SITE.get(target, target)
        if target.startswith("docs/") or target in SITE.values():
            return f"{mark}[{label}]({target.removeprefix('docs/')})"
        return f"`{target}`" if label == target else f"{label} (`{target}`)"

    return LINK.sub(turn, text)


def reference() -> str:
    """A page that names what is public; mkdocstrings fills it from the sources."""
    parts = ["# Reference", "What `from kvist import ...` gives, and what it returns."]
    for title, names in PUBLIC.items():
        parts += [f"# {title}", *(f"::: {name}" for name in names)]
    return "\n\n".join(parts) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages; called by MkDocs."""
    pages = {
        "index.md": turned((ROOT / "README.md").read_text(encoding="utf-8")),
        "changelog.md": turned((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")),
        "reference.md": reference(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files
