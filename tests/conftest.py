"""Settings that hold for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: the first call of a kernel compiles it. In CI the same examples every time, elsewhere new ones.
settings.register_profile("kvist", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.register_profile("thorough", settings.get_profile("kvist"), max_examples=2000, derandomize=False)
settings.load_profile("kvist")
