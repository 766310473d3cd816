"""What a layer keeps for a sequence whatever its length: the state of a recurrence or of a short convolution.

Widths follow the serving engines: a convolution keeps ``kernel - 1`` columns of its input, in 16 bits; the state
proper is kept in the precision that is asked for, f32 by default.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.errors import SpecError

STATE_BYTES = {"f32": 4, "bf16": 2}
"""Bytes of one number of a recurrent state, by codec."""

CONV_ELEMENT_BYTES = 2
"""Bytes of one number in a convolution's columns, unless an engine keeps them otherwise."""


@dataclass(frozen=True)
class RecurrentState:
    """The constant state of one layer.

    ``num_heads`` heads keep ``head_elements`` numbers each and pass ``head_channels`` channels through a
    convolution that keeps ``conv_columns`` of them; ``num_groups`` groups, shared by the heads, pass
    ``group_channels`` more. A state with ``is_always_f32`` ignores the precision that is asked for.
    """

    num_heads: int
    head_elements: int
    conv_columns: int = 0
    head_channels: int = 0
    num_groups: int = 0
    group_channels: int = 0
    is_always_f32: bool = False

    def __post_init__(self) -> None:
        if self.num_heads < 1 or min(self.head_elements, self.conv_columns, self.num_groups) < 0:
            raise SpecError(f"a recurrent layer needs at least one head and no negative size, got {self}")

    @property
    def num_elements(self) -> int:
        """Numbers in the state proper."""
        return self.num_heads * self.head_elements

    @property
    def num_conv_elements(self) -> int:
        """Numbers in the convolution's columns."""
        return self.conv_columns * (self.num_heads * self.head_channels + self.num_groups * self.group_channels)

    def num_bytes(self, codec: str, conv_element_bytes: int = CONV_ELEMENT_BYTES) -> int:
        """Bytes of state and convolution together, the state in ``codec``."""
        state = self.num_elements * STATE_BYTES["f32" if self.is_always_f32 else codec]
        return state + self.num_conv_elements * conv_element_bytes

    def on_rank(self, num_ranks: int) -> RecurrentState:
        """Return the part that one of ``num_ranks`` ranks keeps: its heads, and at least one group."""
        groups = -(-self.num_groups // num_ranks) if self.num_groups else 0
        return RecurrentState(
            num_heads=-(-self.num_heads // num_ranks),
            head_elements=self.head_elements,
            conv_columns=self.conv_columns,
            head_channels=self.head_channels,
            num_groups=groups,
            group_channels=self.group_channels,
            is_always_f32=self.is_always_f32,
        )


def check_state_codec(codec: str, option: str) -> None:
    """Raise SpecError unless ``codec`` is a precision that a state can have; ``option`` is what set it."""
    if codec not in STATE_BYTES:
        raise SpecError(f'unknown precision "{codec}" for {option}; known: {", ".join(STATE_BYTES)}')
