"""Options that several commands share, as dataclasses, and what is made of them.

Defaults are those of the classes behind: an option left out is None, and None changes nothing.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from kvist.cli.startup import loading
from kvist.engine.context import beyond_trained
from kvist.engine.limit import ON_LIMIT, OnLimit, check_on_limit
from kvist.engine.request import SamplingParams
from kvist.errors import ContextWarning, SpecError
from kvist.spec.cache import CODECS, CacheSpec, check_codec
from kvist.spec.retention import ALL, parse_retention

if TYPE_CHECKING:
    from kvist.engine.capacity import Capacity
    from kvist.engine.files import ModelFiles
    from kvist.llm import LLM

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_KV = CacheSpec().codec

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name (see kvist models), a path, or hf:ORG/NAME[:FILE].")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line of stdout.")]
Kv = Annotated[str, typer.Option("--kv", metavar="CODEC", help=f"How keys and values are kept: {', '.join(CODECS)}.")]
KvK = Annotated[str | None, typer.Option("--kv-k", metavar="CODEC", help="How keys are kept.")]
KvV = Annotated[str | None, typer.Option("--kv-v", metavar="CODEC", help="How values are kept.")]
KvKeepLayers = Annotated[
    str | None,
    typer.Option(
        "--kv-keep-layers",
        metavar="LIST",
        help="Layers to keep in bf16 where the others are in int8 or int4: 0,1,-1 (-1 is the last).",
    ),
]
Retention = Annotated[
    str,
    typer.Option(
        "--retention", metavar="POLICY", help="Which tokens are kept: all, window:N, sinks:S+N, h2o:N or snapkv:N."
    ),
]
Weights = Annotated[
    str | None, typer.Option("--weights", metavar="TYPE", help="Convert the weights at load: f32, bf16, q8, q4.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="Default: the physical cores this process may use.")
]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The chat template's system message.")]


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen; what is left out is the model's own, else ``SamplingParams``' default."""

    temperature: Annotated[
        float | None,
        typer.Option(metavar="X", help="Divides the logits; 0 takes the likeliest. Default: the model's own, else 0."),
    ] = None
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Keep the K likeliest tokens; 0 keeps all.")] = None
    top_p: Annotated[
        float | None, typer.Option(metavar="P", help="Keep the fewest tokens that hold this probability.")
    ] = None
    min_p: Annotated[
        float | None, typer.Option(metavar="P", help="Keep tokens this likely relative to the likeliest.")
    ] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Weakens tokens that prompt or answer have; 1 changes nothing.")
    ] = None
    presence_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Subtracted from tokens that the answer has.")
    ] = None
    frequency_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Subtracted for each time that the answer has the token.")
    ] = None
    seed: Annotated[int | None, typer.Option(metavar="N", help="Makes sampling repeatable. Default: a new one.")] = None
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=BIAS", help="Add BIAS to a token's logit; may be repeated.")
    ] = None
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be repeated.")] = (
        None
    )
    stop_token_id: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="End at this token; may be repeated.")
    ] = None
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's end tokens.")] = False
    speculation: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Guess up to N tokens at once where the text repeats itself; the answer is the same. Default: 0.",
        ),
    ] = None

    def params(self, defaults: SamplingParams, **more: Any) -> SamplingParams:
        """Return ``defaults`` with what was given here and in ``more``; RequestError for what is out of range."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | more
        given["logit_bias"] = _parse_biases(self.logit_bias or []) or None
        given["stop"] = tuple(self.stop or ()) or None
        given["stop_token_ids"] = tuple(given.pop("stop_token_id") or ()) or None
        return dataclasses.replace(defaults, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded and what its cache takes."""

    weights: Weights = None
    kv: Kv = DEFAULT_KV
    kv_k: KvK = None
    kv_v: KvV = None
    kv_keep_layers: KvKeepLayers = None
    retention: Retention = str(ALL)
    kv_budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What to reserve for the cache, such as 1GiB. Default: one sequence of the context, at most half of "
            "the free memory.",
        ),
    ] = None
    context: Annotated[
        int | None,
        typer.Option("--context", "--ctx", metavar="N", help="Tokens of prompt and answer. Default: as trained."),
    ] = None
    on_limit: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="At the context's limit: stop, truncate the prompt, slide and forget the oldest, or refuse.",
        ),
    ] = ON_LIMIT[0]
    threads: Threads = None

    @property
    def cache(self) -> CacheSpec:
        return cache_spec(self.kv, self.kv_k, self.kv_v, self.kv_keep_layers, self.retention)

    @property
    def limit_kind(self) -> OnLimit:
        """``on_limit``, checked."""
        check_on_limit(self.on_limit)
        return cast("OnLimit", self.on_limit)

    def capacity(self, files: ModelFiles) -> Capacity:
        """Return the tokens that the cache will hold, before anything is loaded. Raises CapacityError."""
        from kvist.llm import capacity_of

        return capacity_of(files, self.cache, weights=self.weights, context=self.context, kv_budget=self.kv_budget)

    def shortfall(self, files: ModelFiles, capacity: Capacity) -> str | None:
        """Return what to say where the cache holds less than the context, or the context more than was trained."""
        trained = files.spec.context_length
        if not capacity.is_cut:
            return beyond_trained(self.context or trained, trained, self.cache.retention)
        why = "half of the free memory" if self.kv_budget is None else f"a budget of {self.kv_budget}"
        wanted = self.context or files.spec.context_length
        return f"the cache holds {capacity.num_tokens} of the context's {wanted} tokens: {why}; --kv-budget sets it"

    def load(self, files: ModelFiles, progress: Callable[[str], object] = bool) -> LLM:
        """Load the weights, reserve the cache and make the kernels ready; Ctrl-C ends the process."""
        from kvist.llm import LLM

        for notice in (files.left_out, files.conversion(self.weights)):
            if notice:
                sys.stderr.write(notice + "\n")
        with loading(), warnings.catch_warnings():
            warnings.simplefilter("ignore", ContextWarning)  # ``shortfall`` says it
            return LLM(
                files,
                self.weights,
                self.cache,
                self.threads,
                context=self.context,
                kv_budget=self.kv_budget,
                on_limit=self.limit_kind,
                progress=progress,
            )


