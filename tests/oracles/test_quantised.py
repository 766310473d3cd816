"""Quantised matrices against the libraries that define their layouts: compressed-tensors, transformers and torch.

(GPTQ's and AWQ's libraries have an environment of their own: ``tests/oracles_gptq``.)
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from tiny.quantised_directory import check_products
from tiny.stream import Stream
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from kvist.checkpoint.safetensors import HuggingFaceDirectory
from kvist.checkpoint.small_floats import e4m3

OUT, IN, GROUP = 40, 256, 64


def directory(path: Path, tensors: dict[str, torch.Tensor], **settings: Any) -> HuggingFaceDirectory:
    config = {"model_type": "llama", "quantization_config": settings}
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    return HuggingFaceDirectory(path)


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_packed_integers(tmp_path: Path, bits: int, has_zeros: bool) -> None:
    random = torch.Generator().manual_seed(bits)
    least, above = -(1 << (bits - 1)), 1 << (bits - 1)
    codes = torch.randint(least, above, (OUT, IN), generator=random, dtype=torch.int8)
    zeros = torch.randint(least, above, (OUT, IN // GROUP), generator=random, dtype=torch.int8)
    scales = torch.rand((OUT, IN // GROUP), generator=random).to(torch.bfloat16)
    tensors = {
        "w.weight_packed": pack_to_int32(codes, bits),
        "w.weight_shape": torch.tensor([OUT, IN]),
        "w.weight_scale": scales,
    }
    if has_zeros:
        tensors["w.weight_zero_point"] = pack_to_int32(zeros, bits, packed_dim=0)
    else:
        zeros = torch.zeros_like(zeros)
    checkpoint = directory(tmp_path, tensors, quant_method="compressed-tensors")
    wide = torch.repeat_interleave(zeros.float(), GROUP, 1), torch.repeat_interleave(scales.float(), GROUP, 1)
    expected = ((codes.float() - wide[0]) * wide[1]).numpy()
    assert np.array_equal(checkpoint.composed["w.weight"].floats(np.arange(OUT)), expected)


GROUPS = {"strategy": "group", "group_size": GROUP}
CHANNEL, TENSOR = {"strategy": "channel"}, {"strategy": "tensor"}
BLOCKS = {"strategy": "block", "block_structure": [16, 128]}
COMPRESSED = [
    *(("pack-quantized", bits, how, has_zeros)
      for bits in (4, 8) for how in (GROUPS, CHANNEL) for has_zeros in (False, True)),
    *(("int-quantized", 8, how, has_zeros) for how in (GROUPS, CHANNEL, TENSOR) for has_zeros in (False, True)),
    *(("float-quantized", 8, how, False) for how in (GROUPS, CHANNEL, TENSOR, BLOCKS)),
    ("naive-quantized", 8, GROUPS, True),
]  # fmt: skip
"""Formats of compressed-tensors, bits, what shares a scale, and whether it has zero points."""


def compressed(
    name: str, bits: int, how: dict[str, Any], has_zeros: bool, dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What the library's own compressor writes, and what its decompressor makes of that, in ``dtype``."""
    kind = "float" if name == "float-quantized" else "int"
    arguments = QuantizationArgs(num_bits=bits, type=kind, symmetric=not has_zeros, **how)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    shape = {"group": (OUT, IN // GROUP), "channel": (OUT, 1), "tensor": (1,), "block": (-(-OUT // 16), IN // 128)}
    random = torch.Generator().manual_seed(bits)
    scales = (torch.rand(shape[how["strategy"]], generator=random) * 0.01 + 0.001).to(dtype)
    state = {"weight": (torch.randn((OUT, IN), generator=random) * 0.05).to(dtype), "weight_scale": scales}
    if has_zeros:
        middle = 1 << (bits - 1)
        state["weight_zero_point"] = torch.randint(-middle, middle, scales.shape, generator=random, dtype=torch.int8)
    compressor = BaseCompressor.get_value_from_registry(name)
    written = compressor.compress(state, scheme)
    return written, compressor.decompress(written, scheme)["weight"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("name", "bits", "how", "has_zeros"), COMPRESSED)
def test_what_the_library_compresses(
    tmp_path: Path, name: str, bits: int, how: dict[str, Any], has_zeros: bool, dtype: torch.dtype
) -> None:
    written, expected = compressed(name, bits, how, has_zeros, dtype)
    settings = {"quant_method": "compressed-tensors", "format": name, "weight_block_size": how.get("block_structure")}
    checkpoint = directory(tmp_path, {f"w.{key}": value for key, value in written.items()}, **settings)
    numbers = checkpoint.composed["w.weight"].floats(np.arange(OUT))
    assert torch.equal(torch.from_numpy(numbers).to(dtype), expected)
    if dtype == torch.bfloat16:  # whose scales here are 16-bit floats too
        check_products(checkpoint, numbers, Stream(1, "x").normal((3, IN)))


def test_blocks_of_8_bit_floats_that_transformers_writes(tmp_path: Path) -> None:
    quantizer = SimpleNamespace(quantization_config=FineGrainedFP8Config(weight_block_size=(128, 128)))
    weight = torch.randn((256, IN), generator=torch.Generator().manual_seed(3)) * 0.05
    written = Fp8Quantize(quantizer).convert({"w.weight": weight})
    read = Fp8Dequantize(quantizer).convert({key.removeprefix("w."): value for key, value in written.items()})
    checkpoint = directory(tmp_path, written, quant_method="fp8", weight_block_size=[128, 128])
    numbers = checkpoint.composed["w.weight"].floats(np.arange(256))
    assert np.array_equal(numbers, read["weight"].numpy())
    check_products(checkpoint, numbers, Stream(1, "x").normal((3, IN)))


@pytest.mark.parametrize("block", [(16, 64), (128, 128)])
def test_8_bit_floats(tmp_path: Path, block: tuple[int, int]) -> None:
    random = torch.Generator().manual_seed(1)
    weight = torch.randn((OUT, IN), generator=random).to(torch.float8_e4m3fn)
    rows, columns = -(-OUT // block[0]), -(-IN // block[1])
    scales = torch.rand((rows, columns), generator=random)
    tensors = {"w.weight": weight, "w.weight_scale_inv": scales}
    checkpoint = directory(tmp_path, tensors, quant_method="fp8", weight_block_size=list(block))
    wide = scales.repeat_interleave(block[0], 0)[:OUT].repeat_interleave(block[1], 1)[:, :IN]
    assert np.array_equal(checkpoint.composed["w.weight"].floats(np.arange(OUT)), (weight.float() * wide).numpy())


def test_all_8_bit_floats() -> None:
    codes = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(e4m3(codes), expected, equal_nan=True)


@pytest.mark.filterwarnings("ignore:invalid value")  # NaN times a scale
def test_all_8_bit_floats_with_infinities(tmp_path: Path) -> None:
    weight = torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2).reshape(1, 256)
    checkpoint = directory(tmp_path, {"w.weight": weight, "w.weight_scale": torch.ones(1)}, quant_method="fp8")
    assert np.array_equal(checkpoint.composed["w.weight"].floats(np.arange(1)), weight.float().numpy(), equal_nan=True)


def test_mxfp4_of_experts(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(2)
    blocks = torch.randint(0, 256, (3, OUT, 2, 16), generator=random, dtype=torch.uint8)
    scales = torch.randint(110, 130, (3, OUT, 2), generator=random, dtype=torch.uint8)
    checkpoint = directory(tmp_path, {"w_blocks": blocks, "w_scales": scales}, quant_method="mxfp4")
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)  # [E, outputs, inputs]
    found = checkpoint.composed["w"].floats(np.arange(3 * OUT)).reshape(3, OUT, 64)
    assert np.array_equal(found, expected.numpy())
