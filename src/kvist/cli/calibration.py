"""This machine as a device: measured once by ``kvist plan --calibrate``, kept in the user's cache directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvist.cli.output import Output
from kvist.errors import KvistError, SpecError
from kvist.planner.hardware import Device, Figure
from kvist.units import format_bytes

_FILE = "calibration.json"
_HOW = "kvist plan --calibrate measures this machine, in a few seconds"
_KEYS = ("memory_bytes", "read_bandwidth", "int_dot_peak")


def calibrate(out: Output) -> dict[str, Any]:
    """Measure memory bandwidth and integer-dot peak with the engine's number of threads; keep and return them."""
    from kvist.engine.cores import usable_cores
    from kvist.lab.ceiling import MachineProbe
    from kvist.lab.machine import this_machine

    threads = usable_cores().num_usable
    out.notice(f"measuring with {threads} threads")
    probe, machine = MachineProbe(threads), this_machine()
    ceiling = probe.measure().best_of(probe.measure())
    found: dict[str, Any] = {"machine": str(machine), "threads": threads, "memory_bytes": machine.memory_bytes}
    found |= ceiling.as_json()
    path = _path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found) + "\n", encoding="utf-8")
    except OSError as error:
        raise KvistError(f"can't keep the calibration in {path}: {error.strerror}; set KVIST_CACHE_DIR") from None
    out.line(f"memory       {format_bytes(machine.memory_bytes)}")
    out.line(f"bandwidth    {ceiling.read_bandwidth / 1e9:.1f} GB/s read by {threads} threads")
    out.line(f"int8 dots    {ceiling.int_dot_peak / 1e12:.2f} TOP/s")
    return {**found, "path": str(path)}


def local_device() -> Device:
    """Return the calibrated machine. Raises SpecError where there is no (sound) calibration."""
    try:
        found = json.loads(_path().read_text(encoding="utf-8"))
        memory, bandwidth, peak = (Figure(float(found[key]), "C") for key in _KEYS)
    except FileNotFoundError:
        raise SpecError(f"this machine isn't calibrated yet; {_HOW}") from None
    except (OSError, ValueError, KeyError, TypeError, KvistError):
        raise SpecError(f"the calibration in {_path()} can't be read; {_HOW}") from None
    return Device("this machine", memory, bandwidth, {"int8": peak}, note=str(found.get("machine", "")))


def is_calibrated() -> bool:
    """Whether there is a calibration."""
    return _path().is_file()


def _path() -> Path:
    from kvist.kernels.jit import cache_root

    return cache_root() / _FILE
