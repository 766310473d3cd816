from __future__ import annotations

from pathlib import Path

import pytest

from kvist.errors import KvistError
from kvist.lab.texts import library_text


def test_documentation_in_order_of_file_and_line_once_each(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text('"""B."""\ndef g():\n    """Same."""\n', encoding="utf-8")
    (tmp_path / "a.py").write_text(
        '"""A."""\nclass C:\n    """C."""\n    def f(self):\n        """F."""\ndef h(): pass\n'
        'def g():\n    """Same."""\n',
        encoding="utf-8",
    )
    (tmp_path / "_private.py").write_text('"""No."""\n', encoding="utf-8")
    assert library_text(1000, tmp_path) == "A.\n\nC.\n\nF.\n\nSame.\n\nB."
    assert library_text(5, tmp_path) == "A.\n\nC."


def test_the_real_library_has_enough_for_20_000_tokens() -> None:
    text = library_text(160_000)
    assert 160_000 <= len(text) < 250_000
    assert text == library_text(160_000)


def test_a_library_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KvistError, match="give a text with --text"):
        library_text(10, tmp_path)
