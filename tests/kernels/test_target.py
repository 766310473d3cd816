"""Which instructions kernels are compiled with, and which processors are refused in a line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvist.errors import UnsupportedError
from kvist.kernels import target

EVERYTHING = "+avx2,+fma,+f16c,+avx512f,+avx512bw,+avx512vl,+avx512vnni"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing remembered, and a processor of x86 that has it all."""
    monkeypatch.setattr(target.platform, "machine", lambda: "x86_64")
    host(monkeypatch, EVERYTHING)
    told(monkeypatch, None, None)
    yield
    monkeypatch.undo()
    target.features.cache_clear()
    target.current.cache_clear()
    target.has_dot2.cache_clear()


def host(monkeypatch: pytest.MonkeyPatch, features: str) -> None:
    found = {name[1:]: name[0] == "+" for name in features.split(",")}
    monkeypatch.setattr(target.binding, "get_host_cpu_features", lambda: found)


def told(monkeypatch: pytest.MonkeyPatch, name: str | None, features: str | None) -> None:
    """As NUMBA_CPU_NAME and NUMBA_CPU_FEATURES tell it."""
    monkeypatch.setattr(target.config, "CPU_NAME", name)
    monkeypatch.setattr(target.config, "CPU_FEATURES", features)
    target.features.cache_clear()
    target.current.cache_clear()
    target.has_dot2.cache_clear()


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (EVERYTHING, "avx512vnni"),
        (EVERYTHING.replace("+avx512vnni", "-avx512vnni"), "avx512"),
        ("+avx2,+fma,+f16c,-avx512f", "avx2"),
        ("+avx2,+fma,+f16c,+avxvnni", "avxvnni"),
    ],
)
def test_the_hosts_instructions(monkeypatch: pytest.MonkeyPatch, features: str, expected: str) -> None:
    host(monkeypatch, features)
    assert target.current().name == expected
    target.check_supported()


@pytest.mark.parametrize(
    ("name", "features", "expected"),
    [
        ("haswell", "", "avx2"),
        ("x86-64-v3", "", "avx2"),
        ("skylake-avx512", "+avx2,+fma,+f16c,+avx512f,+avx512bw,+avx512vl", "avx512"),
        ("haswell", None, "avx512vnni"),  # Numba then adds the host's
        (None, "+avx2,+fma,+f16c", "avx2"),
    ],
)
def test_what_numba_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str | None, features: str | None, expected: str
) -> None:
    told(monkeypatch, name, features)
    assert target.current().name == expected
    target.check_supported()


@pytest.mark.parametrize(
    ("host_name", "name", "pairs_from", "widened_from"),
    [
        ("icelake-server", None, 13, 13),
        ("znver4", None, 0, 0),
        ("znver5", None, 14, 0),
        ("znver4", "cascadelake", 13, 13),
    ],
)
def test_from_how_many_rows_on_two_panels_are_multiplied_at_a_time(
    monkeypatch: pytest.MonkeyPatch, host_name: str, name: str | None, pairs_from: int, widened_from: int
) -> None:
    """Widening 4-bit weights for it costs AMD's more than it gives; Zen 4 does without pairs of 8-bit panels, too."""
    monkeypatch.setattr(target.binding, "get_host_cpu_name", lambda: host_name)
    told(monkeypatch, name, None)
    assert (target.current().pairs_from, target.current().widened_from) == (pairs_from, widened_from)
    assert target.current().pair_rows


@pytest.mark.parametrize(
    ("host_name", "features", "bytes_ahead", "has_dot2"),
    [
        ("icelake-server", EVERYTHING, 0, False),
        ("emeraldrapids", f"{EVERYTHING},+avx512bf16", 4096, False),
        ("znver4", f"{EVERYTHING},+avx512bf16", 0, True),
        ("znver4", EVERYTHING, 0, False),
        ("znver5", f"{EVERYTHING},+avx512bf16", 4096, True),
    ],
)
def test_what_a_processor_does_best(
    monkeypatch: pytest.MonkeyPatch, host_name: str, features: str, bytes_ahead: int, has_dot2: bool
) -> None:
    """The newer ones are to be asked ahead for weights, AMD's multiply bf16 pairs faster than two fmas do."""
    monkeypatch.setattr(target.binding, "get_host_cpu_name", lambda: host_name)
    host(monkeypatch, features)
    told(monkeypatch, None, None)
    assert target.current().bytes_ahead == bytes_ahead
    assert target.current().has_two_sums == host_name.endswith(("server", "rapids"))
    assert target.has_dot2() == has_dot2


@pytest.mark.parametrize(("host_name", "bytes_ahead"), [("znver3", 2048), ("skylake", 0)])
def test_what_sixteen_registers_hold(monkeypatch: pytest.MonkeyPatch, host_name: str, bytes_ahead: int) -> None:
    monkeypatch.setattr(target.binding, "get_host_cpu_name", lambda: host_name)
    host(monkeypatch, "+avx2,+fma,+f16c")
    told(monkeypatch, None, None)
    chosen = target.current()
    assert chosen.bytes_ahead == bytes_ahead
    assert chosen.query_rows * chosen.value_dims // 16 <= chosen.sums
    assert 2 * max(chosen.tile_rows, chosen.float_rows) < 16


def test_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target.platform, "machine", lambda: "aarch64")
    host(monkeypatch, "+neon,+fp-armv8")
    assert target.current().name == "neon"
    target.check_supported()


def test_an_old_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, "+sse4.2,-avx2,-fma,+f16c")
    with pytest.raises(UnsupportedError, match=r"this processor lacks avx2, fma; kvist needs AVX2 with FMA") as error:
        target.check_supported()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["generic", "x86-64", "x86-64-v2"])
def test_an_old_processors_name_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """LLVM would end the process where it doesn't find a half-precision conversion."""
    told(monkeypatch, name, "")
    with pytest.raises(UnsupportedError, match=f"NUMBA_CPU_NAME={name} says that there is no AVX2") as error:
        target.check_supported()
    assert "\n" not in str(error.value)
    told(monkeypatch, name, "+avx2,+fma,+f16c")
    target.check_supported()
