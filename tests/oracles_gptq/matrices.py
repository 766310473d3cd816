"""Matrices packed by GPTQModel and AutoAWQ, and the numbers that their own dequantisers read out of them."""

from __future__ import annotations

import importlib.util
import sys
import types
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.quantization import QuantizeConfig
from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module, convert_gptq_v2_to_v1_format_module
from tiny.stream import Stream

Array = np.ndarray[Any, Any]
OUT, IN = 32, 256
SETTINGS = ("quant_method", "bits", "group_size", "desc_act", "sym", "checkpoint_format", "zero_point", "version")


@dataclass(frozen=True)
class Matrix:
    """What a library writes: ``settings`` into config.json, and ``tensors``; ``numbers`` [OUT, IN] is what it reads.

    The numbers are f32: whole numbers times the 16-bit scales, where by default it would round them to 16 bits.
    """

    settings: dict[str, Any]
    tensors: dict[str, Array]
    numbers: Array


def gptq(case: str, bits: int, group: int, *, sym: bool, version: str = "gptq", desc_act: bool = False) -> Matrix:
    """By GPTQModel; ``group`` is -1 for one scale a row, ``version`` the ``checkpoint_format``."""
    size = group if group > 0 else IN
    index = torch.arange(IN) // size
    if desc_act:
        index = index[torch.from_numpy(np.argsort(Stream(1, case, "order").normal((IN,)), kind="stable"))]
    linear, scales, zeros = _unpacked(case, bits, IN // size, index, middle=sym)
    made = _layer(bits, group, sym, desc_act)
    made.pack_original(linear, scales, zeros, index.to(torch.int32))
    config = QuantizeConfig(bits=bits, group_size=group, sym=sym, desc_act=desc_act, format=version)
    if version == "gptq":
        convert_gptq_v2_to_v1_format_module(made, config)
    tensors = {name: getattr(made, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}

    read = _layer(bits, group, sym, desc_act)
    read.load_state_dict(tensors)
    if version == "gptq":
        convert_gptq_v1_to_v2_format_module(read, bits, torch.int32)
    read.scales = read.scales.float()
    return Matrix(_settings(config.to_dict()), _arrays(tensors), read.dequantize_weight().T.contiguous().numpy())


def awq(case: str, group: int) -> Matrix:
    """By AutoAWQ; ``group`` is -1 for one scale a row."""
    linears, packing, config = _autoawq()
    size = group if group > 0 else IN
    linear, scales, zeros = _unpacked(case, 4, IN // size, torch.arange(IN) // size)
    made = linears.WQLinear_GEMM.from_linear(linear, 4, group if group > 0 else IN, scales=scales.T, zeros=zeros.T)
    tensors = {name: getattr(made, name) for name in ("qweight", "qzeros", "scales")}
    numbers = packing.dequantize_gemm(made.qweight, made.qzeros, made.scales.float(), 4, size)
    settings = config.AwqConfig(q_group_size=group).to_transformers_dict()
    return Matrix(_settings(settings), _arrays(tensors), numbers.T.contiguous().numpy())


def _unpacked(
    case: str, bits: int, num_groups: int, index: torch.Tensor, *, middle: bool = False
) -> tuple[torch.nn.Linear, torch.Tensor, torch.Tensor]:
    """A layer whose weights are whole numbers less a zero point times a scale; scales and zeros [OUT, num_groups].

    Every zero point occurs, 0 and the largest too, unless all are to be in the middle.
    """
    most = 1 << bits
    scales = torch.from_numpy(np.abs(Stream(1, case, "scales").normal((OUT, num_groups))) * 0.01 + 0.001)
    scales = scales.half().float()
    zeros = torch.full((OUT, num_groups), most // 2)
    if not middle:
        zeros = torch.tensor(Stream(1, case, "zeros").integers(OUT * num_groups, most)).reshape(OUT, num_groups)
        zeros[1, 0], zeros[2, 0] = 0, most - 1
    codes = torch.tensor(Stream(1, case, "codes").integers(OUT * IN, most)).reshape(OUT, IN)
    linear = torch.nn.Linear(IN, OUT, bias=False)
    linear.weight.data = (codes - zeros[:, index]).float() * scales[:, index]
    return linear, scales, zeros.float()


def _layer(bits: int, group: int, sym: bool, desc_act: bool) -> TorchLinear:
    layer = TorchLinear(bits=bits, group_size=group, sym=sym, desc_act=desc_act, in_features=IN, out_features=OUT)
    return layer.eval()


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in SETTINGS if key in config}


def _arrays(tensors: dict[str, torch.Tensor]) -> dict[str, Array]:
    return {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}


@cache
def _autoawq() -> tuple[Any, Any, Any]:
    """AutoAWQ's layer, packing and config. The package's own import would load every model of an older transformers."""
    for name in ("awq", "awq.models"):
        found = importlib.util.find_spec(name)
        assert found is not None and found.submodule_search_locations, name
        bare = types.ModuleType(name)
        bare.__path__ = list(found.submodule_search_locations)
        sys.modules[name] = bare
    from awq.models import _config
    from awq.modules.linear import gemm
    from awq.utils import packing_utils

    return gemm, packing_utils, _config


def matrices() -> dict[str, Matrix]:
    """Every way of packing that kvist reads, by name."""
    found = {}
    for bits in (4, 8):
        for group in (32, 128, -1):
            name = f"gptq {bits} bits, group {group}, sym"
            found[name] = gptq(name, bits, group, sym=True)
    for bits, group, version in ((4, 32, "gptq"), (4, 128, "gptq_v2"), (4, -1, "gptq"), (8, 128, "gptq"),
                                 (8, 32, "gptq_v2"), (2, 64, "gptq"), (2, 128, "gptq_v2")):  # fmt: skip
        name = f"{version} {bits} bits, group {group}"
        found[name] = gptq(name, bits, group, sym=False, version=version)
    for bits, group, sym, version in ((4, 32, True, "gptq"), (4, 128, False, "gptq"), (8, 64, False, "gptq_v2")):
        name = f"{version} {bits} bits, group {group}, {'sym, ' if sym else ''}desc_act"
        found[name] = gptq(name, bits, group, sym=sym, version=version, desc_act=True)
    for group in (32, 128, -1):
        name = f"awq group {group}"
        found[name] = awq(name, group)
    return found
