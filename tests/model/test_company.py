"""Several at once: models in threads of a process, callers of one decoder, children of a fork; each gets its bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from proof.cases import CASES
from proof.process import answer, start
from tiny.stream import Stream

from kvist import LLM, CacheSpec, SamplingParams
from kvist.model.decoder import Part

PARAMS = SamplingParams(max_tokens=40, temperature=0.8, seed=5, ignore_eos=True)


def all_at_once(calls: list[Callable[[], None]]) -> None:
    """Run each in a thread, and raise what any of them raised."""
    errors: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 (it is raised below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def test_two_models_generate_at_the_same_time(tmp_path: Path) -> None:
    one = LLM(CASES["q4_1"].write(tmp_path), threads=2)
    other = LLM(CASES["window"].write(tmp_path), cache=CacheSpec("f32"), threads=3)
    prompts = [Stream(number, "prompt").integers(30, 67) for number in range(6)]
    expected = {
        (llm, number): llm.generate(prompt, PARAMS, digest=True).logits_sha256
        for llm in (one, other)
        for number, prompt in enumerate(prompts)
    }
    found: dict[tuple[LLM, int], str | None] = {}

    def ask(llm: LLM, numbers: range) -> None:
        for number in numbers:
            found[llm, number] = llm.generate(prompts[number], PARAMS, digest=True).logits_sha256

    all_at_once(
        [
            lambda llm=llm, numbers=numbers: ask(llm, numbers)  # type: ignore[misc]
            for llm in (one, other)
            for numbers in (range(3), range(3, 6))
        ]
    )
    assert found == expected
    one.close()
    other.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_several_callers_of_one_decoder(tmp_path: Path, threads: int) -> None:
    """Each with a cache of its own; passes take turns."""
    case = CASES["mixed"]
    decoder = case.load(case.write(tmp_path), threads)
    token_ids = Stream(1, "shared").integers(120, 67)

    def logits(size: int) -> bytes:
        sequence = case.new_cache(decoder).new_sequence()
        pieces = [token_ids[at : at + size] for at in range(0, 120, size)]
        return np.concatenate([decoder.forward([Part(sequence, piece, "all")]) for piece in pieces]).tobytes()

    expected, found = logits(120), []
    all_at_once([lambda size=size: found.append(logits(size)) for size in (1, 2, 3, 8, 30)])  # type: ignore[misc]
    assert found == [expected] * 5
    decoder.close()


FORK = """
import json, os, sys, threading
from pathlib import Path
from proof.cases import CASES
from kvist import LLM, SamplingParams

def digest(llm):
    return llm.generate([3, 1, 4, 1, 5], SamplingParams(max_tokens=30, ignore_eos=True), digest=True).logits_sha256

def in_a_child(llm):
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.write(theirs, digest(llm).encode())
        llm.close()
        os._exit(0)
    found = os.read(ours, 64).decode()
    assert os.waitpid(child, 0)[1] == 0
    return found

llm, other = (LLM(CASES[name].write(Path(sys.argv[1])), threads=2) for name in ("q4_1", "bf16"))
fresh = in_a_child(llm)  # before this process has computed anything
found = [digest(llm), fresh, in_a_child(llm), digest(llm)]
is_over = threading.Event()

def keep_busy():
    while not is_over.is_set():
        digest(other)

busy = threading.Thread(target=keep_busy)
busy.start()
found += [in_a_child(llm) for _ in range(5)]  # while another model computes in a thread that the child does not have
is_over.set()
busy.join()
found.append(digest(llm))
print(json.dumps(found))
"""


def test_a_forked_child_generates_the_same(tmp_path: Path) -> None:
    found = answer(start("-c", FORK, str(tmp_path)), timeout_s=300)
    assert len(found) == 10
    assert len(set(found)) == 1
