"""What blocks are called by: the same for the same model, another for any that gives other keys and values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from proof.cases import CASES, Case

from kvist.cache.kv_cache import KvCache
from kvist.model.identity import SAMPLE_EVERY, model_identity
from kvist.spec.cache import CacheSpec
from kvist.spec.retention import ALL, RetentionSpec, parse_retention


def identity(case: Case, path: Path, threads: int = 1) -> bytes:
    path.mkdir(exist_ok=True)
    decoder = case.load(case.write(path), threads)
    decoder.close()
    return decoder.identity


def test_models_of_other_weights_and_settings_have_another(tmp_path: Path) -> None:
    case = CASES["q4_1"]
    first = identity(case, tmp_path / "first")
    assert identity(case, tmp_path / "again", threads=2) == first
    others = (
        replace(case, seed=78),
        replace(case, config={**case.config, "rope_theta": 20000.0}),
        replace(case, config={**case.config, "rms_norm_eps": 1e-6}),
        replace(case, weights="q8"),
        replace(case, form="q4_0"),
    )
    found = {identity(other, tmp_path / str(number)) for number, other in enumerate(others)}
    assert len(found | {first}) == 1 + len(others)


def test_every_stretch_of_the_weights_is_looked_at() -> None:
    arena = np.zeros(5 * SAMPLE_EVERY + 100, np.uint8)
    seen = {model_identity(("any",), arena), model_identity(("other",), arena)}
    for at in (0, SAMPLE_EVERY, 4 * SAMPLE_EVERY + 3, arena.size - 1):
        arena[at] += 1
        seen.add(model_identity(("any",), arena))
    assert len(seen) == 6


def test_the_same_prompt_under_two_codecs_retentions_or_models_has_no_block_in_common(tmp_path: Path) -> None:
    """No name of any block of it: so neither is ever found in the place of the other, in a cache or out of it."""
    case, prompt = CASES["q4_1"], list(range(60))
    decoder = case.load(case.write(tmp_path))
    decoder.close()
    pairs = [(k, v) for k in ("f32", "bf16", "int8", "int4") for v in ("f32", "bf16", "int8", "int4")]
    specs = [CacheSpec(k=k, v=v) for k, v in pairs] + [CacheSpec("int8", keep_layers=(0,))]
    kept: list[RetentionSpec] = [ALL, *map(parse_retention, ("window:30", "window:31", "sinks:4+30", "sinks:5+30"))]
    names: list[bytes] = []
    for spec in specs:
        for model in (decoder.identity, b"another"):
            cache = KvCache(decoder.spec, spec, num_tokens=64, identity=model)
            for retention in kept:
                names += cache.chain(prompt, retention=retention).hashes
    assert len(set(names)) == len(names) == len(specs) * 2 * len(kept) * 3
