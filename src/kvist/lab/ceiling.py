"""What this machine can do at best with so many threads: the denominators of the benchmark's shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvist.kernels.ceiling import int_dot_peak, matmul_rate, read_bandwidth


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

    def as_json(self) -> dict[str, float]:
        return {
            "read_bandwidth": self.read_bandwidth,
            "int_dot_peak": self.int_dot_peak,
            "matmul_rate": self.matmul_rate,
        }


class CeilingProbe(Protocol):
    """Measures the ceiling now; ``read_bandwidth`` that one number, in a fraction of a second."""

    def measure(self) -> Ceiling: ...
    def read_bandwidth(self) -> float: ...


@dataclass(frozen=True)
class MachineProbe:
    """Measures this machine with ``num_threads`` threads; takes about a second."""

    num_threads: int

    def measure(self) -> Ceiling:
        return Ceiling(read_bandwidth(self.num_threads), int_dot_peak(self.num_threads), matmul_rate(self.num_threads))

    def read_bandwidth(self) -> float:
        return read_bandwidth(self.num_threads, rounds=2)
