"""Every relative link in the documentation leads to a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown import PAGES, page_name

LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
