"""``python -m kvist`` is ``kvist``."""

from kvist.cli.main import run

run()
