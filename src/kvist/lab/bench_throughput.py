"""Generated tokens a second for so many users at once, prefill included: the whole run, from the first request on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvist.engine.engine import Engine
from kvist.engine.request import Request
from kvist.lab.ceiling import BestProbe, Ceiling
from kvist.lab.crowd import Crowd, greedy, made_up_ids, new_salt
from kvist.lab.timing import Timing, quantile

DEFAULT_USERS = (1, 4, 16, 32, 64)
PROMPT_TOKENS = 128
GENERATED_TOKENS = 128
REPEATS = 3
QUICK_TOKENS = 32


@dataclass(frozen=True)
class Throughput:
    """``users`` at once; each repetition's crowd as it went. What is told is the median over repetitions."""

    users: int
    prompt_tokens: int
    generated_tokens: int
    wall_s: tuple[float, ...]
    ttft_s: tuple[float, ...]
    ttft_p99_s: tuple[float, ...]
    itl_s: tuple[float, ...]
    itl_p99_s: tuple[float, ...]
    waste: tuple[float, ...]

    @property
    def generated_tokens_per_s(self) -> float:
        return self.users * self.generated_tokens / quantile(self.wall_s, 0.5)

    @property
    def best_tokens_per_s(self) -> float:
        """That of the repetition that was disturbed least."""
        return self.users * self.generated_tokens / min(self.wall_s)

    def as_json(self, factor: float) -> dict[str, object]:
        medians = {
            name: quantile(getattr(self, name), 0.5)
            for name in ("wall_s", "ttft_s", "ttft_p99_s", "itl_s", "itl_p99_s", "waste")
        }
        return {
            "users": self.users,
            "generated_tokens_per_s": self.generated_tokens_per_s,
            "generated_tokens_per_s_scaled": self.generated_tokens_per_s / factor,
            "best_tokens_per_s": self.best_tokens_per_s,
            **medians,
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
            "repeats": len(self.wall_s),
            "wall_spread": Timing(self.wall_s).as_json(),
        }


@dataclass(frozen=True)
class ThroughputBench:
    """All numbers of users, beside the ceiling of the same run."""

    ceiling: Ceiling
    runs: tuple[Throughput, ...]

    def as_json(self) -> dict[str, object]:
        """Return the document; with one number of users, its figures stand at the top, too."""
        runs = [run.as_json(self.ceiling.matmul_factor) for run in self.runs]
        alone = runs[0] if len(runs) == 1 else {}
        return {**alone, "runs": runs}


def bench_throughput(
    engine: Engine,
    users: Sequence[int],
    *,
    probe: BestProbe,
    prompt_tokens: int = PROMPT_TOKENS,
    generated_tokens: int = GENERATED_TOKENS,
    repeats: int = REPEATS,
    on_run: Callable[[Throughput], object] = bool,
) -> ThroughputBench:
    """Serve each number of users; ``on_run`` hears of each. The engine's pool has to hold all of them at once."""
    serve(engine, max(users), prompt_tokens, 2)  # compiles, and shows the cost model what a full step takes
    runs = []
    for number in users:
        crowds = [serve(engine, number, prompt_tokens, generated_tokens) for _ in range(repeats)]
        runs.append(_throughput(crowds, prompt_tokens, generated_tokens))
        probe.measure()
        on_run(runs[-1])
    return ThroughputBench(probe.best, tuple(runs))


def serve(engine: Engine, users: int, prompt_tokens: int, generated_tokens: int) -> Crowd:
    """Serve ``users`` with prompts that have nothing in common; return how it went."""
    crowd, salt = Crowd(engine), new_salt()
    for user in range(users):
        prompt = made_up_ids(engine.vocab_size, prompt_tokens, user)
        crowd.ask(Request(prompt, greedy(generated_tokens), salt=salt))
    crowd.finish()
    assert crowd.num_generated == users * generated_tokens, (crowd.num_generated, users, generated_tokens)
    return crowd


def _throughput(crowds: Sequence[Crowd], prompt_tokens: int, generated_tokens: int) -> Throughput:
    return Throughput(
        users=len(crowds[0].records),
        prompt_tokens=prompt_tokens,
        generated_tokens=generated_tokens,
        wall_s=tuple(crowd.wall_s for crowd in crowds),
        ttft_s=tuple(crowd.ttft_s() for crowd in crowds),
        ttft_p99_s=tuple(crowd.ttft_s(0.99) for crowd in crowds),
        itl_s=tuple(crowd.gap_s() for crowd in crowds),
        itl_p99_s=tuple(crowd.gap_s(0.99) for crowd in crowds),
        waste=tuple(crowd.mean_waste for crowd in crowds),
    )
