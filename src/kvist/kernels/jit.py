"""The one decorator of all kernels, and where their compiled code is kept between runs.

Compiled code lives in the user's cache directory under a key made of kvist's kernel sources, Numba's version and the
processor, because Numba itself notices neither a change in an imported file nor a change of ``NUMBA_CPU_NAME`` in time.
Where no directory can be written, kernels are compiled anew in each process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import config
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

from kvist.kernels import target
from kvist.kernels.pieces import PieceCompiler

try:
    import fcntl
except ImportError:  # Windows: of two first runs at once, one may lose what the other compiles once more
    fcntl = None  # type: ignore[assignment]

_ARENA = numba.types.Array(numba.types.uint8, 1, "C")
SIGNATURE = numba.types.void(
    *(numba.types.int64,) * 3,
    numba.types.Array(numba.types.int64, 2, "C"),
    numba.types.Array(numba.types.int64, 1, "C"),
    *(_ARENA,) * 3,
)
"""(chunk, thread, line, program, table, weights, cache, work): every kernel that a program may name."""

IS_JIT_OFF = bool(config.DISABLE_JIT)

OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False}
"""No GIL, no exceptions, and no counting of references: kernels own nothing."""
PIECE = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": PieceCompiler}


def cache_root() -> Path:
    """Where all versions' compiled kernels live: ``$KVIST_CACHE_DIR``, else the user's cache directory.

    A user without a home has a directory of their own among the system's temporary files.
    """
    if os.environ.get("KVIST_CACHE_DIR"):
        return Path(os.environ["KVIST_CACHE_DIR"])
    if os.environ.get("XDG_CACHE_HOME") and sys.platform not in ("darwin", "win32"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "kvist"
    try:
        home = Path.home()
    except RuntimeError:
        return _temporary_root()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "kvist"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "kvist"
    return home / ".cache" / "kvist"


def _temporary_root() -> Path:
    return Path(tempfile.gettempdir()) / f"kvist-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


@functools.cache
def cache_key() -> str:
    """A digest of everything that changes compiled code."""
    digest = hashlib.blake2b(digest_size=10)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + source.read_bytes())
    compiled_for = (numba.__version__, sys.version, config.CPU_NAME, config.CPU_FEATURES, sorted(target.features()))
    digest.update(repr(compiled_for).encode())
    return digest.hexdigest()


@functools.cache
def cache_directory() -> Path | None:
    """The directory of this version's compiled kernels, made if need be; None where none can be written."""
    for root in (cache_root, _temporary_root):
        try:
            directory = root() / "kernels" / cache_key()
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not all(_is_trusted(path) for path in (directory, directory.parent, root())):
                continue  # compiled code is run: it must not be another user's to write or to swap
            with tempfile.TemporaryFile(dir=directory):
                return directory
        except OSError:
            continue
    return None


def _is_trusted(path: Path) -> bool:
    """Whether the path is this user's own, or the system's."""
    return not hasattr(os, "getuid") or path.stat().st_uid in (0, os.getuid())


@contextlib.contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Keep every other process from writing into the cache meanwhile, where the file system has locks."""
    with (directory / "lock").open("a") as lock:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Files(IndexDataCacheFile):
    """A function's index and compiled code, written by one process at a time.

    Numba reads the index, adds an entry and writes it back: of two processes that do so at once, one loses the
    other's entry.
    """

    def save(self, key: Any, data: Any) -> None:
        with _one_at_a_time(Path(self._cache_path)):
            super().save(key, data)


class _KernelCache(FunctionCache):
    """Numba's cache of a function, with a key that is the same in every process.

    Numba's own key holds the pickled cells of a closure, and a compiled function among them is pickled with an
    identity that each process makes anew. The directory's name already says which sources these are.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file.__class__ = _Files

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return sig, codegen.magic_tuple(), _constants(self._py_func)


def _constants(function: Callable[..., Any]) -> tuple[Any, ...]:
    """What a function closes over: numbers, texts, and other functions by their names and constants."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return (function.__module__, function.__qualname__, *map(_constant, cells))


def _constant(value: Any) -> Any:
    if isinstance(value, Dispatcher):
        return _constants(value.py_func)
    assert isinstance(value, int | float | str | None), f"a kernel closes over {value!r}, which can't be part of a key"
    return value


def _own_name(function: Callable[..., Any]) -> str:
    """A name that no kernel with other constants has, whichever process compiled it.

    Compiled code is found by its symbol: the function's name, its types, and a number that each process counts anew.
    Of two kernels of one function, compiled in two processes, a third would call one in both places.
    """
    return f"{function.__qualname__}_{hashlib.sha256(repr(_constants(function)).encode()).hexdigest()[:16]}"


def _cached(dispatcher: Any) -> Any:
    """The dispatcher, its compiled code kept on disk: as ``enable_caching`` does it, with the cache above."""
    directory = cache_directory()
    if directory is not None:
        before, config.CACHE_DIR = config.CACHE_DIR, str(directory)
        try:
            dispatcher._cache = _KernelCache(dispatcher.py_func)  # noqa: SLF001 (Numba has no hook for it)
        finally:
            config.CACHE_DIR = before
    return dispatcher


def kernel(signature: Any = None) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function: no GIL, no exceptions, no fast-math, kept on disk.

    With a ``signature`` it is compiled at once and can stand in a tuple of kernels; without one, when it is called.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        if IS_JIT_OFF:
            return function
        function.__qualname__ = _own_name(function)
        dispatcher = _cached(numba.njit(**OPTIONS)(function))
        if signature is not None:
            dispatcher.compile(signature)
            dispatcher.disable_compile()
        return dispatcher

    return decorate


def inline(function: Callable[..., Any]) -> Any:
    """A piece of a kernel: always compiled into its caller."""
    if IS_JIT_OFF:
        return function
    return numba.njit(**PIECE, forceinline=True)(function)


def called(function: Callable[..., Any]) -> Any:
    """A piece of a kernel that is compiled once and called: for what is long and used in several places."""
    if IS_JIT_OFF:
        return function
    return numba.njit(**PIECE)(function)


def addresses(kernels: list[Any]) -> Any:
    """The kernels as the interpreter calls them: int64 addresses of their C wrappers, or functions when JIT is off."""
    if IS_JIT_OFF:
        return tuple(kernels)
    found = [_address(compiled) for compiled in kernels]
    assert len(set(found)) == len(set(map(id, kernels))), "two kernels under one symbol"
    return np.array(found, np.int64)


def _address(compiled: Any) -> int:
    result = compiled.get_compile_result(compiled.nopython_signatures[0])
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name))
