"""How long a step will take: a linear model of what is in it, learnt from the steps that were measured.

The coefficients walk at random and each step is a noisy look at one of their sums (a Kalman filter): what the latest
steps had in them is known well, and what they hadn't stays as it was last seen, with a doubt that grows up to that of
the beginning. One step that took unreasonably long (another process, a page fault) moves nothing by more than three
times its doubt.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Coefficients = npt.NDArray[np.float64]

DRIFT = 0.004
"""How much of the most doubt is added with each step."""
BESIDE = 0.01
"""The share of that for what decodes take, in a step in which a prompt is, too: it can't be told apart there."""
NUM_DECODE = 4
"""The first coefficients are of what decodes take; the rest of what prompts take besides."""
FLOORS = np.array((1e-3, 1e-4, 3e-7, 1e-4, 1e-4, 1e-7, 3e-7))
"""Seconds by which each coefficient is in doubt at least, however small it was guessed."""
NOISE = 0.08
"""A step's own scatter, as a share of its time."""
CLOSE, LOOK_EVERY = 0.05, 8
"""Decodes predicted that well teach little, and looking takes time: only each so many-th is looked at."""
MOST_DEVIATIONS = 3.0
LEAST_SHARE = 0.05
"""No coefficient falls below this share of the first guess: nothing is free."""


class Load(NamedTuple):
    """What is in a step: rows of decodes, tokens that they read, rows of logits; and of prompts.

    ``past_reads`` are the tokens before a prompt's rows, once for all of these: few rows cost more each.
    """

    rows: int = 0
    decode_reads: int = 0
    outputs: int = 0
    prompt_rows: int = 0
    prompt_reads: int = 0
    past_reads: int = 0

    def plus(self, other: Load) -> Load:
        return Load(
            self.rows + other.rows,
            self.decode_reads + other.decode_reads,
            self.outputs + other.outputs,
            self.prompt_rows + other.prompt_rows,
            self.prompt_reads + other.prompt_reads,
            self.past_reads + other.past_reads,
        )


def prefill_load(position: int, count: int, num_outputs: int) -> Load:
    """The load of ``count`` rows in a row, of which the first sees ``position`` tokens before it."""
    return Load(0, 0, num_outputs, count, count * position + count * (count + 1) // 2, position)


def decode_load(num_rows: int, num_before: int) -> Load:
    """The load of rows of as many answers that see ``num_before`` tokens before them in all."""
    return Load(num_rows, num_rows + num_before, num_rows)


class CostModel:
    """Seconds = constant + row x rows + ... ; ``guess`` are the seven coefficients to begin with."""

    def __init__(self, guess: tuple[float, ...]) -> None:
        self._guess = np.array(guess)
        self._least = LEAST_SHARE * self._guess
        self._take(self._guess.copy())
        self._doubt = np.diag(self._most_doubt())
        self.num_seen = 0

    def _take(self, coefficients: Coefficients) -> None:
        self._now = coefficients
        numbers: list[float] = coefficients.tolist()
        self._step_s, self._row_s, self._decode_s, self._output_s, self._prompt_s, self._prefill_s, self._past_s = (
            numbers
        )

    def _most_doubt(self) -> Coefficients:
        """The square of how far each coefficient may be off."""
        most: Coefficients = np.maximum(np.maximum(self._guess, self._now), FLOORS) ** 2
        return most

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Seconds a step, a row, a token read in a decode, a row of logits; a row of prompts, a token read, a past."""
        return tuple(self._now.tolist())

    def predict(self, load: Load) -> float:
        """Seconds that a step of this load takes."""
        return (
            self._step_s
            + self._row_s * load.rows
            + self._decode_s * load.decode_reads
            + self._output_s * load.outputs
            + self._prompt_s * load.prompt_rows
            + self._prefill_s * load.prompt_reads
            + self._past_s * load.past_reads
        )

    def observe(self, load: Load, seconds: float) -> None:
        """Learn from a step that took ``seconds``; of decodes that took what they were thought to, from few."""
        self.num_seen += 1
        is_known = not load.prompt_rows and abs(seconds - self.predict(load)) < CLOSE * seconds
        if is_known and self.num_seen % LOOK_EVERY:
            return
        x = np.array((1.0, *load))
        most = self._most_doubt()
        drift = DRIFT * most
        if load.prompt_rows:
            drift[:NUM_DECODE] *= BESIDE
        doubt = self._doubt + np.diag(drift)
        excess = np.sqrt(np.minimum(1.0, most / doubt.diagonal()))
        doubt *= excess[:, None] * excess[None, :]
        gain = doubt @ x
        predicted = float(self._now @ x)
        variance = float(x @ gain) + (NOISE * max(predicted, seconds)) ** 2
        limit = MOST_DEVIATIONS * variance**0.5
        surprise = max(-limit, min(limit, seconds - predicted))
        gain /= variance
        self._doubt = doubt - np.outer(gain, x @ doubt)
        self._take(np.maximum(self._now + gain * surprise, self._least))

    def rows_within(self, load: Load, seconds: float, position: int, most: int) -> int:
        """The most rows of a prompt, from ``position`` on, that can join ``load`` in ``seconds`` in all.

        What is in doubt counts as time, so that a machine that isn't known yet is asked for less.
        """
        count = self._rows_within(load, seconds, position, most)
        if count > 0 and seconds < math.inf:
            doubt_s = self.doubt_s(load.plus(prefill_load(position, count, 1)))
            count = self._rows_within(load, seconds - doubt_s, position, count)
        return count

    def doubt_s(self, load: Load) -> float:
        """By how many seconds the prediction may be off."""
        x = np.array((1.0, *load))
        variance = float(x @ self._doubt @ x)
        return math.sqrt(variance)

    def _rows_within(self, load: Load, seconds: float, position: int, most: int) -> int:
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict(load.plus(prefill_load(position, middle, 1))) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low


def first_guess(weights_bytes: int, kv_token_bytes: int, logits_bytes: int) -> tuple[float, ...]:
    """Coefficients for a model before anything is measured, on a machine of 20 GB/s and a few hundred GOP/s.

    A pass reads the weights; a row multiplies with each of them; a decode reads keys and values from memory, a
    prefill's rows share what they read.
    """
    row_s, read_s = weights_bytes / 4e11 + 1e-5, kv_token_bytes / 1.5e10 + 1e-9
    decodes = (weights_bytes / 3e10 + 2e-4, row_s, read_s, logits_bytes / 4e9 + 1e-5)
    return (*decodes, row_s, kv_token_bytes / 6e10 + 1e-9, read_s)
