"""``kvist generate``: one prompt, one answer, streamed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvist.cli import options, report
from kvist.cli.flatten import flattened
from kvist.cli.interrupt import Interrupt
from kvist.cli.output import EXIT_INTERRUPTED, Output, command
from kvist.cli.prompt import read_prompt
from kvist.cli.startup import Startup
from kvist.engine.request import SamplingParams

if TYPE_CHECKING:
    from kvist.engine.files import ModelFiles
    from kvist.engine.result import Result
    from kvist.llm import LLM


@dataclass(frozen=True)
class PromptOptions:
    """Where the prompt comes from, and whether the chat template goes around it."""

    prompt: Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt.")] = None
    prompt_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read the prompt from a file; - is stdin.")
    ] = None
    system: options.System = None
    is_raw: Annotated[bool, typer.Option("--raw", help="Leave out the chat template.")] = False
    is_chat: Annotated[
        bool, typer.Option("--chat", help="Use the chat template: the default where the model has one.")
    ] = False

    def __post_init__(self) -> None:
        if self.is_raw and (self.is_chat or self.system is not None):
            raise typer.BadParameter("--raw leaves out the chat template, which --chat and --system need")

    def token_ids(self, files: ModelFiles, text: str) -> list[int]:
        """Return what the model is given for ``text``. Raises RequestError where a template is wanted and missing."""
        has_template = self.is_chat or self.system is not None or (files.has_template and not self.is_raw)
        if not has_template:
            return files.encode(text)
        return files.encode_chat([*self._system_message, {"role": "user", "content": text}])

    def num_first(self, files: ModelFiles, token_ids: list[int]) -> int:
        """Return how many of ``token_ids`` are the system message's: they stay when others are dropped."""
        return files.num_system_tokens(self._system_message, token_ids)

    @property
    def _system_message(self) -> list[dict[str, str]]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]


@dataclass(frozen=True)
class ShowOptions:
    """What is computed and shown besides the text."""

    logprobs: Annotated[
        int | None, typer.Option(metavar="N", help="Show log-probabilities: the chosen token's and the N likeliest.")
    ] = None
    logits_digest: Annotated[
        bool, typer.Option("--logits-digest", help="Give the SHA-256 of all logits that were sampled from.")
    ] = False
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Recompute everything for every token: the proof and the yardstick.")
    ] = False
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why no more of the prompt came from the cache, with the text there.")
    ] = False


@dataclass(frozen=True)
class ChoiceOptions:
    """How many answers are drawn, and given."""

    choices: Annotated[
        int | None, typer.Option(metavar="N", help="Give N answers; the prompt is computed once. Default: 1.")
    ] = None
    best_of: Annotated[
        int | None, typer.Option(metavar="M", help="Draw M answers and give the likeliest. Default: those given.")
    ] = None


@command
@flattened
def generate(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    prompting: PromptOptions,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", metavar="N", help="The most tokens to generate.")
    ] = SamplingParams().max_tokens,
    sampling: options.SamplingOptions,
    choosing: ChoiceOptions,
    showing: ShowOptions,
    loading: options.LoadOptions,
    is_json: options.Json = False,
) -> None:
    """Answer one prompt, from -p, a file or stdin. The text streams to stdout, one line about it goes to stderr."""
    startup = Startup()
    text = read_prompt(prompting.prompt, prompting.prompt_file)
    from kvist.engine.files import open_model
    from kvist.llm import check_fits

    startup.mark("import")
    out = Output(is_json)
    with open_model(model) as files:
        params = sampling.params(
            files.params,
            max_tokens=max_tokens,
            logprobs=showing.logprobs,
            n=choosing.choices,
            best_of=choosing.best_of,
        )
        token_ids = prompting.token_ids(files, text)
        capacity = loading.capacity(files)
        check_fits(
            files,
            capacity,
            token_ids,
            loading.context,
            cache=loading.cache,
            max_tokens=max_tokens,
            on_limit=loading.limit_kind,
        )
        _warn(out, params, loading.shortfall(files, capacity))
        with loading.load(files, startup.progress) as llm:
            num_first = prompting.num_first(files, token_ids)
            result = _stream(llm, token_ids, params, showing, out, startup, num_first)
            out.finish(_document(llm, result, startup))
    if result.finish_reason == "cancelled":
        sys.exit(EXIT_INTERRUPTED)


def _warn(out: Output, params: SamplingParams, shortfall: str | None) -> None:
    if shortfall:
        out.notice(shortfall)
    idle = options.idle_options(params)
    if idle:
        out.notice(f"{', '.join(idle)} changes nothing at temperature 0; add --temperature 1")


def _stream(
    llm: LLM,
    token_ids: list[int],
    params: SamplingParams,
    showing: ShowOptions,
    out: Output,
    startup: Startup,
    num_first: int,
) -> Result:
    """Show the answer as it comes, then the line about it."""
    with Interrupt() as interrupt:
        generation = llm.stream(
            token_ids,
            params,
            cache=not showing.no_cache,
            digest=showing.logits_digest,
            explain=showing.explain,
            num_first=num_first,
            is_cancelled=interrupt.is_set,
        )
        for event in generation:
            if event.index == 0 and event.choice == 0:
                startup.mark("prefill")
            if params.num_choices == 1:
                out.write(event.text)
    result = generation.result
    _write_choices(result, params, out)
    out.line()
    for line in report.logprob_lines(result, llm.files.tokenizer):
        out.notice(line)
    ending = report.ending(result, llm.context_length)
    out.notice(report.summary(result) + (f" | {ending}" if ending else ""))
    if showing.explain:
        out.notice(report.miss_line(result, llm.files.tokenizer))
    if result.logits_sha256 is not None:
        out.notice(f"logits sha256 {result.logits_sha256}")
    return result


def _write_choices(result: Result, params: SamplingParams, out: Output) -> None:
    """Show what could not be shown as it came: several answers, or the best of several."""
    if params.n > 1:
        out.write("\n\n".join(f"[{number}] {choice.text}" for number, choice in enumerate(result.choices, start=1)))
    elif params.num_choices > 1:
        out.write(result.text)


def _document(llm: LLM, result: Result, startup: Startup) -> dict[str, Any]:
    about = {
        "model": llm.files.name,
        "context_length": llm.context_length,
        "threads": llm.num_threads,
        "startup_s": startup.parts_s,
    }
    return report.document(result, llm.files.tokenizer) | about
