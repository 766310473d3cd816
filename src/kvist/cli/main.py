"""The program ``kvist``: its commands, each in a file of its own that imports what it needs when it runs."""

from __future__ import annotations

import gc
import sys
from typing import Annotated

import typer

import kvist
from kvist.cli.batch import batch
from kvist.cli.bench_codec import bench_app
from kvist.cli.cache import cache_app
from kvist.cli.chat import chat
from kvist.cli.doctor import doctor
from kvist.cli.eval import evaluate
from kvist.cli.explain import explain
from kvist.cli.generate import generate
from kvist.cli.info import info
from kvist.cli.models import models
from kvist.cli.page import report
from kvist.cli.plan import plan
from kvist.cli.watch import watch

app = typer.Typer(
    name="kvist",
    help="Run language models on this machine, with a KV cache that changes speed and never results.",
    epilog='Example: kvist generate -p "The capital of France is"',
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog='Example: kvist generate smollm2-135m -p "Why is the sky blue?" -n 64')(generate)
app.command(epilog='Example: kvist chat --system "Answer in one sentence."')(chat)
app.command(epilog="Example: kvist batch requests.jsonl -o results.jsonl")(batch)
app.command(epilog="Example: kvist info smollm2-135m --json")(info)
app.command(epilog="Example: kvist models")(models)
app.command(epilog="Example: kvist plan config.json --gpu H100 --context 8192 --kv int8")(plan)
app.command("eval", epilog="Example: kvist eval --text book.txt --kv bf16,int8/int4 --plot quality.png")(evaluate)
app.command(epilog="Example: kvist report -o report.html smollm2-135m")(report)
app.command(epilog='Example: kvist watch -p "Why is the sky blue?" --slow 0.5')(watch)
app.command(epilog="Example: kvist explain monday.txt tuesday.txt")(explain)
app.command(epilog="Example: kvist doctor")(doctor)
app.add_typer(bench_app, name="bench")
app.add_typer(cache_app, name="cache")


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"kvist {kvist.__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def run() -> None:
    """Run the command line of this process and exit: 0 ok, 1 the user's error, 2 usage, 130 interrupted."""
    try:
        app(prog_name="kvist")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()  # else Python searches all of Numba for cycles before it ends: half a second
