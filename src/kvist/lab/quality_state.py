"""What an evaluation has found so far, in a file: written whole and swapped in, so that it is never half a file.

Knows where a figure is kept and under which key; what it means is ``lab.quality``'s.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvist.errors import KvistError
from kvist.lab.divergence import Comparison
from kvist.lab.quality_document import FORMAT, Figures, are_figures, decoded_kl, merged, no_state, read_document
from kvist.spec.cache import CacheSpec

try:
    import fcntl
except ImportError:  # Windows: of two runs that save at once, one may lose figures and has to measure them again
    fcntl = None  # type: ignore[assignment]

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
        return Losses(
            tuple(decoded_kl(found["kl"]).tolist()), found["nll_sum"], found["num_same_top"], found["allocated_bytes"]
        )


class EvalState:
    """Figures by way of keeping the cache (None: the reference). ``path`` None keeps them in memory alone,
    ``is_fresh`` forgets what is there.

    ``key`` names model, text and everything else that all figures of a file depend on; ``positions`` are the compared
    ones of each window (None: any number). Several runs may save into one file: it has the figures of all of them.

    Raises KvistError where the file is of another key, isn't one of these, or can't be read.
    """

    def __init__(
        self, path: Path | None, key: str, *, is_fresh: bool = False, positions: Sequence[int] | None = None
    ) -> None:
        self.path = path
        self._key = key
        self._positions = positions
        self._is_fresh = is_fresh
        self._figures: Figures = {}
        if path is not None and not is_fresh:
            with _told(path):
                self._figures = self._saved(path)

    @property
    def num_windows(self) -> int:
        """Windows that were compared, over all ways of keeping the cache."""
        return sum(len(found["windows"]) for found in self._figures.values())

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
        """Write everything, what other runs have saved meanwhile included. Raises KvistError where that can't be."""
        if self.path is None:
            return
        with _told(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(self.path.parent):
                if self._is_fresh and self.path.exists():
                    read_document(self.path)  # a state may be replaced, nothing else
                saved = {} if self._is_fresh else self._saved(self.path)
                figures = merged(saved, self._figures)
                _replace(self.path, {"format": FORMAT, "key": self._key, "figures": figures})
        self._is_fresh = False

    def _saved(self, path: Path) -> Figures:
        """Return the file's figures, none where there is no file. Raises KvistError or OSError."""
        if not path.exists():
            return {}
        found = read_document(path)
        if (found["key"], found["format"]) != (self._key, FORMAT):
            raise KvistError(
                f'the state in "{path}" is of another model, text or setting; give another to --state, or remove it'
            )
        if not are_figures(found["figures"], self._positions):
            raise no_state(path)
        figures: Figures = found["figures"]
        return figures

    def _of(self, spec: CacheSpec | None) -> dict[str, dict[str, Any]]:
        name = _REFERENCE if spec is None else repr(spec)
        return self._figures.setdefault(name, {"windows": {}, "needles": {}, "tpot_s": {}})


def check_state_file(path: Path, *, is_fresh: bool = False) -> None:
    """Raise KvistError unless a state can be kept in ``path``, which leaves nothing behind; call it before measuring.

    What is there has to be a state, of whatever model; with ``is_fresh`` its figures may be damaged.
    """
    check_state_directory(path.parent)
    with _told(path):
        if not path.exists():
            return
        found = read_document(path)
    if not is_fresh and found["format"] == FORMAT and not are_figures(found["figures"]):
        raise no_state(path)


def check_state_directory(directory: Path) -> None:
    """Raise KvistError unless files can be made in ``directory``, or, where there is none, in the one above it."""
    with _told(directory):
        above = directory.absolute()
        while not above.exists():
            above = above.parent
        with tempfile.TemporaryFile(dir=above):
            pass


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say what the system refuses as the user's to put right."""
    try:
        yield
    except OSError as error:
        raise KvistError(
            f'can\'t keep the state of kvist eval in "{path}": {error.strerror or error}; give --state a file that can '
            "be read and written"
        ) from None


@contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Keep every other run from saving into the directory meanwhile, where the file system has locks.

    The directory itself is locked: a file of its own would stay behind, and the state's is replaced.
    """
    with ExitStack() as held:
        if fcntl is not None:
            with suppress(OSError):
                lock = os.open(directory, os.O_RDONLY)
                held.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replace(path: Path, document: dict[str, Any]) -> None:
    """Write into a new file, which then takes the old one's place."""
    new = path.with_name(f".kvist-eval.{os.getpid()}.new")
    try:
        with new.open("w", encoding="utf-8") as stream:
            json.dump(document, stream)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
