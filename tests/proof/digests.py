"""Digests of a case's logits, here or in another process: ``python -m proof.digests FOLDER NAME...`` prints JSON.

``smollm2-135m`` is the real model. A digest covers rows computed together, alone, and over keys and values at random,
where some rows share what they read and some sequences keep sinks.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tiny.stream import Stream

from kvist.cache import codec as codecs
from kvist.cache.cells import Cells, key_cells, value_cells
from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.checkpoint.catalog import open_checkpoint
from kvist.model.decoder import Decoder, Part, load_decoder
from kvist.spec.cache import BLOCK_TOKENS, CacheSpec
from kvist.spec.retention import RetentionSpec
from proof.cases import CASES

REAL = "smollm2-135m"
PROMPT = 11
LATE = ((254, 4), (250, 9), (511, 1))
"""(position, rows) from which rows are computed over a past that was never: around the edges of attention's spans."""


def fill_at_random(cache: KvCache) -> None:
    """Make every number that is kept a normal one, whatever the layout."""
    for group, halves in zip(cache.groups, cache.store.halves, strict=True):
        spec, layer = group.spec, group.layer
        k, v = codecs.CODECS[spec.k_codec], codecs.CODECS[spec.v_codec]
        for half, cells, encode, dim in (
            (halves[0], key_cells(spec.k_codec, layer.k_dim), k.encode_keys, layer.k_dim),
            (halves[1], value_cells(spec.v_codec, layer.v_dim), v.encode_values, layer.v_dim),
        ):
            if not dim:
                continue  # a latent is its key
            num_tokens = half.size // half.shape[-1] * BLOCK_TOKENS
            raw = encode(Stream(5, "past").normal((num_tokens, dim))).reshape(*half.shape[:-1], BLOCK_TOKENS, -1)
            put_tokens(half, cells, raw)


def put_tokens(half: Any, cells: tuple[Cells, ...], raw: Any) -> None:
    """Put tokens' bytes [..., blocks, 16, bytes of a token] where they stand in the blocks."""
    start = 0
    for cell in cells:
        size = cell.count * np.dtype(cell.dtype).itemsize
        numbers = np.ascontiguousarray(raw[..., start : start + size]).view(cell.dtype)
        cell.view(half)[:] = numbers.reshape(*raw.shape[:-2], -1, cell.width, cell.count).swapaxes(-1, -2)
        start += size


def skip(sequence: Sequence, count: int) -> None:
    """Let a sequence hold ``count`` more tokens that were never computed: it sees what happens to be in its blocks."""
    for start in range(0, count, 256):
        sequence.grow(min(256, count - start))
        sequence.drop_unseen()


def digest(decoder: Decoder, cache: KvCache) -> str:
    """SHA-256 of logits: of a prompt's rows together, of one more, and of few and several late in a sequence."""
    state, sequence = hashlib.sha256(), cache.new_sequence()
    fill_at_random(cache)
    token_ids = Stream(3, "tokens").integers(PROMPT + 1, decoder.spec.vocab_size)
    state.update(decoder.forward([Part(sequence, token_ids[:PROMPT], "all")]).tobytes())
    state.update(decoder.forward([Part(sequence, token_ids[PROMPT:])]).tobytes())
    sequence.release()
    for past, count in LATE:
        skip(sequence, past)
        state.update(decoder.forward([Part(sequence, token_ids[:count], "all")]).tobytes())
        sequence.release()
    sinks = cache.new_sequence(retention=RetentionSpec("sinks", 40, 20))
    for held, count in ((sequence, 290), (sinks, 270)):
        skip(held, count)
    parts = [Part(sequence, token_ids[:1]), Part(sequence.fork(), token_ids[1:2]), Part(sinks, token_ids[2:3])]
    state.update(decoder.forward(parts).tobytes())
    return state.hexdigest()


def digest_of(name: str, folder: Path) -> str:
    """The digest of a case, or of the real model."""
    if name == REAL:
        checkpoint = open_checkpoint(name)
        decoder = load_decoder(checkpoint, threads=2)
        cache = KvCache(decoder.spec, CacheSpec(), num_tokens=600, num_sequences=2)
    else:
        case = CASES[name]
        decoder = case.load(case.write(folder))
        cache = case.new_cache(decoder, 2)
    try:
        return digest(decoder, cache)
    finally:
        decoder.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: digest_of(name, Path(sys.argv[1])) for name in sys.argv[2:]}))
