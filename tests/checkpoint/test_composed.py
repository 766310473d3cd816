"""Matrices kept in several tensors: packed here as their formats are described, decoded by kvist, compared number for
number; and what is missing, misshapen or packed in another way is one line.

The packers below follow the published layouts (see ``kvist.checkpoint.packed_words`` and ``small_floats``);
``tests/test_weights_gptq.py``, ``tests/oracles_gptq`` and ``tests/oracles/test_quantised.py`` hold the readers to the
reference libraries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.stream import Stream

from kvist.checkpoint.files import check_supported
from kvist.checkpoint.safetensors import HuggingFaceDirectory
from kvist.checkpoint.small_floats import e4m3
from kvist.errors import CheckpointError, UnsupportedError
from kvist.model import kept
from kvist.model.weights import Packer

Array = np.ndarray[Any, Any]
OUT, IN, GROUP = 48, 256, 64
NAME = "model.layers.0.mlp.up_proj"


def words(numbers: Array, bits: int) -> Array:
    """Unsigned numbers [..., n] as words of 32 / bits of them, the first in the lowest bits."""
    count = 32 // bits
    parts = (
        numbers.astype(np.uint32).reshape(*numbers.shape[:-1], -1, count) << np.arange(count, dtype=np.uint32) * bits
    )
    return np.bitwise_or.reduce(parts, axis=-1).view(np.int32)


def random(key: str, shape: tuple[int, ...], below: int) -> Array:
    return (Stream(1, key).raw(int(np.prod(shape))) % np.uint64(below)).astype(np.int64).reshape(shape)


def halves(key: str, shape: tuple[int, ...]) -> Array:
    return (np.abs(Stream(1, key).normal(shape)) * 0.01 + 0.001).astype(np.float16)


def write(
    path: Path, tensors: dict[str, Array], settings: object, *, fp8: tuple[str, ...] = (), stem: str = f"{NAME}."
) -> HuggingFaceDirectory:
    """A directory with these tensors; the bytes of those in ``fp8`` are 8-bit floats, which NumPy lacks."""
    config = {"model_type": "llama", "quantization_config": settings}
    (path / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for key, value in tensors.items():
        dtype = "F8_E4M3" if key in fp8 else {"i": "I", "u": "U", "f": "F"}[value.dtype.kind] + str(8 * value.itemsize)
        start, data = len(data), data + np.ascontiguousarray(value).tobytes()
        header[stem + key] = {"dtype": dtype, "shape": value.shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return HuggingFaceDirectory(path)


def gptq(
    bits: int, zeros: Array | None = None, order: Array | None = None, *, is_v2: bool = False
) -> tuple[Any, Array]:
    """(tensors, numbers [OUT, IN])."""
    codes, groups = random("codes", (IN, OUT), 1 << bits), IN // GROUP
    zeros = random("zeros", (groups, OUT), 1 << bits) if zeros is None else zeros
    scales, index = halves("scales", (groups, OUT)), np.arange(IN) // GROUP
    if order is not None:
        index = index[order]
    stored = words(zeros, bits)
    if not is_v2:  # of a whole word at once: a zero point of 0 borrows from its neighbour
        stored = (stored.view(np.uint32) - words(np.ones((1, 32 // bits)), bits).view(np.uint32)).view(np.int32)
    tensors = {
        "qweight": words(codes.T, bits).T,
        "qzeros": stored,
        "scales": scales,
        "g_idx": index.astype(np.int32),
    }
    numbers = (codes - zeros[index]).astype(np.float32) * scales[index].astype(np.float32)
    return tensors, numbers.T


def awq() -> tuple[Any, Array]:
    codes, groups = random("codes", (IN, OUT), 16), IN // GROUP
    zeros, scales = random("zeros", (groups, OUT), 16), halves("scales", (groups, OUT))
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(numbers: Array) -> Array:
        return words(numbers.reshape(len(numbers), -1, 8)[:, :, order].reshape(len(numbers), -1), 4)

    index = np.arange(IN) // GROUP
    numbers = (codes - zeros[index]).astype(np.float32) * scales[index].astype(np.float32)
    return {"qweight": pack(codes), "qzeros": pack(zeros), "scales": scales}, numbers.T


def compressed(bits: int, *, has_zeros: bool, order: Array | None = None) -> tuple[Any, Array]:
    codes, groups = random("codes", (OUT, IN), 1 << bits), IN // GROUP
    middle = 1 << (bits - 1)
    zeros = random("zeros", (OUT, groups), 1 << bits) if has_zeros else np.full((OUT, groups), middle)
    scales, index = halves("scales", (OUT, groups)), np.arange(IN) // GROUP
    tensors = {"weight_packed": words(codes, bits), "weight_scale": scales, "weight_shape": np.array([OUT, IN])}
    if has_zeros:
        tensors["weight_zero_point"] = words(zeros.T, bits).T
    if order is not None:
        index = index[order]
        tensors["weight_g_idx"] = index.astype(np.int32)
    return tensors, (codes - zeros[:, index]).astype(np.float32) * scales[:, index].astype(np.float32)


def int8(*, has_zeros: bool = False, is_grouped: bool = False) -> tuple[Any, Array]:
    codes = random("codes", (OUT, IN), 256) - 128
    shape = (OUT, IN // GROUP if is_grouped else 1)
    scales, zeros = halves("scales", shape).astype(np.float32), np.zeros(shape, np.int64)
    tensors = {"weight": codes.astype(np.int8), "weight_scale": scales}
    if has_zeros:
        zeros = random("zeros", shape, 40) - 20
        tensors["weight_zero_point"] = zeros.astype(np.int8)
    wide = IN // shape[1]
    return tensors, (codes - np.repeat(zeros, wide, 1)).astype(np.float32) * np.repeat(scales, wide, 1)


ORDER = np.argsort(Stream(3, "order").normal((IN,)))
SYMMETRIC = {"quant_method": "gptq", "bits": 4, "sym": True}
UNEVEN = {"quant_method": "gptq", "bits": 4, "sym": False}
COMPRESSED = {"quant_method": "compressed-tensors"}
CASES: dict[str, tuple[tuple[Any, Array], object, str]] = {
    "gptq": (gptq(4, np.full((IN // GROUP, OUT), 8)), SYMMETRIC, "int4"),
    "gptq zeros": (gptq(4), UNEVEN, "int4_zero"),
    "gptq v2": (gptq(4, is_v2=True), {**UNEVEN, "checkpoint_format": "gptq_v2"}, "int4_zero"),
    "gptq order": (gptq(4, order=ORDER), {**UNEVEN, "desc_act": True}, "int_reordered"),
    "gptq 8 bits": (gptq(8), {"quant_method": "gptq", "bits": 8, "sym": False}, "int8_zero"),
    "gptq 2 bits": (gptq(2), {"quant_method": "gptq", "bits": 2, "sym": False}, "int4_zero"),
    "awq": (awq(), {"quant_method": "awq", "bits": 4}, "int4_zero"),
    "int4": (compressed(4, has_zeros=False), COMPRESSED, "int4"),
    "int4 zeros": (compressed(4, has_zeros=True), COMPRESSED, "int4_zero"),
    "int4 order": (compressed(4, has_zeros=False, order=ORDER), COMPRESSED, "int_reordered"),
    "packed int8": (compressed(8, has_zeros=False), COMPRESSED, "int8"),
    "int8": (int8(), COMPRESSED, "int8"),
    "int8 groups": (int8(is_grouped=True), COMPRESSED, "int8"),
    "int8 zeros": (int8(has_zeros=True), COMPRESSED, "int8_zero"),
}


@pytest.mark.parametrize("case", CASES)
def test_integers(tmp_path: Path, case: str) -> None:
    (tensors, numbers), settings, kind = CASES[case]
    checkpoint = write(tmp_path, tensors, settings)
    check_supported(checkpoint)
    info = checkpoint.tensors[f"{NAME}.weight"]
    assert (info.type, info.shape) == (kind, (OUT, IN))
    assert info.num_bytes == sum(value.nbytes for value in tensors.values())
    assert list(checkpoint.tensors) == [f"{NAME}.weight"]
    rows = np.array([5, 0, 47, 16, 5])
    assert np.array_equal(checkpoint.composed[info.name].floats(rows), numbers[rows])
    check_packed(checkpoint, numbers, is_exact=kind in kept.INTEGERS and "int8" not in case)


def check_packed(checkpoint: HuggingFaceDirectory, numbers: Array, *, is_exact: bool) -> None:
    """The panels hold the numbers: exactly, or to half a step of 8 bits (and the rounding of scales to 16 bits)."""
    packer = Packer(checkpoint, None, "")
    [(matrix, _)] = packer.matrices([packer.part(f"{NAME}.weight", OUT, IN)], IN, [None])
    wide = Packer(checkpoint, "f32", "")
    [(same, _)] = wide.matrices([wide.part(f"{NAME}.weight", OUT, IN)], IN, [None])
    panels = wide.fill(1)[same.offset :][: same.num_bytes].view(np.float32)
    assert np.array_equal(panels.reshape(-1, IN, 16).swapaxes(1, 2).reshape(-1, IN), numbers)
    found = panel_numbers(
        matrix.form, packer.fill(1)[matrix.offset :][: matrix.num_bytes].reshape(OUT // 16, IN // 32, -1)
    )
    if is_exact:
        assert np.array_equal(found, numbers)
    else:
        largest = np.abs(numbers.reshape(OUT, -1, 32)).max(axis=-1, keepdims=True)
        assert (np.abs(found - numbers).reshape(OUT, -1, 32) <= largest / 254 * (1 + 2**-10)).all()


def panel_numbers(form: str, groups: Array) -> Array:
    """What panels hold [rows, inputs], by the layouts that kernels.matmul documents."""
    at = 512 if form == "q8_0" else 256
    if form == "q8_0":
        codes = groups[..., :512].reshape(*groups.shape[:2], 8, 16, 4).astype(np.float32) - 128
    else:
        pairs = groups[..., :256].reshape(*groups.shape[:2], 4, 1, 16, 4)
        codes = np.concatenate([pairs & 15, pairs >> 4], axis=3).astype(np.float32)
        codes = codes.reshape(*groups.shape[:2], 8, 16, 4) - (8 if form == "q4_0" else 0)
    codes = codes.transpose(0, 3, 1, 2, 4).reshape(len(groups), 16, groups.shape[1], 32)
    if form == "q4_z":
        codes += groups[..., 288:].view(np.int8).astype(np.float32).swapaxes(1, 2)[..., None]
    scales = groups[..., at : at + 32].copy().view(np.float16).astype(np.float32).swapaxes(1, 2)
    return (codes * scales[..., None]).reshape(len(groups) * 16, -1)


def test_8_bit_floats_by_their_definition() -> None:
    for code in range(256):
        sign, exponent, mantissa = -1 if code >> 7 else 1, code >> 3 & 15, code & 7
        expected = sign * ((8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9)
        [found] = e4m3(np.array([code], np.uint8))
        assert np.isnan(found) if code & 0x7F == 0x7F else found == expected


@pytest.mark.parametrize(
    ("name", "shape", "block"),
    [
        ("weight_scale", (), (OUT, IN)),
        ("weight_scale", (1,), (OUT, IN)),
        ("weight_scale", (OUT, 1), (1, IN)),
        ("weight_scale", (OUT, 4), (1, IN // 4)),
        ("weight_scale_inv", (1, 2), (128, 128)),
        ("weight_scale_inv", (3, 8), (16, 32)),
    ],
)
def test_8_bit_floats_with_scales(tmp_path: Path, name: str, shape: tuple[int, ...], block: tuple[int, int]) -> None:
    codes = random("codes", (OUT, IN), 256).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 3
    scales = halves("scales", shape or (1,)).astype(np.float32).reshape(shape)
    settings = {"quant_method": "fp8", "weight_block_size": list(block)}
    checkpoint = write(tmp_path, {"weight": codes, name: scales}, settings, fp8=("weight",))
    rows, columns = np.arange(OUT) // block[0], np.arange(IN) // block[1]
    grid = scales.reshape(int(rows.max()) + 1, int(columns.max()) + 1)
    numbers = e4m3(codes) * grid[rows][:, columns]
    assert checkpoint.tensors[f"{NAME}.weight"].type == "fp8"
    check_packed(checkpoint, numbers, is_exact=False)


def test_mxfp4_of_experts(tmp_path: Path) -> None:
    blocks, exponents = random("blocks", (3, 32, 2, 16), 256), 110 + random("exponents", (3, 32, 2), 12)
    tensors = {"gate_up_proj_blocks": blocks.astype(np.uint8), "gate_up_proj_scales": exponents.astype(np.uint8)}
    checkpoint = write(tmp_path, tensors, {"quant_method": "mxfp4"}, stem="experts.")
    info = checkpoint.tensors["experts.gate_up_proj"]
    assert (info.type, info.shape) == ("mxfp4_pairs", (3, 32, 64))
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    numbers = np.stack([e2m1[blocks & 15], e2m1[blocks >> 4]], axis=-1).reshape(3, 32, 2, 32)
    numbers = (numbers * 2.0 ** (exponents[..., None] - 127)).reshape(96, 64)
    rows = np.array([95, 0, 40])
    assert np.array_equal(checkpoint.composed[info.name].floats(rows), numbers[rows])
    packer, gate = Packer(checkpoint, None, ""), np.arange(0, 32, 2)
    part = packer.stacked_part(
        info.name, (1, 3), 32, 64, lambda: gate, is_transposed=True
    )  # as their bf16 ones are stored
    [(matrix, _)] = packer.matrices([part], 64, [None])
    panels = packer.fill(1)[matrix.offset :][: matrix.num_bytes].reshape(1, 2, -1)
    assert np.array_equal(panel_numbers("q8_0", panels), numbers[32 + gate])


def wrong(tensors: dict[str, Array], **changes: Array | None) -> dict[str, Array]:
    return {key: value for key, value in {**tensors, **changes}.items() if value is not None}


GPTQ, AWQ, INT4, INT8 = gptq(4)[0], awq()[0], compressed(4, has_zeros=True)[0], int8()[0]
ZERO = np.zeros((1, 1), np.float32)
LIES: dict[str, tuple[dict[str, Array], object, str]] = {
    "no scales": (wrong(GPTQ, scales=None), UNEVEN, 'has no tensor ".*scales"'),
    "no zeros": (wrong(GPTQ, qzeros=None), UNEVEN, 'has no tensor ".*qzeros"'),
    "scales as integers": (wrong(GPTQ, scales=np.zeros((4, OUT), np.int32)), UNEVEN, "f32 or f16 or bf16 of shape"),
    "scales of other rows": (wrong(GPTQ, scales=np.zeros((4, 40), np.float16)), UNEVEN, "is needed"),
    "zeros of other rows": (wrong(GPTQ, qzeros=np.zeros((4, 5), np.int32)), UNEVEN, r"shape \(4, 5\)"),
    "words as bytes": (wrong(GPTQ, qweight=np.zeros((32, OUT), np.int8)), UNEVEN, "has type i8"),
    "a group that isn't": (wrong(GPTQ, g_idx=np.full(IN, 4, np.int32)), UNEVEN, "names groups 4 to 4; there are 4"),
    "a group below 0": (wrong(GPTQ, g_idx=np.arange(IN, dtype=np.int32) - 2), UNEVEN, "names groups -2 to 253"),
    "groups of others": (wrong(GPTQ, g_idx=np.zeros(7, np.int32)), UNEVEN, r"shape \(7,\)"),
    "three bits": (GPTQ, {**UNEVEN, "bits": 3}, 'packed in "3" bits; supported: 2, 4, 8'),
    "bits as text": (GPTQ, {**UNEVEN, "bits": "4\n"}, r'packed in "4\\n" bits'),
    "small groups": (wrong(GPTQ, scales=np.zeros((16, OUT), np.float16), qzeros=np.zeros((16, 6), np.int32)), UNEVEN,
                     "16 scales for 256 inputs; supported: groups of a multiple of 32"),
    "no groups": (wrong(GPTQ, scales=np.zeros((0, OUT), np.float16)), UNEVEN, "must be matrices"),
    "awq in 8 bits": (AWQ, {"quant_method": "awq", "bits": 8}, "is needed|in 8 bits"),
    "no shape": (wrong(INT4, weight_shape=None), COMPRESSED, 'has no tensor ".*weight_shape"'),
    "another shape": (wrong(INT4, weight_shape=np.array([OUT, 1 << 40])), COMPRESSED, "4 or 8 bits"),
    "a negative shape": (wrong(INT4, weight_shape=np.array([-1, IN])), COMPRESSED, "4 or 8 bits"),
    "three sizes": (wrong(INT4, weight_shape=np.array([1, OUT, IN])), COMPRESSED, r"of shape \(2,\)"),
    "zeros along the inputs": (wrong(INT4, weight_zero_point=np.zeros((OUT, 1), np.int32)), COMPRESSED, "is needed"),
    "scales of no block": (wrong(INT8, weight_scale=np.zeros((5, 3), np.float32)), COMPRESSED, "fits no division"),
    "scales for 16": (wrong(INT8, weight_scale=np.zeros((OUT, 16), np.float32)), COMPRESSED, "a scale for 16 inputs"),
    "zeros as words": (wrong(INT8, weight_zero_point=np.zeros((OUT, 1), np.int32)), COMPRESSED, "i8 of shape"),
    "scales of floats": (wrong(INT8, weight=np.zeros((OUT, IN), np.float32)), COMPRESSED, "supported: matrices of i8"),
    "a vector": (wrong(INT8, weight=np.zeros(IN, np.int8), weight_scale=ZERO), COMPRESSED, "supported: matrices of i8"),
    "nothing": (wrong(INT8, weight=np.zeros((0, IN), np.int8), weight_scale=ZERO), COMPRESSED, "matrices of i8"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_is_one_line(tmp_path: Path, lie: str) -> None:
    tensors, settings, message = LIES[lie]
    with pytest.raises(CheckpointError, match=message) as error:
        write(tmp_path, tensors, settings)
    assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 400


def test_zero_points_that_a_config_denies(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, GPTQ, SYMMETRIC)
    with pytest.raises(CheckpointError, match=r'has zero points other than 8, but its config says "sym": true'):
        check_packed(checkpoint, np.zeros((OUT, IN)), is_exact=True)


def test_what_only_looks_like_parts_is_left_alone(tmp_path: Path) -> None:
    tensors = {"a_blocks": ZERO, "norm.weight_scale": ZERO, "weight": ZERO}
    checkpoint = write(tmp_path, tensors, None)
    assert set(checkpoint.tensors) == {f"{NAME}.{name}" for name in tensors}
    assert checkpoint.composed == {}


def test_other_methods_are_refused_by_name(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, {"weight": np.zeros((4, 4), np.uint8)}, {"quant_method": "bitsandbytes"})
    with pytest.raises(UnsupportedError, match=r'is quantised by "bitsandbytes", which isn\'t read; take'):
        check_supported(checkpoint, ())
