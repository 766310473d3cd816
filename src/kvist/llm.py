"""What a Python user imports: a model that is loaded, asked, and closed.

with LLM("smollm2-135m") as llm:
    print(llm.generate("The capital of France is", SamplingParams(max_tokens=8)).text)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt

from kvist.cache.kv_cache import KvCache
from kvist.cache.memory import available_memory
from kvist.cache.swap import SwapSpace
from kvist.checkpoint.tokenizer import Tokenizer
from kvist.engine.beam import Beam
from kvist.engine.capacity import Capacity, plan_capacity
from kvist.engine.checks import Uncut, check_prompt
from kvist.engine.context import beyond_trained, check_context
from kvist.engine.cores import threads_to_use
from kvist.engine.engine import Engine
from kvist.engine.files import Messages, ModelFiles, open_model
from kvist.engine.generation import Generation
from kvist.engine.limit import Limit, OnLimit, check_on_limit
from kvist.engine.options import RequestOptions, check_options, request_of, retention_of
from kvist.engine.planning import DEFAULT_SETTINGS, Settings
from kvist.engine.policy import policy_of
from kvist.engine.request import Request, SamplingParams
from kvist.engine.result import Result
from kvist.engine.running import run_all
from kvist.engine.stats import Stats
from kvist.engine.text import ShownText
from kvist.engine.values import MAX_INT64, plain_text, prompt_ids, truth_value, whole_number, wrong
from kvist.errors import CapacityError, ContextWarning, RequestError, SpecError
from kvist.model.convert import check_weights
from kvist.model.decoder import load_decoder
from kvist.spec.cache import CODECS, CacheSpec, check_codecs, check_retention, layer_groups, pool_bytes
from kvist.spec.footprint import STEP_TOKENS
from kvist.spec.model import ModelSpec
from kvist.spec.retention import RetentionSpec
from kvist.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

_BF16 = CacheSpec()
PREEMPTIONS = ("recompute", "swap")
_PROMPT = "a text, or token ids (whole numbers)"
_PROMPTS = "a text, token ids (whole numbers), or a list of either"


class LLM:
    """A model in memory with its KV cache and its threads. Use it as a context manager, or call ``close``.

    ``model`` is a name of the catalog, a path, ``hf:org/name``, or an opened ``ModelFiles``. ``weights`` converts at
    load (f32, bf16, q8, q4). ``threads`` defaults to the physical cores this process may use, ``context`` to the
    model's trained one; ``on_limit`` says what happens there (stop, truncate, slide, refuse). Dynamic and longrope
    rotations are made for the context. ``cache`` says how keys and values are kept, ``retention`` (such as
    "sinks:4+1020", or a ``RetentionSpec``) whose, if not as ``cache`` has it. The cache is reserved at once, for all
    requests together: ``kv_budget`` bytes (a number, or a text such as "1GiB"), else one sequence of the context, at
    most half of the free memory. ``progress`` is called with the name of each part of loading as it begins ("weights",
    "cache", "kernels"), and with "ready".

    Requests that are under way at once are computed together. ``policy`` says who comes first (fcfs, priority,
    shortest, cache), ``settings`` how steps are made. ``prefix_reuse`` False computes every prompt from its first
    token. When blocks run out a request has to wait: its tokens are computed again (``preemption`` "recompute"), or
    wait in host memory of ``swap_budget`` bytes ("swap"; by default as much as the cache has).

    Raises CheckpointError, SpecError, CapacityError, or RequestError for what no request could be served with, one line
    each, before anything large is allocated.
    """

    def __init__(
        self,
        model: str | Path | ModelFiles = "smollm2-135m",
        weights: str | None = None,
        cache: CacheSpec = _BF16,
        threads: int | None = None,
        *,
        context: int | None = None,
        retention: str | RetentionSpec | None = None,
        kv_budget: int | str | None = None,
        policy: str = "fcfs",
        settings: Settings = DEFAULT_SETTINGS,
        preemption: Literal["recompute", "swap"] = "recompute",
        swap_budget: int | str | None = None,
        prefix_reuse: bool = True,
        on_limit: OnLimit = "stop",
        progress: Callable[[str], object] = bool,
    ) -> None:
        check_cache(cache)
        kept = retention_of(retention)
        cache = cache if kept is None else replace(cache, retention=kept)
        check_weights(weights)
        policy_of(policy)
        check_settings(settings)
        check_preemption(preemption)
        check_on_limit(on_limit)
        prefix_reuse = truth_value("prefix_reuse", prefix_reuse, SpecError)
        threads = threads_to_use(threads)
        context = _context_of(context)
        kv_bytes, swap_bytes = budget_bytes(kv_budget), budget_bytes(swap_budget, "swap_budget")
        self.files = model if isinstance(model, ModelFiles) else open_model(model)
        try:
            self.capacity = capacity_of(self.files, cache, weights=weights, context=context, kv_budget=kv_bytes)
            Limit(self._length(context), on_limit, self.files.has_learned_positions).retention(cache.retention)
            warning = beyond_trained(self._length(context), self.spec.context_length, cache.retention)
            if warning:
                warnings.warn(warning, ContextWarning, stacklevel=2)
            progress("weights")
            self._decoder = load_decoder(self.files.checkpoint, weights=weights, threads=threads, context=context)
        except BaseException:
            self.files.checkpoint.close()
            raise
        try:
            progress("cache")
            length = self._length(context)
            self._cache = KvCache(
                self.spec,
                cache,
                num_tokens=length,
                step_tokens=self._decoder.step_tokens,
                budget=kv_bytes,
                identity=self._decoder.identity,
            )
            swap = _swap_space(self._cache, preemption, swap_bytes)
            progress("kernels")
            self._decoder.prepare(self._cache)
        except BaseException:
            self._decoder.close()
            self.files.checkpoint.close()
            raise
        self.engine = Engine(
            self._decoder,
            self._cache,
            cache,
            context_length=length,
            tokenizer=self.files.tokenizer,
            end_token_ids=self.files.end_token_ids,
            policy=policy,
            settings=settings,
            swap=swap,
            prefix_reuse=prefix_reuse,
            on_limit=on_limit,
            has_learned_positions=self.files.has_learned_positions,
            uncut=uncut_context(self.files, cache, self.capacity, context),
        )
        self._is_closed = False
        progress("ready")

    def _length(self, context: int | None) -> int:
        """The context that the cache holds."""
        return min(self.capacity.num_tokens, context or self.spec.context_length)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what is under way, as cancelled, and the threads, and let go of the model's file; may be called again."""
        if not self._is_closed:
            self._is_closed = True
            self.engine.reset()
            self._decoder.close()
            self.files.checkpoint.close()

    @property
    def spec(self) -> ModelSpec:
        return self.files.spec

    @property
    def context_length(self) -> int:
        """The most tokens that a prompt and its answer may hold together."""
        return self.engine.context_length

    @property
    def on_limit(self) -> OnLimit:
        """What happens at the context's limit, unless a request says otherwise."""
        return self.engine.on_limit

    @property
    def num_threads(self) -> int:
        return self._decoder.num_threads

    @property
    def weight_types(self) -> dict[str, int]:
        """Packed bytes of the weight matrices by type."""
        return self._decoder.weight_types

    @property
    def num_forward_tokens(self) -> int:
        """Rows that have entered the model since it was loaded."""
        return self._decoder.num_forward_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises RequestError where it has none."""
        if self.files.tokenizer is None:
            raise RequestError(f"{self.files.name} has no tokenizer; give token ids instead of text")
        return self.files.tokenizer

    @property
    def default_params(self) -> SamplingParams:
        """The model's own sampling settings; greedy where it has none."""
        return self.files.params

    @overload
    def generate(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, **more: Unpack[RequestOptions]
    ) -> Result: ...
    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
        **more: Unpack[RequestOptions],
    ) -> list[Result]: ...
    def generate(
        self,
        prompt: str | Sequence[int] | list[str] | list[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
        **more: Unpack[RequestOptions],
    ) -> Result | list[Result]:
        """Return the answer to a prompt (text or token ids), or the answers to a list of prompts, in order.

        A list without prompts has none.

        The prompts of a list are computed together. ``params``, one for all or a list, default to the model's own.
        ``progress`` shows a bar on stderr: True, False, or None for a list in a terminal. ``more`` is for all of them:
        see ``RequestOptions``; a name that isn't there is refused.

        Raises RequestError, SpecError or CapacityError for what can't be served; then nothing has been computed.
        """
        prompts = _many(prompt)
        is_list = prompts is not None
        wanted = self._requests([prompt] if prompts is None else prompts, params, more)
        results = run_all(self.engine, wanted, show=progress if progress is not None or is_list else False)
        return results if is_list else results[0]

    def _requests(
        self, prompts: Sequence[Any], params: SamplingParams | Sequence[SamplingParams] | None, more: RequestOptions
    ) -> list[Request]:
        self._check_open()
        check_options(more)
        each = _each(self.default_params if params is None else params, len(prompts))
        return [request_of(self._token_ids(one), own, more) for one, own in zip(prompts, each, strict=True)]

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        is_cancelled: Callable[[], bool] = bool,
        **more: Unpack[RequestOptions],
    ) -> Generation:
        """Return an answer to iterate over, a ``TokenEvent`` a token; its ``result`` counts when it has ended.

        Several that are streamed at once, by one thread or many, are computed together. ``is_cancelled`` is asked
        before each step of the model.
        """
        self._check_open()
        request = request_of(self._token_ids(prompt), self.default_params if params is None else params, more)
        return Generation(self.engine, request, is_cancelled=is_cancelled)

    def chat(self, messages: Messages, params: SamplingParams | None = None, **more: Unpack[RequestOptions]) -> Result:
        """Return the assistant's answer to ``messages``: ``[{"role": "user", "content": "Hello"}]``.

        What an earlier turn computed is in the cache: only the new text enters the model.

        Raises RequestError for a model without a chat template, CheckpointError for a broken one.
        """
        token_ids = self.files.encode_chat(messages)
        more.setdefault("num_first", self.files.num_system_tokens(messages, token_ids))
        return self.generate(token_ids, params, **more)

    def beam_search(
        self,
        prompt: str | Sequence[int],
        *,
        width: int = 4,
        max_tokens: int = 64,
        length_penalty: float = 1.0,
        cache_salt: str = "",
    ) -> list[Beam]:
        """Return up to ``width`` of the likeliest continuations as a whole, the best first.

        They are ranked by the sum of their tokens' log-probabilities over ``num_tokens ** length_penalty``. Prompt and
        common beginnings are computed once.
        """
        self._check_open()
        salt = plain_text("cache_salt", cache_salt)
        found = self.engine.beam_search(
            self._token_ids(prompt), width=width, max_tokens=max_tokens, length_penalty=length_penalty, salt=salt
        )
        return [replace(beam, text=self._text(beam.token_ids)) for beam in found]

    def _text(self, token_ids: tuple[int, ...]) -> str:
        """What an answer of these tokens shows; nothing for a model without a tokenizer."""
        shown = ShownText(self.files.tokenizer, ())
        return (
            "".join(shown.push(number) for number in token_ids if number not in self.files.end_token_ids)
            + shown.finish()
        )

    def logits(self, token_ids: Sequence[int], cache: bool = True, chunk: int | None = None) -> npt.NDArray[np.float32]:
        """Return the logits after each of ``token_ids`` [T, V].

        ``chunk`` tokens at most enter the model together. ``cache=False`` recomputes each position's prefix apart.
        """
        self._check_open()
        return self.engine.logits(token_ids, is_cached=cache, chunk=chunk)

    def stats(self) -> Stats:
        """Return what has been served, how long it took, and how the cache stands."""
        return self.engine.stats()

    def _token_ids(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        return tuple(self.files.encode(prompt)) if isinstance(prompt, str) else prompt_ids("prompt", prompt, _PROMPT)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RequestError(f"this LLM ({self.files.name}) is closed; make a new one")


def _context_of(asked: int | None) -> int | None:
    """Return a context as an int; what of it the model can do, ``check_context`` says. None stays None."""
    if asked is None:
        return None
    return whole_number("context", asked, "from 1 to 2**63 - 1 tokens", least=1, most=MAX_INT64, error=SpecError)


def capacity_of(
    files: ModelFiles, cache: CacheSpec, *, weights: str | None, context: int | None, kv_budget: int | str | None
) -> Capacity:
    """Return the tokens that the cache would be reserved for, without loading anything.

    Raises SpecError for a context that the model wasn't trained for, CapacityError where the memory isn't there.
    """
    trained = files.spec.context_length
    check_context(context, trained, is_learned=files.has_learned_positions)
    check_retention(layer_groups(files.spec, cache), cache.retention)
    check_codecs(layer_groups(files.spec, cache))
    available, needed = available_memory(), files.loaded_bytes(weights)
    if available is not None and needed > available:
        raise CapacityError(
            f"the weights take {format_bytes(needed)} and {format_bytes(available)} of memory are free; free some, "
            "or take smaller weights (q8, q4)"
        )
    return plan_capacity(
        files.spec,
        cache,
        context=context or trained,
        step_tokens=STEP_TOKENS,
        budget=budget_bytes(kv_budget),
        available=None if available is None else available - needed,
    )


def uncut_context(files: ModelFiles, cache: CacheSpec, capacity: Capacity, context: int | None) -> Uncut | None:
    """Return the context that was wanted where memory has cut it; None where it hasn't."""
    if not capacity.is_cut:
        return None
    needed_bytes = partial(pool_bytes, files.spec, cache, step_tokens=STEP_TOKENS)
    return Uncut(context or files.spec.context_length, needed_bytes(capacity.num_tokens), needed_bytes)


def check_cache(cache: object) -> None:
    """Raise SpecError unless ``cache`` says how a cache is kept."""
    if not isinstance(cache, CacheSpec):
        example = cache if isinstance(cache, str) and cache in CODECS else "int8"
        raise SpecError(f"cache takes a CacheSpec, got {cache!r:.60}; e.g. CacheSpec({example!r})")


def check_settings(settings: object) -> None:
    """Raise SpecError unless ``settings`` say how steps are made."""
    if not isinstance(settings, Settings):
        raise wrong("settings", "Settings", settings, SpecError)


def check_preemption(preemption: object) -> None:
    """Raise SpecError unless ``preemption`` is known."""
    if not isinstance(preemption, str) or preemption not in PREEMPTIONS:
        raise SpecError(f'unknown preemption "{preemption}"; known: {", ".join(PREEMPTIONS)}')


def _swap_space(cache: KvCache, preemption: str, budget: int | None) -> SwapSpace | None:
    """What preempted requests' blocks wait in; as large as the cache where no budget is given."""
    if preemption == "recompute":
        return None
    return SwapSpace(cache, cache.pool_bytes if budget is None else budget)


def budget_bytes(budget: int | str | None, name: str = "kv_budget") -> int | None:
    """Return a budget in bytes; None stays None. Raises SpecError for what is no size."""
    if budget is None or isinstance(budget, str):
        return None if budget is None else parse_bytes(budget)
    rule = 'from 0 to 2**63 - 1 bytes, or a text such as "1GiB"'
    return whole_number(name, budget, rule, least=0, most=MAX_INT64, error=SpecError)


def check_fits(
    files: ModelFiles,
    capacity: Capacity,
    token_ids: Sequence[int],
    context: int | None,
    *,
    cache: CacheSpec,
    max_tokens: int = 1,
    on_limit: OnLimit = "stop",
) -> None:
    """Raise RequestError or CapacityError where a prompt can't be served, before the model is loaded."""
    check_prompt(token_ids, files.spec.vocab_size)
    length = min(capacity.num_tokens, context or files.spec.context_length)
    uncut = uncut_context(files, cache, capacity, context)
    if uncut is not None:
        uncut.check(len(token_ids), length, on_limit)
    Limit(length, on_limit, files.has_learned_positions).prompt(tuple(token_ids), max_tokens)


def _many(prompt: Any) -> Sequence[Any] | None:
    """The prompts of a list of them, which may be empty; None for a single one."""
    if isinstance(prompt, str):
        return None
    if isinstance(prompt, np.ndarray):
        prompt = prompt.tolist()
    if isinstance(prompt, (bytes, Mapping)) or not (hasattr(prompt, "__len__") and hasattr(prompt, "__getitem__")):
        raise wrong("prompt", _PROMPTS, prompt)
    if len(prompt) == 0:
        return prompt if isinstance(prompt, list) else None
    return None if hasattr(prompt[0], "__index__") else cast("Sequence[Any]", prompt)


def _each(params: Any, count: int) -> Sequence[SamplingParams]:
    """One for each of ``count`` prompts; each is checked by its request."""
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or isinstance(params, str):
        raise wrong("params", "a SamplingParams, or a list of them", params)
    if len(params) != count:
        needed = "1 prompt needs one SamplingParams"
        if count != 1:
            needed = f"{count} prompts need one SamplingParams or {count} of them"
        raise RequestError(f"{needed}, got {len(params)}")
    return params
