"""What an evaluation has found so far, in a file: written whole and swapped in, so that it is never half a file.

Knows where a figure is kept and under which key; what it means is ``lab.quality``'s.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvist.errors import KvistError
from kvist.lab.divergence import Comparison
from kvist.spec.cache import CacheSpec

_FORMAT = 2
_REFERENCE = "reference"


@dataclass(frozen=True)
class Losses:
    """One window: ``kl`` of each position, the sum of its losses in nats, how often the likeliest token was the
    reference's, and the bytes that the sequence held at its end."""

    kl: tuple[float, ...]
    nll_sum: float
    num_same_top: int
    allocated_bytes: int

    @staticmethod
    def of(comparisons: Iterable[Comparison], allocated_bytes: int) -> Losses:
        found = list(comparisons)
        return Losses(
            kl=tuple(one.kl for one in found),
            nll_sum=sum(one.nll for one in found),
            num_same_top=sum(one.is_same_top for one in found),
            allocated_bytes=allocated_bytes,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "kl": base64.b64encode(np.array(self.kl, "<f8").tobytes()).decode("ascii"),
            "nll_sum": self.nll_sum,
            "num_same_top": self.num_same_top,
            "allocated_bytes": self.allocated_bytes,
        }

    @staticmethod
    def from_json(found: dict[str, Any]) -> Losses:
        kl = np.frombuffer(base64.b64decode(found["kl"]), "<f8")
        return Losses(tuple(kl.tolist()), found["nll_sum"], found["num_same_top"], found["allocated_bytes"])


class EvalState:
    """Figures by way of keeping the cache (None: the reference). ``path`` None keeps them in memory alone,
    ``is_fresh`` forgets what is there.

    ``key`` names model, text and everything else that all figures of a file depend on.

    Raises KvistError where the file is of another key, or isn't one of these.
    """

    def __init__(self, path: Path | None, key: str, *, is_fresh: bool = False) -> None:
        self.path = path
        self._found: dict[str, Any] = {"format": _FORMAT, "key": key, "figures": {}}
        if path is not None and path.exists() and not is_fresh:
            self._found = _read(path, key)

    @property
    def num_windows(self) -> int:
        """Windows that were compared, over all ways of keeping the cache."""
        return sum(len(found["windows"]) for found in self._found["figures"].values())

    def has_window(self, spec: CacheSpec | None, number: int) -> bool:
        return str(number) in self._of(spec)["windows"]

    def put_window(self, spec: CacheSpec | None, number: int, losses: Losses) -> None:
        self._of(spec)["windows"][str(number)] = losses.as_json()

    def windows(self, spec: CacheSpec | None, count: int) -> list[Losses]:
        found = self._of(spec)["windows"]
        return [Losses.from_json(found[str(number)]) for number in range(count)]

    def has_needle(self, spec: CacheSpec, number: int) -> bool:
        return str(number) in self._of(spec)["needles"]

    def put_needle(self, spec: CacheSpec, number: int, score: float) -> None:
        self._of(spec)["needles"][str(number)] = score

    def needle(self, spec: CacheSpec, number: int) -> float:
        return float(self._of(spec)["needles"][str(number)])

    def put_tpot(self, spec: CacheSpec, num_threads: int, tpot_s: float) -> None:
        self._of(spec)["tpot_s"][str(num_threads)] = tpot_s

    def tpot_s(self, spec: CacheSpec, num_threads: int) -> float | None:
        """Return the decode time on so many threads, the only figure that depends on them; None before it is taken."""
        found = self._of(spec)["tpot_s"].get(str(num_threads))
        return None if found is None else float(found)

    def forget_tpot(self, spec: CacheSpec, num_threads: int) -> None:
        self._of(spec)["tpot_s"].pop(str(num_threads), None)

    def save(self) -> None:
        """Write everything: into a new file, which then takes the old one's place."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            with new.open("w", encoding="utf-8") as stream:
                json.dump(self._found, stream)
                stream.flush()
                os.fsync(stream.fileno())
            new.replace(self.path)
        finally:
            new.unlink(missing_ok=True)

    def _of(self, spec: CacheSpec | None) -> dict[str, Any]:
        name = _REFERENCE if spec is None else repr(spec)
        found: dict[str, Any] = self._found["figures"].setdefault(name, {"windows": {}, "needles": {}, "tpot_s": {}})
        return found


def _read(path: Path, key: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        found_key, figures, form = found["key"], found["figures"], found["format"]
    except (ValueError, KeyError, TypeError):
        raise KvistError(f'"{path}" holds no state of kvist eval; give another to --state, or remove it') from None
    if (found_key, form) != (key, _FORMAT):
        raise KvistError(
            f'the state in "{path}" is of another model, text or setting; give another to --state, or remove it'
        )
    return {"format": form, "key": found_key, "figures": figures}
