"""The catalog: names, near names, and that every number has an origin."""

from __future__ import annotations

import pytest

from kvist.errors import SpecError
from kvist.planner.devices import DEVICES
from kvist.planner.hardware import ORIGINS, Figure, find_device


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100", "H100 SXM 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("RTX-4090", "RTX 4090 24GB"),
        ("GeForce RTX 4090", "RTX 4090 24GB"),
        ("4090", "RTX 4090 24GB"),
        ("a100 40gb", "A100 40GB"),
        ("mi300x", "MI300X 192GB"),
        ("l40s", "L40S 48GB"),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert find_device(name, DEVICES).name == expected


@pytest.mark.parametrize(
    ("name", "near"), [("h10", "H100"), ("rtx4080", "RTX 4090"), ("a1000", "A100"), ("blackwell", "RTX PRO 6000")]
)
def test_an_unknown_name_is_answered_with_near_ones(name: str, near: str) -> None:
    with pytest.raises(SpecError, match=f'no device is called "{name}"; did you mean .*{near}'):
        find_device(name, DEVICES)


def test_a_strange_name_points_to_the_list() -> None:
    with pytest.raises(SpecError, match="kvist plan --list-gpus shows the known ones"):
        find_device("~~~", DEVICES)


def test_the_catalog() -> None:
    assert len(DEVICES) >= 25
    assert len({device.name for device in DEVICES}) == len(DEVICES)
    for device in DEVICES:
        figures = [device.memory_bytes, device.bandwidth, *device.peaks.values()]
        assert all(figure.sources for figure in figures)
        assert device.capacity_bytes <= device.memory_bytes.value
        assert device.peak("bf16") is not None


def test_memory_is_what_a_program_is_told() -> None:
    h100 = find_device("h100", DEVICES)
    assert h100.memory_bytes.value == 81559 << 20
    assert h100.capacity_bytes == int(79.18 * (1 << 30))
    assert find_device("mi300x", DEVICES).unverified == ("memory", "bandwidth", "bf16 peak", "fp8 peak")
    assert h100.unverified == ()


def test_figures_name_their_origin() -> None:
    assert Figure(1, "AF").sources == f"{ORIGINS['A']}; {ORIGINS['F']}"
    with pytest.raises(SpecError, match="must be positive and name its origin"):
        Figure(1, "")
    with pytest.raises(SpecError, match="must be positive"):
        Figure(0, "A")
