"""``kvist cache``: the compiled kernels that are kept between runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import typer

from kvist.cli import options
from kvist.cli.output import Output, command
from kvist.units import format_bytes

cache_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@cache_app.callback()
def _commands() -> None:
    """Compiled kernels that are kept between runs."""


@cache_app.command(epilog="Example: kvist cache clear")
@command
def clear(is_json: options.Json = False) -> None:
    """Remove the compiled kernels of all versions; the next run compiles what it needs again."""
    from kvist.kernels.jit import cache_directory

    out = Output(is_json)
    directory = cache_directory()
    if directory is None:
        out.line("nothing to remove: no cache directory can be written")
        out.finish({"directory": None, "files": 0, "bytes": 0})
        return
    all_versions = directory.parent
    assert all_versions.name == "kernels", all_versions
    sizes = [path.stat().st_size for path in files_in(all_versions)]
    shutil.rmtree(all_versions)
    out.line(f"removed {len(sizes)} files, {format_bytes(sum(sizes))}, in {all_versions}")
    out.finish({"directory": str(all_versions), "files": len(sizes), "bytes": sum(sizes)})


def files_in(directory: Path | None) -> list[Path]:
    """Return the files below ``directory``, none where there is no such directory."""
    if directory is None or not directory.is_dir():
        return []
    return [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
