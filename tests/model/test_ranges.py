"""A program that would reach beyond an arena is caught when it is written, whichever number of it is wrong."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tiny.deepseek import deepseek_model
from tiny.dense import DENSE, dense_model
from tiny.experts import EXPERT_FAMILIES, expert_model
from tiny.models import FAMILIES, TinyModel, tiny_model
from tiny.tensors import write_directory

from kvist.cache.kv_cache import KvCache
from kvist.checkpoint.catalog import open_checkpoint
from kvist.kernels import blocks, elementwise
from kvist.kernels.layout import FIRST_FIELD, KERNEL
from kvist.model import ranges
from kvist.model.decoder import Decoder, load_decoder
from kvist.model.program import Kernels, Program
from kvist.model.writer import Writer
from kvist.spec.cache import CacheSpec

PLACES = {
    "embedding_kernel": ("w", "out", "scale"),
    "rotary_kernel": ("frequencies", "factor", "out", "sink_out"),
    "norm_kernel": ("x", "weight", "eps", "out"),
    "matmul_kernel": ("w", "x", "out"),
    "gated_kernel": ("w", "x", "out"),
    "append_kernel": ("q", "sink_q", "k", "v", "qkv", "scale", "eps"),
    "attention_kernel": ("q", "sink_q", "k", "v", "out", "parts"),
    "finish_kernel": ("out", "parts"),
    "tally_kernel": ("q", "k", "v"),
    "activation_kernel": ("gate", "out"),
    "residual_kernel": ("x", "branch", "weight", "eps", "scale"),
    "parts_kernel": ("x", "weight", "eps"),
    "cap_kernel": ("x", "cap"),
    "peaks_kernel": ("x", "out"),
    "route_kernel": ("logits", "scale", "picks", "gains"),
    "sort_kernel": ("picks", "places", "pairs", "active"),
    "spread_kernel": ("x", "places", "out"),
    "expert_matmul_kernel": ("w", "x", "out", "active"),
    "expert_activation_kernel": ("gate", "up", "out", "pairs"),
    "combine_kernel": ("x", "places", "gains", "y"),
    "latent_append_kernel": ("q", "sink_q", "k", "queries", "latents", "angles", "sink_angles", "norm", "scale", "eps"),
    "latent_attention_kernel": ("q", "sink_q", "k", "out", "parts"),
    "heads_kernel": ("w", "x", "out"),
    "rows_kernel": ("x", "out"),
}
SIZES = {
    "rotary_kernel": ("count", "out_stride"),
    "norm_kernel": ("stride", "width"),
    "matmul_kernel": ("panels", "width", "x_stride", "out_stride"),
    "gated_kernel": ("panels", "width", "x_stride", "out_stride"),
    "append_kernel": ("q_head", "k_head", "k_block", "v_head", "v_block", "qkv_stride", "kv_heads"),
    "attention_kernel": ("q_head", "k_head", "k_block", "v_head", "v_block", "out_stride", "kv_heads"),
    "finish_kernel": ("out_stride", "heads"),
    "tally_kernel": ("q_head", "k_head", "k_block", "v_head", "v_block", "kv_heads"),
    "activation_kernel": ("stride", "width"),
    "residual_kernel": ("stride", "branch_stride", "width"),
    "parts_kernel": ("parts", "width"),
    "cap_kernel": ("width",),
    "peaks_kernel": ("segments", "stride"),
    "route_kernel": ("stride", "experts", "chosen"),
    "sort_kernel": ("experts", "chosen"),
    "spread_kernel": ("stride", "row_bytes", "chosen"),
    "expert_matmul_kernel": ("w_stride", "panels", "width", "x_stride", "out_stride", "experts", "chosen"),
    "expert_activation_kernel": ("stride", "width", "out_stride", "chosen"),
    "combine_kernel": ("stride", "width", "chosen", "y_stride"),
    "latent_append_kernel": ("q_head", "k_block", "queries_stride", "latents_stride", "kv_heads"),
    "latent_attention_kernel": ("q_head", "k_block", "out_stride", "kv_heads"),
    "heads_kernel": ("panels", "width", "x_head", "x_stride", "out_stride", "heads"),
    "rows_kernel": ("stride", "width", "out_stride"),
}
OPTIONAL = {
    "embedding_kernel": ("positions",),
    "norm_kernel": ("bias",),
    "matmul_kernel": ("bias",),
    "append_kernel": ("q_norm", "k_norm"),
    "attention_kernel": ("quantised", "cap", "nothing"),
    "tally_kernel": ("cap",),
    "finish_kernel": ("quantised", "nothing"),
    "activation_kernel": ("up",),
    "expert_matmul_kernel": ("bias",),
    "combine_kernel": ("shared", "gate"),
}


def loaded(family: str, number: int, directory: Path, weights: str | None = None) -> Decoder:
    make = dense_model if family in DENSE else expert_model if family in EXPERT_FAMILIES else tiny_model
    model = make(family, number)
    write_directory(model, directory)
    return load_decoder(open_checkpoint(directory), weights=weights, threads=2)


def writer_of(decoder: Decoder, cache: KvCache) -> Writer:
    return Writer(
        decoder.spec,
        decoder.decoder_spec,
        decoder.weights,
        cache,
        Kernels(),
        max_rows=256,
        num_threads=2,
        has_tallies=True,
    )


def cache_of(decoder: Decoder) -> KvCache:
    return KvCache(decoder.spec, CacheSpec(k="f32", v="bf16"), num_tokens=600)


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> list[Writer]:
    """Of the families between which every kernel and every optional place occurs, with 8-bit weights too."""
    made = []
    found = (("qwen3", 2, "f32"), ("gpt2", 2, "f32"), ("qwen2", 2, "q8"), ("qwen2", 8, "q8"))  # of several KV heads
    for family, number, weights in (
        *found,
        ("gemma2", 0, "f32"),
        ("olmo2", 0, "f32"),
        ("gpt_oss", 2, "q8"),
        ("qwen2_moe", 2, "f32"),
    ):
        decoder = loaded(family, number, tmp_path_factory.mktemp(family), weights)
        made.append(writer_of(decoder, cache_of(decoder)))
    made += [latent_writer(tmp_path_factory.mktemp("deepseek"), weights) for weights in ("f32", "q8")]
    return made


def latent_writer(directory: Path, weights: str) -> Writer:
    """Of a model with latents that more heads share than attention takes together."""
    model = deepseek_model("deepseek_v2", 0)
    config = {**model.config, "num_attention_heads": 20, "num_key_value_heads": 20, "hidden_size": 320}
    write_directory(TinyModel("deepseek_v2-heads", config, 1), directory)
    decoder = load_decoder(open_checkpoint(directory), weights=weights, threads=2)
    return writer_of(decoder, cache_of(decoder))


def lines(program: Program, writer: Writer) -> Iterator[tuple[int, str]]:
    for number, kernel in enumerate(program.table[:, KERNEL].tolist()):
        yield number, writer.kernels.keys[kernel][0].__name__


def wrong(writer: Writer, column_names: dict[str, tuple[str, ...]], number: int) -> Iterator[tuple[str, str]]:
    """Each kernel's columns that may be set to ``number`` in its last line without the check noticing."""
    columns = {make.__name__: columns for make, (columns, _) in ranges.EXTENTS.items()}
    for is_few in (True, False):
        for line, name in lines(writer.write(is_few=is_few, has_tallies=True), writer):
            for column in column_names.get(name, ()):
                program = writer.write(is_few=is_few, has_tallies=True)
                at = getattr(columns[name], column)
                if column_names is OPTIONAL and program.table[line, at] < 0:
                    continue
                if is_unread(program, line, writer, column):
                    continue
                program.table[line, at] = number
                try:
                    ranges.check(program, writer.kernels.keys, writer.limits)
                except AssertionError:
                    continue
                yield name, column


