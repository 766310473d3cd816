"""The devices that are known, each number with its origin (``hardware.ORIGINS``).

Memory is what the driver reports in MiB, not the nominal GB; where a program's own view (the total that CUDA reports)
is on record it counts. Bandwidth in GB/s and peaks in TFLOP/s are the vendors', dense.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvist.planner.hardware import MIB, Device, Figure

_GIB = 1024 * MIB


def _device(
    name: str,
    memory_mib: tuple[float, str],
    bandwidth_gb_s: tuple[float, str],
    peaks_tflop_s: Mapping[str, tuple[float, str]],
    *aliases: str,
    usable_gib: tuple[float, str] | None = None,
    note: str = "",
) -> Device:
    peaks = {kind: Figure(value * 1e12, origin) for kind, (value, origin) in peaks_tflop_s.items()}
    return Device(
        name=name,
        memory_bytes=Figure(memory_mib[0] * MIB, memory_mib[1]),
        bandwidth=Figure(bandwidth_gb_s[0] * 1e9, bandwidth_gb_s[1]),
        peaks=peaks,
        usable_bytes=Figure(int(usable_gib[0] * _GIB), usable_gib[1]) if usable_gib else None,
        aliases=aliases,
        note=note,
    )


def _peaks(bf16: float, fp8: float | None, origin: str, name: str = "bf16") -> dict[str, tuple[float, str]]:
    peaks = {name: (bf16, origin)}
    return peaks if fp8 is None else {**peaks, "fp8": (fp8, origin)}


DEVICES: tuple[Device, ...] = (
    _device(
        "H100 SXM 80GB",
        (81559, "AF"),
        (3350, "A"),
        _peaks(989, 1978, "A"),
        "H100",
        "H100 SXM",
        "H100 80GB",
        "H100 80GB HBM3",
        usable_gib=(79.18, "L"),
    ),
    _device("H100 PCIe 80GB", (81559, "M"), (2000, "A"), _peaks(756.5, 1513, "A"), "H100 PCIe"),
    _device("H200 SXM 141GB", (143771, "AF"), (4800, "A"), _peaks(989, 1978, "A"), "H200", "H200 SXM"),
    _device(
        "B200 SXM 180GB",
        (183359, "AF"),
        (7700, "A"),
        _peaks(2250, 4500, "A"),
        "B200",
        "B200 SXM",
        usable_gib=(178.36, "L"),
        note="bandwidth is given as 7,700 to 8,000 GB/s; the lower counts",
    ),
    _device("GB200 186GB", (189471, "A"), (8000, "A"), _peaks(2500, 5000, "A"), "GB200"),
    _device("B300 SXM 288GB", (275040, "A"), (7750, "A"), _peaks(2250, 4500, "A"), "B300", "B300 SXM"),
    _device("GB300 288GB", (284208, "A"), (8000, "A"), _peaks(2500, 5000, "A"), "GB300"),
    _device("A100 SXM 80GB", (81920, "M"), (2039, "AS"), _peaks(312, None, "AS"), "A100", "A100 80GB", "A100 SXM"),
    _device("A100 PCIe 80GB", (81920, "M"), (1935, "A"), _peaks(312, None, "A"), "A100 PCIe"),
    _device("A100 40GB", (40960, "M"), (1555, "S"), _peaks(312, None, "S"), "A100 40", "A100 SXM 40GB"),
    _device("A30 24GB", (24576, "M"), (933, "A"), _peaks(165, None, "A"), "A30"),
    _device("A10 24GB", (23028, "M"), (600, "S"), _peaks(125, None, "S"), "A10", note="memory with ECC on"),
    _device("A40 48GB", (46068, "SF"), (696, "S"), _peaks(150, None, "S"), "A40"),
    _device(
        "RTX A6000 48GB",
        (46068, "SF"),
        (768, "S"),
        _peaks(155, None, "S"),
        "A6000",
        "RTX A6000",
        note="ECC on; 49,140 MiB off",
    ),
    _device("L4 24GB", (23034, "AF"), (300, "A"), _peaks(121, 242, "A"), "L4"),
    _device("L40S 48GB", (46068, "AF"), (864, "A"), _peaks(362, 733, "A"), "L40S"),
    _device("RTX 6000 Ada 48GB", (49140, "M"), (960, "S"), _peaks(364, 728, "S"), "RTX 6000 Ada", "6000 Ada"),
    _device(
        "RTX PRO 6000 Blackwell 96GB",
        (97887, "AF"),
        (1792, "A"),
        _peaks(467.8, 935.6, "A"),
        "RTX PRO 6000",
        "RTX PRO 6000 Blackwell",
        "PRO 6000",
    ),
    _device(
        "RTX 3090 24GB", (24576, "S"), (936, "S"), _peaks(71, None, "S"), "3090", "RTX 3090", usable_gib=(23.58, "L")
    ),
    _device("RTX 4090 24GB", (24564, "M"), (1008, "S"), _peaks(165, 330, "S"), "4090", "RTX 4090"),
    _device(
        "RTX 5090 32GB",
        (32607, "SF"),
        (1792, "S"),
        _peaks(210, None, "S"),
        "5090",
        "RTX 5090",
        usable_gib=(32111 / 1024, "L"),
    ),
    _device("T4 16GB", (15360, "M"), (320, "S"), _peaks(65, None, "S", "fp16"), "T4"),
    _device("V100 32GB", (32768, "M"), (900, "S"), _peaks(125, None, "S", "fp16"), "V100", "V100 SXM"),
    _device("MI300X 192GB", (196592, "M"), (5300, "M"), _peaks(1307, 2615, "M"), "MI300X", "AMD MI300X"),
    _device(
        "Arc Pro B60 24GB",
        (24576, "A"),
        (456, "A"),
        _peaks(98.3, None, "A"),
        "B60",
        "Arc Pro B60",
        "Intel Arc Pro B60",
        note="about 48 % of its bandwidth was reached where it was measured",
    ),
)
