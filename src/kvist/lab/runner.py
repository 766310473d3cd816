"""What every benchmark says beside its own figures: what ran, where, with which ceiling. Times come from lab.timing.

A benchmark is one file, ``bench_NAME.py``: a function that measures and a result that has ``as_json``. Its command
makes a ``BenchRun`` (cli.bench_run), and ``schemas/bench_NAME.json`` says what the document holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvist.lab.ceiling import Ceiling
    from kvist.lab.machine import Machine
    from kvist.spec.cache import CacheSpec


@dataclass(frozen=True)
class Setup:
    """What is measured and where; ``weight_types`` are packed bytes of the matrices by type."""

    bench: str
    is_quick: bool
    model: str
    threads: int
    cache: CacheSpec
    weight_types: dict[str, int]
    machine: Machine

    @property
    def codecs(self) -> str:
        """K's and V's codec, once where they are the same."""
        k, v = self.cache.k_codec, self.cache.v_codec
        return k if k == v else f"{k}/{v}"

    def __str__(self) -> str:
        return f"{self.model}, {self.threads} threads, {self.codecs} cache; {self.machine}"

    def document(self, ceiling: Ceiling, measured: dict[str, object]) -> dict[str, object]:
        """Return what a benchmark ends with: the setup, the ceiling, what was ``measured``, the machine."""
        return {
            "bench": self.bench,
            "quick": self.is_quick,
            "model": self.model,
            "threads": self.threads,
            "kv": {"k": self.cache.k_codec, "v": self.cache.v_codec},
            "retention": str(self.cache.retention),
            "weight_types": self.weight_types,
            **ceiling.as_json(),
            **measured,
            "machine": self.machine.as_json(),
        }
