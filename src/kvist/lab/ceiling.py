"""What this machine can do at best with so many threads: the denominators of the benchmark's shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvist.kernels.ceiling import int_dot_peak, matmul_rate, read_bandwidth

MATMUL_YARDSTICK = 1.3e12
"""4-bit operations a second of the machine that the floors of speed were set on."""


@dataclass(frozen=True)
class Ceiling:
    """``read_bandwidth`` in bytes a second from memory; the others in operations (a multiplication or an addition).

    ``int_dot_peak`` is of integer dots on registers alone, ``matmul_rate`` of 4-bit weights times 256 rows.
    """

    read_bandwidth: float
    int_dot_peak: float
    matmul_rate: float

    def best_of(self, other: Ceiling) -> Ceiling:
        """Return the better of two measurements, each number by itself: what disturbs one only ever lowers it."""
        return Ceiling(
            max(self.read_bandwidth, other.read_bandwidth),
            max(self.int_dot_peak, other.int_dot_peak),
            max(self.matmul_rate, other.matmul_rate),
        )

    @property
    def matmul_factor(self) -> float:
        """The 4-bit matmul rate over the yardstick: floors scale with it."""
        return self.matmul_rate / MATMUL_YARDSTICK

    def __str__(self) -> str:
        return (
            f"ceiling: {self.read_bandwidth / 1e9:.1f} GB/s read, {self.int_dot_peak / 1e12:.2f} TOP/s of integer "
            f"dots, {self.matmul_rate / 1e12:.2f} TOP/s of 4-bit matmul ({self.matmul_factor:.2f} of the yardstick)"
        )

    def as_json(self) -> dict[str, float]:
        return {
            "read_bandwidth": self.read_bandwidth,
            "int_dot_peak": self.int_dot_peak,
            "matmul_rate": self.matmul_rate,
            "matmul_factor": self.matmul_factor,
        }


class CeilingProbe(Protocol):
    """Measures the ceiling now; ``read_bandwidth`` that one number, in a fraction of a second."""

    def measure(self) -> Ceiling: ...
    def read_bandwidth(self) -> float: ...


class BestProbe:
    """Measures at once, and whenever it is asked again; ``best`` is the best of all that, each number by itself.

    What disturbs a measurement only ever lowers it, and a ceiling that was disturbed would flatter every share of it.
    """

    def __init__(self, probe: CeilingProbe) -> None:
        self._probe = probe
        self.best = probe.measure()

    def measure(self) -> Ceiling:
        self.best = self.best.best_of(self._probe.measure())
        return self.best

    def read_bandwidth(self) -> float:
        return self._probe.read_bandwidth()


@dataclass(frozen=True)
class MachineProbe:
    """Measures this machine with ``num_threads`` threads; takes about a second."""

    num_threads: int

    def measure(self) -> Ceiling:
        return Ceiling(read_bandwidth(self.num_threads), int_dot_peak(self.num_threads), matmul_rate(self.num_threads))

    def read_bandwidth(self) -> float:
        return read_bandwidth(self.num_threads, rounds=2)
