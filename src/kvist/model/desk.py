"""What the writer lends to those who write a layer's attention: places in the work arena, and its matrix products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvist.model.inputs import Input
from kvist.model.weights import Placed

Multiply = Callable[[Placed, Input, int, int], None]
"""Adds the lines of rows times the matrices of a role, to a place and its stride."""


@dataclass(frozen=True)
class Desk:
    """Places of the writer that all kinds of attention use: for queries, results, records and angles.

    ``attended_q`` is for quantised rows, ``parts`` for records of spans attended apart.
    """

    q: int
    sink_q: int
    attended: int
    attended_stride: int
    attended_q: int
    parts: int
    angles: int
    sink_angles: int
    max_rows: int
    num_threads: int
