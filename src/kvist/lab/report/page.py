"""The report as one page: HTML with its style and its figures inside, no scripts, nothing fetched."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any

from kvist.lab.figures import svg_text
from kvist.lab.report.drawings import NARROW, WIDE
from kvist.lab.report.sections import SECTIONS, Section, Table

_PREFACE = (
    "A language model writes one token at a time, and each new token looks back at the keys and values of all earlier "
    "ones. They are stored instead of being computed again: that store is the KV cache. These figures show what it "
    "saves, what it takes, and what it costs to make it smaller."
)
_STYLE = Path(__file__).with_name("page.css")


def render(report: dict[str, Any]) -> str:
    """Return the page of a report's document."""
    model, machine = html.escape(report["model"]), report["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    threads = f"{report['threads']} threads of {machine['processors']} processors"
    about = f"{machine['processor']}, {threads}, {machine['system']}"
    made = f"Made by kvist {html.escape(machine['versions']['kvist'])} with <code>kvist report</code>."
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>The KV cache of {model}</title>",
            f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style>",
            "</head>",
            "<body>",
            "<header>",
            f"<h1>The KV cache of {model} on this machine</h1>",
            f"<p>{_PREFACE}</p>",
            f'<p class="about">{html.escape(about)}; {html.escape(versions)}.</p>',
            f"<nav><ol>{''.join(_link(section) for section in SECTIONS)}</ol></nav>",
            "</header>",
            "<main>",
            *(_section(section, report) for section in SECTIONS),
            "</main>",
            f"<footer><p>{made}</p></footer>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _link(section: Section) -> str:
    return f'<li><a href="#{section.name}">{html.escape(section.title)}</a></li>'


def _section(section: Section, report: dict[str, Any]) -> str:
    data = report["figures"][section.data]
    drawn = "\n".join(
        f'<div class="{name}" role="img" aria-label="{html.escape(section.title)}">'
        f"{svg_text(section.draw(data, inches), f'{section.name}-{name}')}</div>"
        for name, inches in (("wide", WIDE), ("narrow", NARROW))
    )
    return "\n".join(
        [
            f'<section id="{section.name}">',
            f"<h2>{html.escape(section.title)}</h2>",
            f"<figure>{drawn}",
            f"<figcaption>{html.escape(section.words(data))}</figcaption></figure>",
            f'<p class="wrong"><strong>If something were wrong:</strong> {html.escape(section.wrong)}</p>',
            f"<pre><code>$ {html.escape(section.command(report['model'], data))}</code></pre>",
            f"<details><summary>The numbers</summary>{_table(section.table(data))}</details>",
            "</section>",
        ]
    )


def _table(table: Table) -> str:
    headings, rows = table
    head = "".join(f'<th scope="col">{html.escape(heading)}</th>' for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def write(page: str, path: Path) -> None:
    """Write the page: into a new file beside it, which then takes its place, so that it is never half a page."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        new.write_text(page, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
