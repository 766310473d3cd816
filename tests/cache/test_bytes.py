"""Bytes: what the formula predicts, what is allocated, and what the process then takes, are one number."""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cache.caches import attention_layer, model_of
from tiny.models import tiny_models

from kvist.cache import store
from kvist.cache.kv_cache import KvCache
from kvist.errors import CapacityError, SpecError
from kvist.spec.cache import (
    BLOCK_TOKENS,
    CacheSpec,
    allocated_bytes,
    bytes_per_token,
    layer_groups,
    logical_bytes,
    pool_bytes,
)
from kvist.spec.config import model_spec_from_config
from kvist.spec.model import ModelSpec

SPECS = [
    CacheSpec("f32"),
    CacheSpec("bf16"),
    CacheSpec(k="f32", v="bf16"),
    CacheSpec("int8"),
    CacheSpec("int4"),
    CacheSpec(k="int4", v="int8", keep_layers=(0, -1)),
]
SMOLLM2 = ModelSpec("llama", 49152, 576, 1536, 8192, (attention_layer(None, kv_heads=3, share=3, dim=64),) * 30)
MODELS = {
    **{model.name: model_spec_from_config(dict(model.config)) for model in tiny_models()},
    "smollm2": SMOLLM2,
    "half windows": model_of([attention_layer(window) for window in (None, 48, None, 48, 7)]),
    "other heads": model_of([attention_layer(None, kv_heads=2, dim=80), attention_layer(33, kv_heads=3, dim=32)]),
}
KEYS = {
    "f32": lambda dim: 4 * dim,
    "bf16": lambda dim: 2 * dim,
    "int8": lambda dim: dim + 2,
    "int4": lambda dim: dim // 2 + 4 * ((dim + 31) // 32) + 2,
}
VALUES = {**KEYS, "int4": lambda dim: dim // 2 + 2}
"""Bytes of a head, counted here."""


def lengths(model: ModelSpec) -> list[int]:
    """Around block edges, and around each window's."""
    edges = {0, 16, 32, 160} | {layer.window for layer in model.layers if layer.window}
    edges |= {edge + 16 for edge in edges} | {-(-edge // 16) * 16 for edge in edges}
    return sorted({length for edge in edges for length in (edge - 1, edge, edge + 1) if length >= 0})


def kept(spec: CacheSpec, number: int, num_layers: int) -> tuple[str, str]:
    """The codecs of a layer's keys and values."""
    is_kept = number in spec.keep_layers or number - num_layers in spec.keep_layers
    k, v = ("bf16" if is_kept and codec.startswith("int") else codec for codec in (spec.k_codec, spec.v_codec))
    return k, v


def token_bytes(model: ModelSpec, spec: CacheSpec) -> list[int]:
    """Each layer's bytes a token."""
    codecs = [kept(spec, number, len(model.layers)) for number in range(len(model.layers))]
    return [
        layer.num_kv_heads * (KEYS[k](layer.k_dim) + VALUES[v](layer.v_dim))
        for layer, (k, v) in zip(model.layers, codecs, strict=True)
    ]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.k_codec}-{spec.v_codec}")
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_predicted_bytes_are_those_allocated(model: ModelSpec, spec: CacheSpec) -> None:
    per_token = token_bytes(model, spec)
    assert bytes_per_token(model, spec) == sum(per_token)
    longest = max(lengths(model))
    cache = KvCache(model, spec, num_tokens=longest, step_tokens=32)
    for length in lengths(model):
        sequence = cache.new_sequence()
        for start in range(0, length, 32):
            sequence.grow(min(32, length - start))
            sequence.drop_unseen()
        seen = [min(length, (layer.window or length + 1) - 1) for layer in model.layers]
        logical = sum(count * size for count, size in zip(seen, per_token, strict=True))
        assert logical == logical_bytes(model, spec, length) == sequence.logical_bytes
        held = [-(-length // 16) - min((length - count) // 16, -(-length // 16)) for count in seen]
        allocated = sum(16 * count * size for count, size in zip(held, per_token, strict=True))
        assert allocated == allocated_bytes(model, spec, length) == sequence.allocated_bytes
        sequence.release()
        assert KvCache(model, spec, num_tokens=max(1, length), step_tokens=32).store.arena.nbytes == pool_bytes(
            model, spec, max(1, length), 32
        )
    cache.check()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.k_codec}-{spec.v_codec}")
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_byte_belongs_to_one_head_of_one_block(model: ModelSpec, spec: CacheSpec) -> None:
    cache = KvCache(model, spec, num_tokens=70, num_sequences=2, step_tokens=32)
    assert cache.pool_bytes == 2 * pool_bytes(model, spec, 70, 32)
    owners = np.zeros(cache.store.arena.size, np.uint8)
    for group, pool in zip(layer_groups(model, spec), cache.pools, strict=True):
        for number in group.layers:
            k_codec, v_codec = kept(spec, number, len(model.layers))
            sizes = BLOCK_TOKENS * KEYS[k_codec](group.layer.k_dim), BLOCK_TOKENS * VALUES[v_codec](group.layer.v_dim)
            place = cache.store.places[number]
            for block in range(pool.num_blocks):
                for head in range(group.layer.num_kv_heads):
                    k = place.k + head * place.k_head + block * place.k_block
                    v = place.v + head * place.v_head + block * place.v_block
                    owners[k : k + sizes[0]] += 1
                    owners[v : v + sizes[1]] += 1
    assert (owners == 1).all()


PROGRAM = """
import ctypes, json, os, sys
from pathlib import Path
if sys.argv[1] == "small pages":
    assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0  # PR_SET_THP_DISABLE
from kvist.cache.kv_cache import KvCache
from kvist.spec.cache import CacheSpec
from kvist.spec.model import LayerSpec, ModelSpec

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

layers = (LayerSpec("full", 9, 3, 64, 64),) * 24 + (LayerSpec("window", 9, 3, 64, 64, 512),) * 6
model = ModelSpec("llama", 49152, 576, 1536, 8192, layers)
KvCache(model, CacheSpec(), num_tokens=16)
before = resident()
cache = KvCache(model, CacheSpec(), num_tokens=5600)
print(json.dumps([resident() - before, cache.pool_bytes]))
"""


@pytest.mark.parametrize("pages", ["small pages", "huge pages where there are any"])
def test_the_process_grows_by_what_is_said(pages: str) -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM, pages], capture_output=True, text=True, check=True)
    grown, said = json.loads(run.stdout)
    assert said > 90 << 20
    assert abs(grown - said) <= 0.02 * said, (grown, said)


@pytest.fixture
def no_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("memory was asked for")

    monkeypatch.setattr(store.mmap, "mmap", refuse)


def test_more_than_the_free_memory_is_refused_before_anything_is_taken(
    monkeypatch: pytest.MonkeyPatch, no_mapping: None
) -> None:
    needed = pool_bytes(SMOLLM2, CacheSpec(), 8192, 256)
    monkeypatch.setattr(store, "available_memory", lambda: needed - 1)
    with pytest.raises(
        CapacityError, match=r"needs 180.00 MiB and 180.00 MiB of memory are free; lower context or kv_budget"
    ) as error:
        KvCache(SMOLLM2, CacheSpec(), num_tokens=8192)
    assert "\n" not in str(error.value)


def test_more_than_this_machine_has_is_refused(no_mapping: None) -> None:
    with pytest.raises(CapacityError, match="free"):
        KvCache(SMOLLM2, CacheSpec(), num_tokens=1 << 40)


@pytest.mark.parametrize("num_tokens", [1 << 40, 1 << 60])
def test_where_the_system_does_not_say_it_may_still_refuse(num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "available_memory", lambda: None)
    with pytest.raises(CapacityError, match=r"the system gives no .* for the cache") as error:
        KvCache(SMOLLM2, CacheSpec(), num_tokens=num_tokens)
    assert "\n" not in str(error.value)


def flags_of(address: int) -> list[str]:
    """What Linux says of the mapping that an address lies in."""
    is_there = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_there = int(found[1], 16) <= address < int(found[2], 16)
        elif is_there and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages to be had")
def test_huge_pages_are_asked_for_where_they_are_given() -> None:
    """Linux gives none to shared memory, unless it is told to, however it is asked."""
    arena = KvCache(SMOLLM2, CacheSpec(), num_tokens=1000).store.arena
    flags = flags_of(arena.ctypes.data + arena.nbytes // 2)
    assert "hg" in flags
    assert "sh" not in flags


def test_a_system_without_huge_pages_serves_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(22, os.strerror(22))

    monkeypatch.setattr(store.mmap, "mmap", Small)
    assert KvCache(SMOLLM2, CacheSpec(), num_tokens=100).store.arena.nbytes == pool_bytes(
        SMOLLM2, CacheSpec(), 100, 256
    )


def test_what_a_cache_cannot_be() -> None:
    with pytest.raises(CapacityError, match=r"at least one block, 360\.00 KiB; raise kv_budget"):
        KvCache(SMOLLM2, CacheSpec(), num_tokens=0)
    with pytest.raises(SpecError, match='unknown codec "int3" for v'):
        KvCache(SMOLLM2, CacheSpec(v="int3"), num_tokens=16)
    for wrong in (("a",), 5, (1.5,), "01"):
        with pytest.raises(SpecError, match=r"keep_layers takes layer numbers, such as \(0, 1, -1\), got ") as refused:
            CacheSpec("int8", keep_layers=wrong)  # type: ignore[arg-type]
        assert "\n" not in str(refused.value)
    assert CacheSpec("int8", keep_layers=[np.int64(0), -1]).keep_layers == (0, -1)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="takes a RetentionSpec, got 'window:5'; parse_retention makes one"):
        CacheSpec("int4", retention="window:5")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"no layer -31 to keep in bf16.*change keep_layers"):
        KvCache(SMOLLM2, CacheSpec("int8", keep_layers=(0, -31)), num_tokens=16)
