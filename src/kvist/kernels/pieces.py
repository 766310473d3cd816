"""How pieces of kernels are compiled: no further than LLVM's intermediate form, for the kernels they become part of.

Numba optimises every function together with all that it calls and makes machine code of it, before its caller links it,
optimises the whole again and makes machine code again: of ten functions that call each other in a row the innermost is
compiled ten times. A piece is called by kernels only, so it waits for them.
"""

from __future__ import annotations

import ctypes
from typing import Any

from numba.core import compiler
from numba.core.codegen import JITCodeLibrary

_REFUSAL = ctypes.cast(ctypes.pythonapi.PyErr_BadArgument, ctypes.c_void_p).value
"""What is called where Python calls a piece: it raises a TypeError."""


class _NoMachineCode:
    """Takes the place of a code generator that Numba tells about the environment of a function's machine code."""

    def set_env(self, _name: str, _environment: Any) -> None:
        """There is no machine code."""


class _Piece(JITCodeLibrary):
    """A function's code and that of all it calls, each optimised by itself only, until a kernel links them."""

    codegen = _NoMachineCode()

    def _optimize_final_module(self) -> None:
        """Left to the kernel."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, _name: str) -> Any:
        return _REFUSAL


class PieceCompiler(compiler.Compiler):
    """Numba's compiler, whose results are pieces."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *args: Any) -> None:
        assert library is None, library
        super().__init__(typingctx, targetctx, _Piece(targetctx.codegen(), "piece"), *args)
