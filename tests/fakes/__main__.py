"""The command line on the fake model, as a process of its own: ``python -m fakes generate -p Hello``.

The environment sets the fake: ``FAKE_STEP_S`` is how long a step takes, ``FAKE_STEP_TOKENS`` how many rows it takes,
``FAKE_CONTEXT`` the context's tokens, ``FAKE_ANSWER`` what a prompt is followed by,
``FAKE_MARKER`` a file that the first step makes.
"""

from __future__ import annotations

import os

import pytest

from fakes.model import fake_spec, install
from kvist.cli.main import run

install(
    pytest.MonkeyPatch(),
    fake_spec(int(os.environ.get("FAKE_CONTEXT", "4096"))),
    step_s=float(os.environ.get("FAKE_STEP_S", "0")),
    step_tokens=int(os.environ.get("FAKE_STEP_TOKENS", "256")),
    marker=os.environ.get("FAKE_MARKER"),
    answer=list(os.environ.get("FAKE_ANSWER", "").encode()),
)
run()
