"""How GGML packs tensors: each type's number in GGUF files, its name, and the size of its blocks.

A row of a tensor is a whole number of blocks. All types of the format stand here, so that every tensor's place
in a file can be checked; which of them kvist reads is ``files.READABLE_TYPES``. Source: ggml's type traits and
block structures (ggml-common.h).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GgmlType:
    """``block_elements`` neighbouring elements of a row take ``block_bytes`` bytes together."""

    name: str
    block_elements: int
    block_bytes: int

    def num_bytes(self, num_elements: int) -> int:
        """Bytes of ``num_elements`` elements, which must fill whole blocks."""
        assert num_elements % self.block_elements == 0, (self.name, num_elements)
        return num_elements // self.block_elements * self.block_bytes


GGML_TYPES: dict[int, GgmlType] = {
    0: GgmlType("f32", 1, 4),
    1: GgmlType("f16", 1, 2),
    2: GgmlType("q4_0", 32, 18),
    3: GgmlType("q4_1", 32, 20),
    6: GgmlType("q5_0", 32, 22),
    7: GgmlType("q5_1", 32, 24),
    8: GgmlType("q8_0", 32, 34),
    9: GgmlType("q8_1", 32, 36),
    10: GgmlType("q2_k", 256, 84),
    11: GgmlType("q3_k", 256, 110),
    12: GgmlType("q4_k", 256, 144),
    13: GgmlType("q5_k", 256, 176),
    14: GgmlType("q6_k", 256, 210),
    15: GgmlType("q8_k", 256, 292),
    16: GgmlType("iq2_xxs", 256, 66),
    17: GgmlType("iq2_xs", 256, 74),
    18: GgmlType("iq3_xxs", 256, 98),
    19: GgmlType("iq1_s", 256, 50),
    20: GgmlType("iq4_nl", 32, 18),
    21: GgmlType("iq3_s", 256, 110),
    22: GgmlType("iq2_s", 256, 82),
    23: GgmlType("iq4_xs", 256, 136),
    24: GgmlType("i8", 1, 1),
    25: GgmlType("i16", 1, 2),
    26: GgmlType("i32", 1, 4),
    27: GgmlType("i64", 1, 8),
    28: GgmlType("f64", 1, 8),
    29: GgmlType("iq1_m", 256, 56),
    30: GgmlType("bf16", 1, 2),
    34: GgmlType("tq1_0", 256, 54),
    35: GgmlType("tq2_0", 256, 66),
    39: GgmlType("mxfp4", 32, 17),
    40: GgmlType("nvfp4", 64, 36),
    41: GgmlType("q1_0", 128, 18),
    42: GgmlType("q2_0", 64, 18),
}

GIVEN_UP = frozenset((4, 5, 31, 32, 33, 36, 37, 38))
"""Numbers of types that the format gave up (q4_2, q4_3, q4_0 and iq4_nl in other orders); no current program writes
them."""

BY_NAME = {kind.name: kind for kind in GGML_TYPES.values()}
