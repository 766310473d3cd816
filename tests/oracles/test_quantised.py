"""Quantised matrices against the libraries that define their layouts: compressed-tensors, transformers and torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import save_file
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


def test_mxfp4_of_experts(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(2)
    blocks = torch.randint(0, 256, (3, OUT, 2, 16), generator=random, dtype=torch.uint8)
    scales = torch.randint(110, 130, (3, OUT, 2), generator=random, dtype=torch.uint8)
    checkpoint = directory(tmp_path, {"w_blocks": blocks, "w_scales": scales}, quant_method="mxfp4")
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)  # [E, outputs, inputs]
    found = checkpoint.composed["w"].floats(np.arange(3 * OUT)).reshape(3, OUT, 64)
    assert np.array_equal(found, expected.numpy())
