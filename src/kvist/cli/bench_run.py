"""One ``kvist bench`` command from start to end: where it runs, the ceiling first, table, figure, document."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvist.cli import options
from kvist.cli.output import Output
from kvist.spec.cache import CacheSpec

if TYPE_CHECKING:
    from kvist.lab.ceiling import BestProbe
    from kvist.lab.figures import Figure

Quick = Annotated[bool, typer.Option("--quick", help="Less of it: seconds instead of a minute or two.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it into a .png, .svg or .pdf (extra lab).")]


@dataclass(frozen=True)
class EngineOptions:
    """What is measured: a model, and how its weights and its cache are kept."""

    weights: options.Weights = None
    kv: options.Kv = options.DEFAULT_KV
    kv_k: options.KvK = None
    kv_v: options.KvV = None
    kv_keep_layers: options.KvKeepLayers = None
    threads: options.Threads = None

    @property
    def cache(self) -> CacheSpec:
        return options.cache_spec(self.kv, self.kv_k, self.kv_v, self.kv_keep_layers)


class BenchRun:
    """A benchmark under way. ``begin`` it once the model is loaded, measure, and ``finish`` it.

    Raises KvistError for a ``plot`` that can't be drawn, before anything is measured.
    """

    def __init__(self, name: str, *, is_quick: bool, is_json: bool, plot: Path | None = None) -> None:
        if plot is not None:
            from kvist.lab.figures import check_figure_path

            check_figure_path(plot)
        self.out = Output(is_json)
        self._name, self._is_quick, self._plot = name, is_quick, plot

    def begin(
        self, what: str, *, model: str, threads: int, cache: CacheSpec, weight_types: dict[str, int]
    ) -> BestProbe:
        """Say what is measured and where; measure the ceiling, say it, and return what measures it again."""
        from kvist.lab.ceiling import BestProbe, MachineProbe
        from kvist.lab.machine import this_machine
        from kvist.lab.runner import Setup

        self._setup = Setup(self._name, self._is_quick, model, threads, cache, weight_types, this_machine())
        self.out.notice(f"{what}; {self._setup}")
        self._probe = BestProbe(MachineProbe(threads))
        self.out.notice(str(self._probe.best))
        return self._probe

    @property
    def caption(self) -> str:
        """What is written under a figure."""
        return str(self._setup)

    def document(self, measured: dict[str, object]) -> dict[str, object]:
        """Return what was measured, with the setup, the best ceiling and the machine."""
        return self._setup.document(self._probe.best, measured)

    def finish(
        self,
        lines: Iterable[str],
        measured: dict[str, object],
        draw: Callable[[str], Figure] | None = None,
    ) -> None:
        """Show ``lines``, draw where that was asked for (``draw`` is given the caption), and end with the document."""
        for line in lines:
            self.out.line(line)
        if self._plot is not None and draw is not None:
            from kvist.lab.figures import save_figure

            save_figure(draw(self.caption), self._plot)
            self.out.notice(f"drawn into {self._plot}")
        self.out.finish(self.document(measured))
