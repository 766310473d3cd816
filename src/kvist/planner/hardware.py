"""What a device is to a plan: memory, how fast it reads, how fast it multiplies, and where each number comes from.

The catalog is ``planner.devices``; a machine that was measured (``kvist plan --calibrate``) makes a Device too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvist.errors import SpecError

MIB = 1 << 20

ORIGINS = {
    "A": "ai-dynamo/aiconfigurator, systems/*.yaml at 095f58a5",
    "F": "nvidia-smi output quoted in public repositories",
    "L": "a log in a public issue",
    "S": "servcalc 0.1.0, from vendors' data sheets",
    "C": "measured on this machine by kvist plan --calibrate",
    "M": "from memory, unverified",
}
"""Where a number comes from, by the letter that the catalog gives it. Several letters agree."""


@dataclass(frozen=True)
class Figure:
    """A number and the letters of its origins."""

    value: float
    origin: str

    def __post_init__(self) -> None:
        if self.value <= 0 or not self.origin or set(self.origin) - set(ORIGINS):
            raise SpecError(f"a device's figure must be positive and name its origin, got {self.value} ({self.origin})")

    @property
    def is_verified(self) -> bool:
        return self.origin != "M"

    @property
    def sources(self) -> str:
        """The origins in words."""
        return "; ".join(ORIGINS[letter] for letter in self.origin)


@dataclass(frozen=True)
class Device:
    """One accelerator, or the local processor.

    ``memory_bytes`` is what the driver reports, ``usable_bytes`` what a program is told it may have, where that is
    known. ``bandwidth`` is in bytes a second, ``peaks`` in operations a second by the type that is multiplied
    (two a multiply-add, dense).
    """

    name: str
    memory_bytes: Figure
    bandwidth: Figure
    peaks: dict[str, Figure]
    usable_bytes: Figure | None = None
    aliases: tuple[str, ...] = ()
    note: str = ""

    @property
    def capacity_bytes(self) -> int:
        """Bytes to plan with."""
        return int((self.usable_bytes or self.memory_bytes).value)

    @property
    def unverified(self) -> tuple[str, ...]:
        """Which of the figures nobody has checked."""
        figures = {"memory": self.usable_bytes or self.memory_bytes, "bandwidth": self.bandwidth}
        figures |= {f"{name} peak": figure for name, figure in self.peaks.items()}
        return tuple(name for name, figure in figures.items() if not figure.is_verified)

    def peak(self, weight_type: str) -> Figure | None:
        """Operations a second with weights of ``weight_type``: those of its own type, else of what it is widened to."""
        integer = ("int8",) if weight_type in ("q8", "q4") else ()
        for name in (weight_type, *integer, "bf16", "fp16"):
            if name in self.peaks:
                return self.peaks[name]
        return None


def find_device(name: str, devices: Iterable[Device]) -> Device:
    """Return the device that ``name`` means; case, spaces and dashes don't matter.

    Raises:
        SpecError: nothing is called so, or several things are; the message names near ones.
    """
    wanted, spellings = _plain(name), {}
    for device in devices:
        for spelling in (device.name, *device.aliases):
            spellings[_plain(spelling)] = device
    if wanted in spellings:
        return spellings[wanted]
    near = sorted({device.name for spelling, device in spellings.items() if wanted and wanted in spelling})
    if not near:
        close = difflib.get_close_matches(wanted, list(spellings), n=3, cutoff=0.5)
        near = list(dict.fromkeys(spellings[spelling].name for spelling in close))
    known = f"did you mean {', '.join(near)}?" if near else "kvist plan --list-gpus shows the known ones"
    raise SpecError(f'no device is called "{name}"; {known} Or give --memory SIZE')


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("nvidia", "").replace("geforce", ""))
