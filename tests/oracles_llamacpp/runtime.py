"""llama.cpp through its C interface: a file's logits in f32 throughout, and files made by its quantiser.

Keys and values are stored in f32 and flash attention is off, so that nothing but llama.cpp's own arithmetic (its tables
of activations, and 8-bit activations where weights are quantised) lies between its logits and exact ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from oracles_llamacpp.exact_gelu import ExactGelu

GGML_TYPE_F32 = 0
NUM_THREADS = 1  # its threads wait by spinning, which on a busy machine takes longer than one alone
Array = np.ndarray[Any, Any]

_LOG: list[str] = []


@llama_cpp.llama_log_callback
def _keep_line(_level: int, text: bytes, _user_data: object) -> None:
    _LOG.append(text.decode(errors="replace"))


@cache
def _started() -> None:
    llama_cpp.llama_log_set(_keep_line, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()


def last_lines(count: int = 6) -> str:
    """What llama.cpp said last, for a failing assertion."""
    return " | ".join("".join(_LOG).splitlines()[-count:])


def _no_vocabulary() -> Any:
    """Overrides by which a file without a tokenizer is read as one that says so."""
    overrides = (llama_cpp.llama_model_kv_override * 2)()
    overrides[0].tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR
    overrides[0].key = b"tokenizer.ggml.model"
    ctypes.memmove(ctypes.addressof(overrides[0].value), b"no_vocab", 9)
    return overrides


@contextmanager
def opened(path: Path, num_tokens: int, *, has_vocabulary: bool, callback: Any = None) -> Iterator[tuple[Any, Any]]:
    """The model and a context for ``num_tokens`` tokens in one batch; ``callback`` sees each result."""
    _started()
    _LOG.clear()
    params = llama_cpp.llama_model_default_params()
    if not has_vocabulary:
        overrides = _no_vocabulary()
        params.kv_overrides = overrides
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp doesn't open {path}: {last_lines()}"
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = num_tokens
    settings.n_threads = settings.n_threads_batch = NUM_THREADS
    settings.type_k = settings.type_v = GGML_TYPE_F32
    settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if callback is not None:
        settings.cb_eval = callback
    context = llama_cpp.llama_init_from_model(model, settings)
    assert context, f"llama.cpp makes no context for {path}: {last_lines()}"
    yield model, context
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)


def logits(path: Path, token_ids: Sequence[int], *, has_vocabulary: bool = False, gelu: str | None = None) -> Array:
    """Logits of every position, with GELU in the form ``gelu`` exactly, or as llama.cpp has it.  # f32 [T, V]"""
    count, exact = len(token_ids), None if gelu is None else ExactGelu(gelu)
    callback = None if exact is None else exact.callback
    with opened(path, count, has_vocabulary=has_vocabulary, callback=callback) as (model, context):
        batch = llama_cpp.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for at, token_id in enumerate(token_ids):
            batch.token[at], batch.pos[at], batch.logits[at] = token_id, at, True
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
        status = llama_cpp.llama_decode(context, batch)
        assert status == 0, f"llama.cpp fails ({status}) at {path}: {last_lines()}"
        num_logits = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        found = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), shape=(count, num_logits)).copy()
        llama_cpp.llama_batch_free(batch)
    assert exact is None or exact.count > 0, f"no GELU in {path}"
    return found


def ftypes() -> dict[str, int]:
    """The kinds of file that llama.cpp's quantiser makes, by the names that people know (``Q4_K_M``)."""
    found = {}
    for name in dir(llama_cpp):
        if name.startswith("LLAMA_FTYPE_"):
            short = name.removeprefix("LLAMA_FTYPE_").removeprefix("ALL_").removeprefix("MOSTLY_")
            found[short] = int(getattr(llama_cpp, name))
    return found


def quantise(source: Path, target: Path, ftype: str, importance: Mapping[str, int] | None = None) -> Path:
    """Write ``source`` anew with weights as ``ftype``; returns ``target``.

    ``importance``: tensors by the width of their rows, all of whose inputs are said to matter alike.
    """
    _started()
    _LOG.clear()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = ftypes()[ftype], NUM_THREADS, True
    listed = (llama_cpp.llama_model_imatrix_data * (len(importance or {}) + 1))()  # the last one is empty: the end
    ones = {name: (ctypes.c_float * width)(*[1.0] * width) for name, width in (importance or {}).items()}
    for entry, (name, numbers) in zip(listed, ones.items(), strict=False):
        entry.name, entry.size = name.encode(), len(numbers)
        entry.data = ctypes.cast(numbers, ctypes.POINTER(ctypes.c_float))
    if importance:
        params.imatrix = listed
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
    assert status == 0, f"llama.cpp doesn't make {ftype} of {source}: {last_lines()}"
    return target
