"""The weights that are shown are those that attention used: times the values they give what it wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from proof.cases import CASES, Case
from proof.twin import bf16
from tiny.stream import Stream

from kvist.cache.cells import value_cells
from kvist.cache.codec import CODECS
from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.model.decoder import Decoder, Part
from kvist.model.writer import Writer
from kvist.spec.cache import BLOCK_TOKENS, CacheSpec
from kvist.spec.retention import RetentionSpec

WATCHED = (
    CASES["f32"],
    Case("exact", CASES["f32"].config, codec="f32"),
    CASES["window"],
    Case("codes", CASES["f32"].config, codec="int8"),
)
TOLERANCE = {"f32": 2e-5, "bf16": 2e-5, "int8": 2e-2, "int4": 2e-2}
"""Beside float keys both compute the same sums in another order. Codes are multiplied with a query of 8 bits, which is
read back, but values weighted in 8 bits, too, which these aren't."""


def values_of(sequence: Sequence, layer_number: int, kv_head: int) -> np.ndarray:
    """One head's values [T, D] of the tokens that a sequence holds in its blocks' order."""
    cache = sequence.cache
    place = cache.store.places[layer_number]
    group, table = cache.groups[place.group], sequence.tables[place.group]
    codec = group.spec.v_codec
    blocks = cache.store.halves[place.group][1][group.layers.index(layer_number), kv_head][table.held]
    parts = []
    for cell in value_cells(codec, group.layer.v_dim):
        tokens = cell.view(blocks).swapaxes(2, 3)  # [blocks, 16 / width, width, count]
        parts.append(np.ascontiguousarray(tokens).reshape(len(table.held) * BLOCK_TOKENS, cell.count).view(np.uint8))
    return CODECS[codec].decode_values(np.concatenate(parts, axis=1))


def attended(decoder: Decoder, cache: KvCache, row: int) -> np.ndarray:
    """What the last layer's attention wrote for a row of the last pass, [H, D]."""
    writer = Writer(
        decoder.spec,
        decoder.decoder_spec,
        decoder.weights,
        cache,
        decoder._kernels,
        max_rows=decoder.step_tokens,
        num_threads=decoder.num_threads,
    )
    layer, at = decoder.spec.layers[-1], writer.attended + row * writer.attended_stride
    found = decoder._workspaces[cache].work[at : at + 4 * layer.num_heads * layer.v_dim].view(np.float32)
    return found.reshape(layer.num_heads, layer.v_dim)


@pytest.mark.parametrize("case", WATCHED, ids=lambda case: case.name)
def test_weights_times_values_are_what_attention_wrote(case: Case, tmp_path: Path) -> None:
    decoder = case.load(case.write(tmp_path))
    try:
        cache = case.new_cache(decoder)
        sequence = cache.new_sequence()
        token_ids = Stream(3, "watching").integers(45, decoder.spec.vocab_size)
        layer, number = decoder.spec.layers[-1], len(decoder.spec.layers) - 1
        for start, end in ((0, 20), (20, 44), (44, 45)):
            decoder.forward([Part(sequence, token_ids[start:end], "last")])
            out = attended(decoder, cache, end - start - 1)
            for head in range(layer.num_heads):
                weights = decoder.attention_weights(sequence, end - start - 1, head)
                first = 0 if layer.window is None else max(0, end - layer.window)
                assert [position for position, _ in weights] == list(range(first, end))
                values = values_of(sequence, number, head * layer.num_kv_heads // layer.num_heads)[first:end]
                shares = np.array([weight for _, weight in weights])
                if cache.groups[-1].spec.v_codec == "bf16":  # of one span: the largest is 1 when they are rounded
                    shares = bf16(shares / shares.max()) * shares.max()
                expected = shares @ values
                np.testing.assert_allclose(expected, out[head], atol=TOLERANCE[cache.groups[-1].spec.k_codec])
    finally:
        decoder.close()


def test_where_tokens_were_dropped_nothing_is_shown(tmp_path: Path) -> None:
    decoder = CASES["f32"].load(CASES["f32"].write(tmp_path))
    try:
        spec = CacheSpec("f32", retention=RetentionSpec("window", 16))
        sequence = KvCache(decoder.spec, spec, num_tokens=64).new_sequence()
        decoder.forward([Part(sequence, [1, 2, 3], "last")])
        assert decoder.attention_weights(sequence, 2, 0) == []
    finally:
        decoder.close()