def cache_spec(
    kv: str, kv_k: str | None, kv_v: str | None, keep_layers: str | None = None, retention: str = str(ALL)
) -> CacheSpec:
    """Return how the cache is kept; SpecError names the option that is wrong."""
    for option, codec in (("--kv", kv), ("--kv-k", kv_k), ("--kv-v", kv_v)):
        check_codec(codec or kv, option)
    return CacheSpec(kv, kv_k, kv_v, parse_retention(retention), parse_layers(keep_layers or ""))


def parse_layers(listed: str) -> tuple[int, ...]:
    """Return ``"0,1,-1"`` as numbers."""
    try:
        return tuple(int(number) for number in listed.split(",")) if listed else ()
    except ValueError:
        raise SpecError(f'--kv-keep-layers takes layer numbers, such as 0,1,-1, got "{listed}"') from None


def _parse_biases(pairs: list[str]) -> dict[int, float]:
    """Return ``["42=-1.5"]`` as ``{42: -1.5}``."""
    biases = {}
    for pair in pairs:
        token_id, separator, bias = pair.partition("=")
        try:
            biases[int(token_id)] = float(bias if separator else "")
        except ValueError:
            raise typer.BadParameter(f'--logit-bias takes ID=BIAS, such as 42=-1.5, got "{pair}"') from None
    return biases


def idle_options(params: SamplingParams) -> list[str]:
    """Return the options that change nothing because the choice is greedy."""
    if not params.is_greedy:
        return []
    plain = SamplingParams()
    names = ("top_k", "top_p", "min_p")
    return [f"--{name.replace('_', '-')}" for name in names if getattr(params, name) != getattr(plain, name)]
