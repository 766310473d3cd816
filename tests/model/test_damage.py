"""What a pass refuses: damaged weights, unknown tokens, more than the cache holds. Sequences stay as they were."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from proof.cases import CASES
from safetensors.numpy import save_file
from tiny.tensors import tensors

from kvist.cache.kv_cache import KvCache
from kvist.checkpoint.catalog import open_checkpoint
from kvist.errors import CapacityError, NumericsError, RequestError
from kvist.model.decoder import Decoder, Part, load_decoder
from kvist.spec.cache import CacheSpec

PLAIN, LAYER_NORM = CASES["f32"], CASES["learned"]
GOOD, BAD = [2, 5, 7, 11, 2], 3
"""Tokens whose embedding is whole, and one whose is not (where the embedding is what is damaged)."""


def decoder_of(case_name: str, name: str, number: float, path: Path) -> Decoder:
    """A decoder of a model of which one weight of tensor ``name`` is ``number``."""
    model = CASES[case_name].model
    named = tensors(model)
    named[name][(BAD,) * named[name].ndim] = number
    (path / "config.json").write_text(json.dumps(dict(model.config)))
    save_file(named, path / "model.safetensors")
    checkpoint = open_checkpoint(path)
    decoder = load_decoder(checkpoint, threads=2)
    checkpoint.close()
    return decoder


def cache_of(decoder: Decoder, num_sequences: int = 2) -> KvCache:
    return KvCache(decoder.spec, CacheSpec("f32"), num_tokens=64, num_sequences=num_sequences)


EVERYWHERE = [(case.name, name) for case in (PLAIN, LAYER_NORM) for name in tensors(case.model)]


@pytest.mark.parametrize("number", [np.nan, -np.inf])
@pytest.mark.parametrize(("case_name", "name"), EVERYWHERE)
def test_a_damaged_weight_is_an_error(case_name: str, name: str, number: float, tmp_path: Path) -> None:
    decoder = decoder_of(case_name, name, number, tmp_path)
    cache = cache_of(decoder)
    for token_ids in ([*GOOD, BAD], [BAD] * 4 + GOOD * 6):
        sequence = cache.new_sequence()
        with pytest.raises(NumericsError) as error:
            decoder.forward([Part(sequence, token_ids)])
        assert "\n" not in str(error.value)
        assert "damaged" in str(error.value)
        if kept := re.search(r"\.(\d+)\.(self_attn\.[kv]_proj|attn\.c_attn)", name):  # what makes keys and values
            assert re.search(rf"in layer {kept[1]}, for the token at position \d+;", str(error.value))
        sequence.release()
        cache.check()
    decoder.close()


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Decoder]:
    decoder = decoder_of("window", "model.embed_tokens.weight", np.nan, tmp_path)  # whose output matrix is another
    yield decoder
    decoder.close()


def test_the_sequences_are_as_before(damaged: Decoder) -> None:
    """A pass with the damaged row in it fails; others, before and after, give what they give without it."""
    logits = []
    for fails in (False, True):
        cache = cache_of(damaged)
        one, other = cache.new_sequence(), cache.new_sequence()
        found = [damaged.forward([Part(one, GOOD, "all"), Part(other, GOOD[:2])])]
        if fails:
            before = damaged.num_forward_tokens
            for parts in (
                [Part(one, [BAD])],
                [Part(one, GOOD * 4), Part(other, [*GOOD, BAD])],
                [Part(other, [BAD] * 9)],
            ):
                with pytest.raises(
                    NumericsError,
                    match=r"NaN or infinity came up in layer 0, for the token at position \d+; the weights are damaged",
                ):
                    damaged.forward(parts)
                assert (one.num_tokens, other.num_tokens) == (5, 2)
                one.check()
                other.check()
                cache.check()
            assert damaged.num_forward_tokens == before
        found.append(damaged.forward([Part(other, GOOD[2:], "all"), Part(one, GOOD * 3, "all")]))
        logits.append(np.concatenate(found).tobytes())
    assert logits[0] == logits[1]


def test_a_damaged_scale_of_packed_weights(tmp_path: Path) -> None:
    case = CASES["q4_1"]
    path = case.write(tmp_path)
    checkpoint = open_checkpoint(path)
    raw = checkpoint.raw("blk.1.ffn_down.weight").tobytes()
    checkpoint.close()
    whole = path.read_bytes()
    assert whole.count(raw) == 1
    path.write_bytes(whole.replace(raw, b"\x00\x7e" + raw[2:]))  # the first scale is NaN
    decoder = case.load(path)
    with pytest.raises(NumericsError, match="NaN or infinity"):
        decoder.forward([Part(case.new_cache(decoder).new_sequence(), GOOD)])
    decoder.close()


@pytest.fixture(scope="module")
def decoder(tmp_path_factory) -> Iterator[Decoder]:
    decoder = PLAIN.load(PLAIN.write(tmp_path_factory.mktemp("plain")))
    yield decoder
    decoder.close()


@pytest.mark.parametrize("wrong", [-1, 67, 1 << 40])
def test_a_token_outside_the_vocabulary(decoder: Decoder, wrong: int) -> None:
    cache = cache_of(decoder)
    one, other = cache.new_sequence(), cache.new_sequence()
    with pytest.raises(RequestError, match=f"token id {wrong} isn't in the vocabulary; ids are 0 to 66"):
        decoder.forward([Part(one, GOOD), Part(other, [1, wrong, 2])])
    assert one.num_tokens == other.num_tokens == 0
    assert one.allocated_bytes == other.allocated_bytes == 0
    cache.check()


def test_more_than_the_cache_holds(decoder: Decoder) -> None:
    cache = cache_of(decoder)
    sequences = [cache.new_sequence() for _ in range(3)]
    decoder.forward([Part(sequence, GOOD * 8, "none") for sequence in sequences[:2]])
    held = [sequence.allocated_bytes for sequence in sequences]
    with pytest.raises(CapacityError, match="2 free blocks of 16 tokens and 3 are needed"):
        decoder.forward([Part(sequences[0], GOOD, "none"), Part(sequences[2], GOOD * 8)])
    assert [sequence.num_tokens for sequence in sequences] == [40, 40, 0]
    assert [sequence.allocated_bytes for sequence in sequences] == held
    sequences[1].release()
    decoder.forward([Part(sequences[0], GOOD, "none"), Part(sequences[2], GOOD * 8)])
    cache.check()
