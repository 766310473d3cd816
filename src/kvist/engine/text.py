"""From chosen tokens to text that can be shown: whole characters, no special tokens, nothing of a stop string."""

from __future__ import annotations

from kvist.checkpoint.tokenizer import Tokenizer
from kvist.engine.stopping import StopStrings


class ShownText:
    """Text of an answer as it grows; empty throughout for a model without a tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None, stop_strings: tuple[str, ...]) -> None:
        self._stream = tokenizer.stream(skip_special_tokens=True, continues_text=True) if tokenizer else None
        self._stop = StopStrings(stop_strings)
        self._shown: list[str] = []

    @property
    def is_stopped(self) -> bool:
        """A stop string came up."""
        return self._stop.is_found

    @property
    def text(self) -> str:
        """All that was shown so far."""
        return "".join(self._shown)

    def push(self, token_id: int) -> str:
        """Return what can be shown now that ``token_id`` follows."""
        return self._show(self._stop.push(self._stream.push(token_id))) if self._stream else ""

    def finish(self) -> str:
        """Return what was held back: an unfinished character or the beginning of a stop string."""
        if self._stream is None or self._stop.is_found:
            return ""
        return self._show(self._stop.push(self._stream.finish()) + self._stop.finish())

    def _show(self, text: str) -> str:
        self._shown.append(text)
        return text
