"""Ending an answer at a stop string that may be spread over tokens, without ever showing part of it."""

from __future__ import annotations


class StopStrings:
    """Passes text through until one of ``strings`` is complete; holds back an end that might become one."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._held = ""
        self.is_found = False

    def push(self, text: str) -> str:
        """Return what can be shown now that ``text`` follows; nothing more once a stop string was found."""
        if not self._strings:
            return text
        if self.is_found:
            return ""
        text = self._held + text
        found = [(text.find(string) + len(string), text.find(string)) for string in self._strings if string in text]
        if found:
            self.is_found, self._held = True, ""
            _, start = min(found)
            return text[:start]
        num_held = self._num_open(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def finish(self) -> str:
        """Return what was held back: no stop string came of it."""
        held, self._held = self._held, ""
        return held

    def _num_open(self, text: str) -> int:
        """Characters at the end of ``text`` that may be the beginning of a stop string; the longest such end."""
        longest = max((len(string) for string in self._strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(string.startswith(text[-length:]) for string in self._strings):
                return length
        return 0
