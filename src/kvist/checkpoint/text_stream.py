"""From token ids to text, one id at a time, when characters don't end where tokens do."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class TextStream:
    """Emits text as soon as it is certain: never half a character, never a replacement taken back later.

    What all pushes and `finish` returned, joined, is the text that decoding all ids at once gives. Bytes that
    can't be UTF-8 come out as U+FFFD, one for each maximal broken part, as Unicode recommends.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], *, strips_leading_space: bool = False) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_space_to_strip = strips_leading_space

    def push(self, token_id: int) -> str:
        """Take the next id; returns the text that is now complete, which may be empty."""
        return self._without_leading_space(self._decoder.decode(self._token_bytes(token_id)))

    def finish(self) -> str:
        """Returns what is left: U+FFFD where the last character never was completed, otherwise nothing."""
        return self._without_leading_space(self._decoder.decode(b"", final=True))

    def _without_leading_space(self, text: str) -> str:
        if not text or not self._at_space_to_strip:
            return text
        self._at_space_to_strip = False
        return text.removeprefix(" ")
