"""exp and log: right to their bound, and the same bits everywhere."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.engine.elementary import WEIGHT_BITS, log, softmax_weights

# Bytes of the weights of 0, -1/1024, -2/1024 ... A change here changes what seeds choose: say so in the changelog.
DIGEST = "b8d391cd0a0479b14edca63c0f685559eebfab06f80e02e9b32e1ee6aa7ea98e"
PROGRAM = """
import hashlib, numpy as np
from kvist.engine.elementary import softmax_weights
print(hashlib.sha256(softmax_weights(np.arange(40960, dtype=np.float32) / np.float32(-1024)).tobytes()).hexdigest())
"""


def test_weights_are_exp() -> None:
    x = -np.random.default_rng(0).random(20000).astype(np.float32) * 28
    exact = np.exp(x.astype(np.float64)) * 2.0**WEIGHT_BITS
    assert np.max(np.abs(softmax_weights(x) - exact) - 0.5 - 2e-7 * exact) <= 0


def test_the_likeliest_weighs_two_to_the_42_and_the_hopeless_nothing() -> None:
    x = np.array([0, -0.0, -31, -80, -1e30, -np.inf], np.float32)
    assert softmax_weights(x).tolist() == [2**42, 2**42, 0, 0, 0, 0]


@given(st.lists(st.floats(-40, 0, width=32), min_size=2, max_size=40))
def test_weights_keep_order(values: list[float]) -> None:
    weights = softmax_weights(np.array(sorted(values), np.float32))
    assert np.all(np.diff(weights) >= 0)


def test_weights_do_not_depend_on_their_neighbours() -> None:
    x = -np.random.default_rng(1).random(50000).astype(np.float32) * 30
    assert softmax_weights(x)[17::1000].tolist() == softmax_weights(x[17::1000].copy()).tolist()


@given(st.floats(1e-300, 1e300))
def test_log(x: float) -> None:
    assert log(x) == pytest.approx(math.log(x), rel=5e-16, abs=5e-16)


def test_bits_do_not_depend_on_the_processor() -> None:
    x = np.arange(40960, dtype=np.float32) / np.float32(-1024)
    assert hashlib.sha256(softmax_weights(x).tobytes()).hexdigest() == DIGEST
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(found)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == DIGEST
