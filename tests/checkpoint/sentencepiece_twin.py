"""SentencePiece's two ways of cutting text as slow loops: the oracle of tests that have no wheel of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class Twin:
    """Scores and types by id, as in a GGUF file. Knows no special tokens: `encode` takes text as text."""

    def __init__(self, tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], unknown_id: int) -> None:
        ids = {token: token_id for token_id, token in enumerate(tokens)}
        self.bytes: Mapping[str, int] = {token: i for token, i in ids.items() if types[i] == BYTE}
        self.ids: Mapping[str, int] = {token: i for token, i in ids.items() if types[i] in (NORMAL, USER_DEFINED)}
        self.scores = scores
        self.unknown_id = unknown_id

    def encode(self, text: str, *, has_prefix: bool = True) -> list[int]:
        if not text:
            return []
        symbols = list(("▁" if has_prefix else "") + text.replace(" ", "▁"))
        while pairs := [(self.ids[a + b], n) for n, (a, b) in enumerate(pairwise(symbols)) if a + b in self.ids]:
            _, at = max(pairs, key=lambda pair: (self.scores[pair[0]], -pair[1]))
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        return self._ids_of(symbols)

    def _ids_of(self, symbols: Sequence[str]) -> list[int]:
        ids: list[int] = []
        for symbol in symbols:
            if symbol in self.ids:
                ids.append(self.ids[symbol])
                continue
            spelled = [self.bytes.get(f"<0x{byte:02X}>") for byte in symbol.encode()]
            if None not in spelled:
                ids += [token_id for token_id in spelled if token_id is not None]
            elif ids[-1:] != [self.unknown_id]:
                ids.append(self.unknown_id)
        return ids


class UnigramTwin(Twin):
    """The same for the tokens with the largest sum of scores, of a text whose characters may be replaced first.

    ``replaced`` maps characters and runs of them; ``trims_spaces``: those at the ends and side by side go.
    """

    def __init__(self, *parts: Any, replaced: Mapping[str, str] | None = None, trims_spaces: bool = False) -> None:
        super().__init__(*parts)
        self.replaced, self.trims_spaces = replaced or {}, trims_spaces
        self.worst = min(self.scores)

    def normalised(self, text: str) -> str:
        if self.replaced:
            longest_first = sorted(self.replaced, key=len, reverse=True)
            text = re.sub("|".join(map(re.escape, longest_first)), lambda found: self.replaced[found[0]], text)
        return re.sub(" +", " ", text).strip(" ") if self.trims_spaces else text

    def encode(self, text: str, *, has_prefix: bool = True) -> list[int]:
        text = self.normalised(text)
        if not text:
            return []
        text = ("▁" if has_prefix else "") + text.replace(" ", "▁")
        longest = max(map(len, self.ids))
        best: list[tuple[float, int, str]] = [(0.0, 0, "")]
        for end in range(1, len(text) + 1):
            found = [
                (best[start][0] + self.scores[self.ids[text[start:end]]], start, text[start:end])
                for start in range(max(0, end - longest), end)
                if text[start:end] in self.ids
            ]
            if text[end - 1] not in self.ids:
                found.append((best[end - 1][0] + self.worst - 10, end - 1, text[end - 1]))
            best.append(max(found))
        symbols: list[str] = []
        end = len(text)
        while end:
            _, end, symbol = best[end]
            symbols.insert(0, symbol)
        return self._ids_of(symbols)
