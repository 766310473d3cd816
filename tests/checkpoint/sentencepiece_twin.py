"""SentencePiece's byte-pair encoding as a slow loop: the oracle of tests that have no wheel of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

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
