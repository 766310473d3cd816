"""Tiny random models for tests: seeded configs and weights of every family, the same bits on every machine.

Neither an ML framework nor kvist's compute code is used here; the oracle's recording script, the oracle tests and
the tests that only need some model all take theirs from here.
"""
