"""A chat as it grows: its messages. A turn computes only its new text: the rest is found in the cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from kvist.engine.generation import Generation
from kvist.engine.request import SamplingParams
from kvist.engine.result import Result
from kvist.errors import RequestError
from kvist.llm import LLM


class Conversation:
    """Messages with a model. ``results`` has one entry for each answer; ``num_dropped`` messages no longer fit."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._saved: set[Path] = set()
        self.turns: list[dict[str, str]] = []
        self.results: list[Result] = []
        self.num_dropped = 0

    @property
    def messages(self) -> list[dict[str, str]]:
        """System message and turns, those that were dropped included."""
        return [*self._system, *self.turns]

    def ask(self, text: str, is_cancelled: Callable[[], bool] = bool) -> Generation:
        """Begin the answer to ``text``; ``keep`` it when it has ended.

        Where the context is full the oldest turns are left out. Raises RequestError where ``text`` alone is too long.
        """
        self.turns.append({"role": "user", "content": text})
        try:
            token_ids = self._fitted()
            first = self._llm.files.num_system_tokens(self._system, token_ids)
            return self._llm.stream(token_ids, self._params, is_cancelled=is_cancelled, num_first=first)
        except BaseException:
            self.turns.pop()
            raise

    def keep(self, result: Result) -> None:
        """Note the answer, or its beginning where it was interrupted; without one the question is forgotten."""
        self.results.append(result)
        if result.text or result.finish_reason != "cancelled":
            self.turns.append({"role": "assistant", "content": result.text})
        else:
            self.turns.pop()

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.turns.clear()
        self.num_dropped = 0

    def save(self, name: str) -> Path:
        """Write the messages to a new file, as JSON. Raises RequestError where it exists or can't be written."""
        path = Path(name).expanduser()
        mode = "w" if path.resolve() in self._saved else "x"
        document = {"model": self._llm.files.name, "messages": self.messages}
        try:
            with path.open(mode, encoding="utf-8") as file:
                file.write(json.dumps(document, ensure_ascii=False, indent=1) + "\n")
        except FileExistsError:
            raise RequestError(f'"{path}" exists already; choose another name') from None
        except (OSError, ValueError) as error:
            raise RequestError(f'can\'t write "{path}": {getattr(error, "strerror", None) or error}') from None
        self._saved.add(path.resolve())
        return path

    def _fitted(self) -> list[int]:
        """Token ids of the newest turns that leave room for an answer: a quarter of the context, or all it may take.

        Of all turns where the model slides: it forgets by itself.
        """
        room = min(self._params.max_tokens, self._llm.context_length // 4)
        while True:
            token_ids = self._llm.files.encode_chat([*self._system, *self.turns[self.num_dropped :]])
            is_last = self.num_dropped + 2 >= len(self.turns)
            is_endless = self._llm.on_limit == "slide"
            if is_endless or is_last or len(token_ids) + room <= self._llm.context_length + 1:
                return token_ids
            self.num_dropped += 2
