"""Identity over every tiny model that the oracles know, both codecs, all weights: long searches for a difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proof.cases import CASES, Case
from proof.ground import Ground, differing, logits_in, run_histories
from proof.process import answer, start
from tiny.models import tiny_models

TINY = [Case(model.name, model.config, codec=codec) for model in tiny_models() for codec in ("f32", "bf16")]
CONVERTED = [
    Case(f"{model.name}-{weights}", model.config, weights=weights)
    for model in tiny_models()
    for weights in ("q8", "q4")
]


@pytest.mark.parametrize("case", [*CASES.values(), *TINY, *CONVERTED], ids=lambda case: f"{case.name} {case.codec}")
def test_any_history(case: Case, tmp_path: Path) -> None:
    ground = Ground(case, tmp_path)
    run_histories(ground, 60, 50)

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(chunks=st.lists(st.integers(1, 9) | st.integers(1, 256), min_size=1, max_size=60))
    def check(chunks: list[int]) -> None:
        found = logits_in(ground.decoder, case.new_cache(ground.decoder), ground.texts[1], chunks)
        assert differing(found, ground.expected[1]) == []

    check()
    for threads in (1, 3, 16):
        decoder = case.load(ground.path, threads)
        for chunk in (256, 3, 1):
            found = logits_in(decoder, case.new_cache(decoder), ground.texts[0], [chunk])
            assert differing(found, ground.expected[0]) == []
        decoder.close()
    ground.decoder.close()


PROGRAM = """
import hashlib, json, sys
from pathlib import Path
from proof.ground import Ground
from sweeps.test_identity import CONVERTED, TINY
found = {}
for number, case in enumerate(TINY[1::2] + CONVERTED[::2]):
    folder = Path(sys.argv[1]) / str(number)
    folder.mkdir()
    ground = Ground(case, folder)
    found[case.name] = [hashlib.sha256(rows.tobytes()).hexdigest() for rows in ground.expected]
    ground.decoder.close()
print(json.dumps(found))
"""


def test_avx2_gives_the_bytes_of_this_processor(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    here = start("-c", PROGRAM, str(folders[0]))
    there = start("-c", PROGRAM, str(folders[1]), NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="")
    assert answer(here, timeout_s=3000) == answer(there, timeout_s=3000)
