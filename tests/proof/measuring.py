"""What oracle tests measured, printed at the end of their run: a fixture, and pytest's hook, for their conftest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

Worst = dict[tuple[str, str], list[float]]
_MEASURED: Worst = defaultdict(list)


@pytest.fixture(scope="session")
def measured() -> Callable[[str, str, float], None]:
    """Take note of a number: ``measured("llama", "logits error", 1e-6)``."""
    return lambda family, what, number: _MEASURED[family, what].append(number)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _MEASURED:
        terminalreporter.section("measured against the oracle")
    for (family, what), numbers in sorted(_MEASURED.items()):
        spread = f"least {min(numbers):.3g}, largest {max(numbers):.3g}, sum {sum(numbers):.6g}"
        terminalreporter.write_line(f"{family:10} {what:40} {len(numbers):4} numbers: {spread}")
