"""What a GGUF file's `tokenizer.*` keys say, read and checked; what is made of it is `gguf_tokenizer`'s.

Keys and token types: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kvist.checkpoint.files import quote, quote_path
from kvist.checkpoint.token_type import TokenType
from kvist.errors import CheckpointError

_T = TypeVar("_T")
_PREFIX = "tokenizer.ggml."
_ROLES = ("bos", "eos", "eot", "eom", "unknown", "padding")


@dataclass(frozen=True)
class GgufVocabulary:
    """`types` [V] holds a TokenType for each token.

    `ids` maps a role (bos, eos, eot, eom, unknown, padding) to its token; roles without a token are left out.
    `adds_bos` and `adds_eos` are None where the file doesn't say.
    """

    tokens: list[str]
    types: npt.NDArray[np.int64]
    ids: Mapping[str, int]
    adds_bos: bool | None
    adds_eos: bool | None
    chat_templates: Mapping[str, str]

    def __post_init__(self) -> None:
        assert len(self.types) == len(self.tokens), (len(self.types), len(self.tokens))
        assert all(0 <= token_id < len(self.tokens) for token_id in self.ids.values()), self.ids

    def ids_of(self, *types: TokenType) -> list[int]:
        """Ids of the tokens of these types, in order."""
        ids: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return ids


class TokenizerKeys:
    """Typed access to one file's keys; the CheckpointError for a wrong one names the file. `path` is for that only."""

    def __init__(self, metadata: Mapping[str, object], path: Path) -> None:
        self._metadata = metadata
        self._path = path

    def text(self, name: str) -> str | None:
        """The text `tokenizer.ggml.{name}`, or None."""
        return self._optional(_PREFIX + name, str)

    def flag(self, name: str) -> bool | None:
        """The truth value `tokenizer.ggml.{name}`, or None."""
        return self._optional(_PREFIX + name, bool)

    def numbers(self, name: str) -> npt.NDArray[np.int64] | None:
        """The whole numbers `tokenizer.ggml.{name}`, or None where there is none."""
        value = self._metadata.get(_PREFIX + name)
        if value is None:
            return None
        found = np.asarray(value)
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise self.damaged(f"{_PREFIX}{name} isn't an array of whole numbers")
        return found.astype(np.int64)

    def general(self, name: str) -> str:
        """The text `general.{name}` in lower case, empty where there is none."""
        return (self._optional(f"general.{name}", str) or "").lower()

    def vocabulary(self, default_ids: Mapping[str, int]) -> GgufVocabulary:
        """Everything but merges and scores; `default_ids` are the tokens of roles that the file doesn't name."""
        tokens = list(self._strings(_PREFIX + "tokens"))
        num_repeated = len(tokens) - len(set(tokens))
        if num_repeated:
            raise self.damaged(f"{num_repeated} of its {len(tokens)} tokens occur twice")
        return GgufVocabulary(
            tokens=tokens,
            types=self._types(len(tokens)),
            ids=self._ids(len(tokens), default_ids),
            adds_bos=self.flag("add_bos_token"),
            adds_eos=self.flag("add_eos_token"),
            chat_templates=self._chat_templates(),
        )

    def merges(self) -> list[tuple[str, str]]:
        """Pairs of tokens, the most frequent first."""
        parts = (merge.partition(" ") for merge in self._strings(_PREFIX + "merges"))
        return [(left, right) for left, _, right in parts]

    def scores(self, num_tokens: int) -> npt.NDArray[np.float64]:
        """A number [V] for each token, the higher the sooner it is joined; all 0 where the file has none."""
        key = _PREFIX + "scores"
        if key not in self._metadata:
            return np.zeros(num_tokens)
        scores = np.asarray(self._metadata[key])
        if scores.shape != (num_tokens,) or scores.dtype.kind not in "iuf" or np.isnan(scores).any():
            raise self.damaged(f"{key} isn't an array of {num_tokens} numbers, one for each token")
        return scores.astype(np.float64)

    def damaged(self, what: str) -> CheckpointError:
        """The error to raise for keys that can't be used."""
        return CheckpointError(f"the tokenizer in {quote_path(self._path)} can't be used: {what}")

    def _types(self, num_tokens: int) -> npt.NDArray[np.int64]:
        key = _PREFIX + "token_type"
        if key not in self._metadata:
            return np.full(num_tokens, TokenType.NORMAL, dtype=np.int64)
        types = np.asarray(self._metadata[key])
        if types.shape != (num_tokens,) or types.dtype.kind not in "iu":
            raise self.damaged(f"{key} isn't an array of {num_tokens} integers, one for each token")
        return types.astype(np.int64)

    def _ids(self, num_tokens: int, default_ids: Mapping[str, int]) -> dict[str, int]:
        """Converters write -1, as a large number, for a token that isn't there: what is out of range is none."""
        found = {role: self._optional(f"{_PREFIX}{role}_token_id", int) for role in _ROLES}
        ids = {role: default_ids.get(role) if found[role] is None else found[role] for role in _ROLES}
        return {role: token_id for role, token_id in ids.items() if token_id is not None and 0 <= token_id < num_tokens}

    def _chat_templates(self) -> dict[str, str]:
        templates = {"default": self._optional("tokenizer.chat_template", str)}
        if "tokenizer.chat_templates" in self._metadata:
            for name in self._strings("tokenizer.chat_templates"):
                templates[name] = self._optional(f"tokenizer.chat_template.{name}", str)
        return {name: template for name, template in templates.items() if template is not None}

    def _strings(self, key: str) -> Iterable[str]:
        value = self._metadata.get(key)
        if not isinstance(value, Iterable) or isinstance(value, (str, bytes, np.ndarray)):
            raise self.damaged(f"{key} is missing or no array of strings")
        return value

    def _optional(self, key: str, kind: type[_T]) -> _T | None:
        value = self._metadata.get(key)
        if value is not None and type(value) is not kind:
            raise self.damaged(f"{key} must be of type {kind.__name__}, got {quote(value)}")
        return value
