"""The benchmark's bytes and operations, recomputed from the ModelSpec and the list of tensors."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tiny.models import FAMILIES, tiny_model
from tiny.tensors import tensor_shapes, write_directory

from kvist.checkpoint.catalog import open_checkpoint
from kvist.lab.traffic import has_integer_dots, kv_bytes, prefill_operations, weight_bytes
from kvist.model.decoder import load_decoder
from kvist.spec.cache import CacheSpec
from kvist.spec.config import model_spec_from_config
from kvist.spec.model import ModelSpec

CODEC_BYTES = {"f32": 4, "bf16": 2}


def layer_weights(model: ModelSpec, num_mlp_matrices: int) -> int:
    """Weights of all layers' matrices."""
    attention = sum(
        model.width * layer.k_dim * (2 * layer.num_heads + 2 * layer.num_kv_heads) for layer in model.layers
    )
    return attention + model.num_layers * num_mlp_matrices * model.width * model.mlp_width


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_and_operations_follow_from_the_model_spec(family: str, number: int, tmp_path: Path) -> None:
    tiny = tiny_model(family, number)
    with_positions = family == "gpt2"
    with_gate = family != "gpt2"
    with closing(open_checkpoint(write_directory(tiny, tmp_path / "model"))) as checkpoint:
        decoder = load_decoder(checkpoint, threads=1)
    model, output = decoder.spec, decoder.spec.vocab_size * decoder.spec.width
    body = layer_weights(model, 3 if with_gate else 2)
    vectors = sum(shape[0] for shape in tensor_shapes(tiny.config).values() if len(shape) == 1)
    rows = model.width * (2 if with_positions else 1)
    assert weight_bytes(decoder) == 4 * (body + output + vectors + rows)
    assert prefill_operations(decoder, 37) == 2 * (37 * body + output)
    assert not has_integer_dots(decoder)
    decoder.close()


@pytest.mark.parametrize("codec", ["f32", "bf16"])
@pytest.mark.parametrize("num_tokens", [1, 16, 33, 200])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_reads_the_tokens_it_sees(family: str, num_tokens: int, codec: str) -> None:
    model = model_spec_from_config(tiny_model(family, 2).config)
    seen = sum(
        min(num_tokens, layer.window or num_tokens) * layer.num_kv_heads * (layer.k_dim + layer.v_dim)
        for layer in model.layers
    )
    assert kv_bytes(model, CacheSpec(codec), num_tokens) == CODEC_BYTES[codec] * seen


def test_the_real_model_is_read_once_as_it_stands_in_its_file() -> None:
    with closing(open_checkpoint("smollm2-135m")) as checkpoint:
        decoder = load_decoder(checkpoint, threads=1)
        in_file = sum(tensor.num_bytes for tensor in checkpoint.tensors.values())
        table = checkpoint.tensors["token_embd.weight"]
    assert weight_bytes(decoder) == in_file + table.num_bytes // table.shape[0]
    assert has_integer_dots(decoder)
    assert kv_bytes(decoder.spec, CacheSpec("bf16"), 100) == 100 * 23_040
    decoder.close()
