"""What can be asked of a path without an exception of the system's: is it there, how large is it, why not.

Imports no NumPy, so that a plan can read a config without it.
"""

from __future__ import annotations

import stat
from pathlib import Path

from kvist.checkpoint.files import quote_path
from kvist.errors import CheckpointError


def regular_file_bytes(path: Path) -> int:
    """Return the size of the regular file that ``path`` leads to; raises CheckpointError if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        broken = " (a link to a file that isn't there)" if path.is_symlink() else ""
        raise CheckpointError(f"no such file: {quote_path(path)}{broken}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"can't read {quote_path(path)}: {reason(error)}") from None
    if not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "a pipe, socket or device"
        raise CheckpointError(f"{quote_path(path)} is {kind}; a regular file is needed here")
    return found.st_size


def exists(path: Path) -> bool:
    """Whether ``path`` leads to something. Unlike ``Path.exists`` of some versions it never raises."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def reason(error: BaseException) -> str:
    """Return why a file couldn't be read, without the path that the system's message repeats."""
    return (
        (error.strerror if isinstance(error, OSError) else None) or str(error).split("\n", 1)[0] or type(error).__name__
    )
