"""Every error and warning the package raises on purpose.

AcclimateError
├── UnknownMethod (LookupError)        no method of that name
├── InvalidConfig (ValueError)         a hyper-parameter that is unknown or out of range
├── UnsuitableModel (ValueError)       the model cannot be adapted in the way asked for
├── BadInput (ValueError)              a batch, a source set or a path that cannot be used
├── ArtifactError (ValueError)         a file of ours that cannot be used
│   ├── CorruptFile                    truncated, altered, or not one of our files
│   ├── ArtifactMissing                a method needs a part that was not prepared
│   ├── ArtifactMismatch               prepared for, or saved from, something else
│   └── ArtifactVersion                written by a newer acclimate
├── NotAdapted (RuntimeError)          used after unwrap(), wrapped twice, called in inference mode
├── DownloadFailed (OSError)           a file could not be had from where it is published
└── MissingExtra (ImportError)         an optional dependency is not installed

AcclimateWarning (UserWarning)         something was done differently from what one might expect

Each message says what was expected, what was found, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AcclimateError(Exception):
    """Base of all errors raised on purpose."""


class UnknownMethod(AcclimateError, LookupError):
    """No method of that name is registered."""


class InvalidConfig(AcclimateError, ValueError):
    """A hyper-parameter does not exist or cannot have that value."""


class UnsuitableModel(AcclimateError, ValueError):
    """The model cannot be adapted in the way asked for."""


class BadInput(AcclimateError, ValueError):
    """A batch, a source set or a path cannot be used; nothing was changed."""


class ArtifactError(AcclimateError, ValueError):
    """A file written by acclimate cannot be used."""


class CorruptFile(ArtifactError):
    """The file is truncated, altered, or not one of ours."""


class ArtifactMissing(ArtifactError):
    """A method needs a part of the artifact that is not there."""


class ArtifactMismatch(ArtifactError):
    """The file belongs to another model, method or configuration."""


class ArtifactVersion(ArtifactError):
    """The file was written by a newer major version."""


class NotAdapted(AcclimateError, RuntimeError):
    """The adapted model was used where it cannot work."""


class DownloadFailed(AcclimateError, OSError):
    """No place where the file is published gave it."""


class MissingExtra(AcclimateError, ImportError):
    """An optional dependency is not installed."""


class AcclimateWarning(UserWarning):
    """Something was done differently from what one might expect."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint to append to an error: the nearest known name, then all of them.

    >>> did_you_mean("tnet", ["tent", "norm"])
    'Did you mean "tent"? Known: norm, tent.'
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f'Did you mean "{near[0]}"? ' if near else ""
    return f"{hint}Known: {', '.join(names) or 'none'}."