def is_unread(program: Program, line: int, writer: Writer, column: str) -> bool:
    """Whether no number there can lead anywhere: steps between heads where there is one, weights of no norm."""
    make, constants = writer.kernels.keys[program.table[line, KERNEL]]
    if make is elementwise.norm_kernel and column == "weight":
        return constants[0] == elementwise.NONE
    columns, _ = ranges.EXTENTS[make]
    return column in ("q_head", "k_head", "v_head") and program.table[line, columns.kv_heads] == 1


@pytest.mark.parametrize("family", [*FAMILIES, *DENSE, *EXPERT_FAMILIES])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_family_stays_inside(family: str, number: int, tmp_path: Path) -> None:
    decoder = loaded(family, number, tmp_path)
    writer = writer_of(decoder, cache_of(decoder))
    for is_few in (True, False):
        ranges.check(writer.write(is_few=is_few, has_tallies=True), writer.kernels.keys, writer.limits)


@pytest.mark.parametrize("columns", [PLACES, SIZES, OPTIONAL])
def test_too_large_a_number_is_caught(writers: list[Writer], columns: dict[str, tuple[str, ...]]) -> None:
    assert [found for writer in writers for found in wrong(writer, columns, 1 << 40)] == []


def test_a_place_before_the_arena_is_caught(writers: list[Writer]) -> None:
    assert [found for writer in writers for found in wrong(writer, PLACES, -64)] == []


@pytest.mark.parametrize("field", ["weights_bytes", "cache_bytes", "work_bytes", "scratch_bytes"])
def test_every_arena_is_taken_to_its_end(writers: list[Writer], field: str) -> None:
    """The check is tight: an arena that is a page smaller is too small."""
    for writer in writers:
        limits = replace(writer.limits, **{field: getattr(writer.limits, field) - 4096})
        with pytest.raises(AssertionError, match="kernel"):
            ranges.check(writer.write(is_few=False, has_tallies=True), writer.kernels.keys, limits)


def test_every_kernel_and_place_occurs(writers: list[Writer]) -> None:
    found, optional = set(), set()
    columns = {make.__name__: columns for make, (columns, _) in ranges.EXTENTS.items()}
    for writer, is_few in itertools.product(writers, (True, False)):
        program = writer.write(is_few=is_few, has_tallies=True)
        for line, name in lines(program, writer):
            found.add(name)
            optional |= {
                (name, column)
                for column in OPTIONAL.get(name, ())
                if program.table[line, getattr(columns[name], column)] >= 0
            }
    assert found == set(columns) == set(PLACES)
    assert optional == {(name, column) for name, names in OPTIONAL.items() for column in names}
    assert all(min(fields) == FIRST_FIELD for fields in columns.values())


@pytest.mark.parametrize("turned", [-2, 3, 1 << 10])
def test_more_dims_than_a_head_has_are_not_turned(writers: list[Writer], turned: int) -> None:
    """The kernel would rotate what lies behind the head, wide as its row of angles may be."""
    program = writers[0].write(is_few=True, has_tallies=False)
    line = next(line for line, name in lines(program, writers[0]) if name == "append_kernel")
    at = blocks.AP
    program.table[line, at.turned] = turned
    program.table[line, at.angles_stride] = 1 << 12
    with pytest.raises(AssertionError, match=rf"\({turned}, \d+\)"):
        ranges.check(program, writers[0].kernels.keys, writers[0].limits)


def test_a_decoder_keeps_no_cache_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernels, "compile", lambda _: None)
    decoder = loaded("llama", 0, tmp_path)
    cache = cache_of(decoder)
    decoder.prepare(cache)
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None
