"""Many requests (``proof.many``) on compiled tiny models, on two threads and on one."""

from __future__ import annotations

from pathlib import Path

from kvist.cache.kv_cache import KvCache
from kvist.spec.retention import RetentionSpec, parse_retention
from proof.cases import Case
from proof.many import Stage

LONGEST = 300
"""More than a span of attention."""

KEPT = [parse_retention(text) for text in ("window:40", "sinks:4+60", "h2o:64", "snapkv:64")]
"""What requests ask to keep, where they don't leave it to the cache; the last two not of models with windows."""


def compiled_stage(case: Case, path: Path) -> Stage:
    """A tiny model on two threads, and on one; every byte of a new cache says NaN."""
    file = case.write(path)
    decoders = [case.load(file, threads) for threads in (2, 1)]

    def new_cache(num_sequences: int, step_tokens: int) -> KvCache:
        cache = KvCache(
            decoders[0].spec,
            case.cache,
            num_tokens=LONGEST,
            num_sequences=num_sequences,
            step_tokens=step_tokens,
        )
        cache.store.arena[:] = 0xFF
        return cache

    spec = decoders[0].spec
    has_windows = any(layer.window is not None for layer in spec.layers)
    retentions: list[RetentionSpec | None] = [None, None, None, *(KEPT[:2] if has_windows else KEPT)]
    more = {"has_learned_positions": case.config["model_type"] == "gpt2"}
    return Stage(case.name, decoders, new_cache, LONGEST, spec.vocab_size, more, retentions)
