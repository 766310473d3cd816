"""What the oracle tests measured, printed at the end."""

from __future__ import annotations

from proof.measuring import measured, pytest_terminal_summary

__all__ = ["measured", "pytest_terminal_summary"]
