"""Digests of a case's logits, here or in another process: ``python -m proof.digests FOLDER NAME...`` prints JSON.

``smollm2-135m`` is the real model. A digest covers rows computed together, alone, and over keys and values at random.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from tiny.stream import Stream

from kvist.cache.kv_cache import KvCache
from kvist.cache.sequence import Sequence
from kvist.checkpoint.catalog import open_checkpoint
from kvist.model.decoder import Decoder, Part, load_decoder
from kvist.spec.cache import CacheSpec
from proof.cases import CASES

REAL = "smollm2-135m"
PROMPT = 11
LATE = ((254, 4), (250, 9), (511, 1))
"""(position, rows) from which rows are computed over a past that was never: around the edges of attention's spans."""


def fill_at_random(cache: KvCache) -> None:
    """Make every number that is kept a normal one, whatever the layout."""
    arena = cache.store.arena
    if cache.spec.k_codec == "f32":
        arena.view(np.float32)[:] = Stream(5, "past").normal((arena.size // 4,))
    else:
        wide = Stream(5, "past").normal((arena.size // 2,)).view(np.uint32) >> np.uint32(16)
        arena.view(np.uint16)[:] = wide.astype(np.uint16)


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
    return state.hexdigest()


def digest_of(name: str, folder: Path) -> str:
    """The digest of a case, or of the real model."""
    if name == REAL:
        checkpoint = open_checkpoint(name)
        decoder = load_decoder(checkpoint, threads=2)
        cache = KvCache(decoder.spec, CacheSpec(), num_tokens=600)
    else:
        case = CASES[name]
        decoder = case.load(case.write(folder))
        cache = case.new_cache(decoder)
    try:
        return digest(decoder, cache)
    finally:
        decoder.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: digest_of(name, Path(sys.argv[1])) for name in sys.argv[2:]}))
