"""The exceptions that kvist raises for what a user can put right.

    KvistError
    ├── CheckpointError      a model file or directory can't be used
    │   └── UnsupportedError it is sound, but of a kind that kvist doesn't run
    ├── SpecError            a setting or config contradicts itself or the model
    ├── CapacityError        the memory that was asked for isn't there
    ├── RequestError         a prompt or a sampling setting can't be served
    └── NumericsError        NaN or infinity where a number was needed

Every message is one line: what, got, allowed, what to do. Mistakes of kvist's own are assertions with
numbers, never one of these.
"""

from __future__ import annotations


class KvistError(Exception):
    """Base of everything that kvist refuses; the command line prints it as one line and exits with 1."""


class CheckpointError(KvistError):
    """A model file or directory is missing, damaged or incomplete."""


class UnsupportedError(CheckpointError):
    """A sound file of a kind that kvist doesn't run; the message names the kinds it does."""


class SpecError(KvistError):
    """A setting or a model config contradicts itself, or is out of its range."""


class CapacityError(KvistError):
    """Memory that was asked for isn't there; the message names the bytes."""


class RequestError(KvistError):
    """A prompt or a sampling setting that can't be served."""


class ContextWarning(UserWarning):
    """Queries may see tokens further back than any in training, where a model knows no positions."""


class NumericsError(KvistError):
    """NaN or infinity met where a finite number was needed; the message names the layer and token."""
