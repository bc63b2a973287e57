"""Options of the parts of an artifact; the defaults are the paper's."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from acclimate.errors import InvalidConfig
from acclimate.functional.gradients import Granularity
from acclimate.functional.views import get_views

#: Up to this many classes the automatic projector is none: the paper uses none for 10 classes and
#: two layers for 100; in between it is silent, and this is their geometric mean.
FEW_CLASSES = 31


@dataclass(frozen=True, kw_only=True)
class PenaltyOptions:
    """How the penalty vector is computed (paper, eq. 2).

    Attributes:
        n_samples: Source samples used; N in the paper.
        granularity: What one penalty is for. A `"tensor"` is one entry of `named_parameters()`;
            the paper counts 161 such units in a ResNet-50, so this is its "layer".
        exponent: Applied after scaling to [0, 1]; 2 in the paper, 1 and 3 are its variants.
        views: Transforms that stand for the shift: a name or a list.
    """

    n_samples: int = 1024
    granularity: Granularity = "tensor"
    exponent: float = 2.0
    views: Any = "swr"

    def __post_init__(self) -> None:
        _check(self, "n_samples", _is_count(self.n_samples), "a whole number of at least 1")
        known = get_args(Granularity)
        _check_choice(self, "granularity", known, ", ".join(known))
        _check(self, "exponent", _is_positive(self.exponent), "a positive number")
        get_views(self.views)


@dataclass(frozen=True, kw_only=True)
class PrototypeOptions:
    """How the source prototypes and the projector are made (paper, section 3.3 and supplement C).

    Attributes:
        source: `"embedding"`: moving averages of projections, or of features if there is no
            projector; `"classifier"`: the rows of the head's weight.
        depth: Layers of the projector: 0 to 3, or `"auto"`: none for few classes, 2 for many.
        width: Output width of the projector.
        hidden: Width inside the projector. The paper does not state it; 512, the only width it
            does state, is taken.
        epochs: Passes over the source data for training the projector.
        momentum: Of the moving averages; α in the paper.
        temperature: τ in the paper.
        lr: Learning rate for the projector, with Adam. Optimiser and rate are not stated in the
            paper; this is the optimiser it uses at test time, at the same rate.
        optimizer: `"adam"` or `"sgd"` (Nesterov, momentum 0.9).
        views: Transforms for training the projector: a name or a list.
        pixels: Of a model that predicts every pixel, how many pixels of a class an image gives at
            most, drawn at random. (Prototypes of pixels are not the paper's but ours.)
    """

    source: Literal["embedding", "classifier"] = "embedding"
    depth: int | Literal["auto"] = "auto"
    width: int = 512
    hidden: int = 512
    epochs: int = 20
    momentum: float = 0.99
    temperature: float = 0.1
    lr: float = 1e-3
    optimizer: Literal["adam", "sgd"] = "adam"
    views: Any = "projector"
    pixels: int = 64

    def __post_init__(self) -> None:
        _check_choice(self, "source", ("embedding", "classifier"), "embedding, classifier")
        _check(self, "depth", self.depth in ("auto", 0, 1, 2, 3), "auto, 0, 1, 2 or 3")
        for name in ("width", "hidden", "epochs", "pixels"):
            _check(self, name, _is_count(getattr(self, name)), "a whole number of at least 1")
        _check(self, "momentum", 0 <= self.momentum < 1, "a number from 0 to below 1")
        for name in ("temperature", "lr"):
            _check(self, name, _is_positive(getattr(self, name)), "a positive number")
        _check_choice(self, "optimizer", ("adam", "sgd"), "adam or sgd")
        get_views(self.views)

    def depth_for(self, n_classes: int) -> int:
        """Return the number of projector layers for that many classes.

        >>> PrototypeOptions().depth_for(10), PrototypeOptions().depth_for(100)
        (0, 2)
        """
        if self.source == "classifier":
            return 0
        if self.depth != "auto":
            return self.depth
        return 0 if n_classes <= FEW_CLASSES else 2


@dataclass(frozen=True, kw_only=True)
class FisherOptions:
    """How the Fisher information of EATA is measured; the defaults are its authors'.

    Attributes:
        n_samples: Source samples used.
        batch_size: Samples whose gradients are averaged before they are squared.
    """

    n_samples: int = 2000
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("n_samples", "batch_size"):
            _check(self, name, _is_count(getattr(self, name)), "a whole number of at least 1")


@dataclass(frozen=True, kw_only=True)
class ContrastOptions:
    """How the source is summarised for TFA and TTT++; the defaults are their authors'.

    Attributes:
        n_samples: Source samples used, at most; there are as many in the training set of CIFAR.
        batch_size: Samples of a block. Distances at test time are measured in units of what they
            are between blocks of the source: give the number of samples that moments are taken
            over then, queue and batch together. A source of less than two blocks is halved.
        views: Transforms of the samples: a name, a list, or `"auto"`: with a projection head
            `"crop+flip"`, which the authors use and a jointly trained model has seen; without one
            `"none"`, for a model that has not seen crops has other features on them.
    """

    n_samples: int = 50_000
    batch_size: int = 1536
    views: Any = "auto"

    def __post_init__(self) -> None:
        for name in ("n_samples", "batch_size"):
            _check(self, name, _is_count(getattr(self, name)), "a whole number of at least 1")
        _check(self, "batch_size", self.batch_size > 1, "at least 2: one sample has no covariance")
        if self.views != "auto":
            get_views(self.views)

    def for_head(self, has_head: bool) -> ContrastOptions:
        """Return the options with the views chosen.

        >>> ContrastOptions().for_head(True).views, ContrastOptions().for_head(False).views
        ('crop+flip', 'none')
        """
        if self.views != "auto":
            return self
        return dataclasses.replace(self, views="crop+flip" if has_head else "none")


def to_card(options: PenaltyOptions | PrototypeOptions | ContrastOptions) -> dict[str, Any]:
    """Return the options as plain JSON types, transforms spelled out."""
    values = {spec.name: getattr(options, spec.name) for spec in dataclasses.fields(options)}
    return {**values, "views": get_views(options.views).to_dict()}


def _check(options: object, name: str, holds: bool, expected: str) -> None:
    if not holds:
        found = getattr(options, name)
        raise InvalidConfig(
            "out_of_range",
            f"{type(options).__name__}: expected {name} to be {expected}, found {found!r}.",
            option=name,
            found=found,
        )


def _check_choice(options: object, name: str, known: tuple[str, ...], expected: str) -> None:
    found = getattr(options, name)
    if found not in known:
        raise InvalidConfig(
            "unknown_name",
            f"{type(options).__name__}: expected {name} to be {expected}, found {found!r}.",
            kind=name,
            name=found,
            known=known,
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 1


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf
