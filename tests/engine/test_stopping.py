"""Stop strings: found wherever tokens break, and never shown in part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvist.engine.stopping import StopStrings

letters = st.text("ab", max_size=12)
stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3).map(tuple)


def shown(pieces: list[str], strings: tuple[str, ...]) -> tuple[str, bool]:
    """All text that came out, and whether a stop string ended it."""
    stop = StopStrings(strings)
    found = "".join(stop.push(piece) for piece in pieces)
    return found + stop.finish(), stop.is_found


@given(st.lists(letters, max_size=8), stops)
def test_pieces_do_not_matter(pieces: list[str], strings: tuple[str, ...]) -> None:
    text = "".join(pieces)
    ends = [(text.find(string) + len(string), text.find(string)) for string in strings if string in text]
    expected = (text[: min(ends)[1]], True) if ends else (text, False)
    assert shown(pieces, strings) == expected
    assert shown(list(text), strings) == expected


@given(st.lists(letters, max_size=8), stops)
def test_only_what_may_still_become_a_stop_string_is_held_back(pieces: list[str], strings: tuple[str, ...]) -> None:
    stop = StopStrings(strings)
    found = "".join(stop.push(piece) for piece in pieces)
    held = "".join(pieces)[len(found) :]
    assert stop.is_found or not held or any(string.startswith(held) for string in strings)


def test_text_without_stop_strings_passes() -> None:
    stop = StopStrings(())
    assert stop.push("abc") == "abc"
    assert stop.finish() == ""
