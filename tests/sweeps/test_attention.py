"""Attention of any head dim, share and way of storing, against float64 and itself. Each kind compiles for seconds."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.test_attention import check_twin
from proof.heads import Heads, attend, expected
from proof.twin import attended
from tiny.stream import Stream

from kvist.spec import cache

DIMS, SHARES = (16, 32, 48, 64, 80, 96, 112, 128), (1, 2, 3, 4, 5, 6, 7, 8)
CODECS = (("f32", "f32"), ("bf16", "bf16"), ("f32", "bf16"), ("bf16", "f32"))
KINDS = [
    Heads(dim, share, k_codec=k, v_codec=v)
    for dim in DIMS
    for share in SHARES
    for k, v in (CODECS if share == 3 else CODECS[:2])
]
LENGTH = 530
ROWS = [0, 1, 15, 16, 33, 100, 254, 255, 256, 257, 511, 512, LENGTH - 1]


@pytest.mark.parametrize("heads", KINDS, ids=lambda h: f"{h.dim}x{h.share} {h.k_codec}-{h.v_codec}")
def test_attention(heads: Heads) -> None:
    for window in (None, 1, 16, 33, 256, 257):
        kind = Heads(heads.dim, heads.share, 1, window, heads.k_codec, heads.v_codec)
        sizes = {"q": kind.num_heads, "k": 1, "v": 1}
        qkv = [Stream(4, name).normal((LENGTH, size, kind.dim)) for name, size in sizes.items()]
        found = []
        for division in ([256], [1, 2, 3, 4, 5, 200], [17]):
            sequence, rows, start, queue, size = kind.new_cache(LENGTH).new_sequence(), [], 0, iter(division), 1
            while start < LENGTH:
                size = next(queue, size)
                rows.append(attend(kind, [(sequence, *(x[start : start + size] for x in qkv))]))
                start += size
            found.append(np.concatenate(rows))
        assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
        allowed = 68 * 2.0**-24 * np.abs(qkv[2]).max()
        if "bf16" in (kind.k_codec, kind.v_codec):  # queries or weights are rounded, too
            assert np.abs(found[0][ROWS] - attended(kind, *qkv, ROWS)).max() <= allowed
        else:
            assert np.abs(found[0] - expected(kind, *qkv)).max() <= allowed


PAIRS = [
    Heads(dim, share, 1, k_codec=k, v_codec=v)
    for dim, share in ((64, 3), (16, 8), (80, 2), (128, 1))
    for k in cache.CODECS
    for v in cache.CODECS
]


@pytest.mark.parametrize("heads", PAIRS, ids=lambda h: f"{h.dim}x{h.share} {h.k_codec}-{h.v_codec}")
def test_every_pair_of_codecs_is_as_its_twin(heads: Heads) -> None:
    check_twin(heads, (None, 1, 16, 33, 256, 300))
