"""Parts of an artifact: statistics that are computed on source data.

A part is a frozen dataclass of options with a method that computes tensors. The artifact stores the
tensors, and the options as the part's card. Custom parts are used like those of the package:

    @dataclass(frozen=True, kw_only=True)
    class Brightness(acclimate.Part):
        name = "brightness"
        n_batches: int = acclimate.hp(8, low=1, help="number of source batches to average")

        def compute(self, context):
            batches = itertools.islice(context.source.iterate("brightness"), self.n_batches)
            mean = torch.stack([x.mean() for x, _ in batches]).mean()
            return {"brightness/mean": mean}, self.to_card()

    artifact = acclimate.prepare(model, source, parts=[Brightness()])
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from acclimate.errors import InvalidConfig
from acclimate.forward import Call, get_logits
from acclimate.functional.precision import SpeedName
from acclimate.functional.views import get_views
from acclimate.introspect import ModelInfo
from acclimate.options import Registry, Values
from acclimate.parts.encoder import Encoder
from acclimate.parts.source import SourceData
from acclimate.schema import Anything, Items, Schema

#: Tensors by name, `<part>/<name>`, and the entry of the part in the artifact's card.
Computed = tuple[dict[str, Tensor], dict[str, Any]]


@dataclass(frozen=True)
class Context:
    """Everything that a part is computed from.

    Attributes:
        model: The frozen model, which must not be changed.
        info: Where its features and logits are.
        source: Labelled batches, validated and on the model's device.
        encoder: Computes features and logits of source images; it caches those of earlier passes.
        generator: Random number generator; every part has its own.
        call: How the model is called, if not with the images alone.
        speed: `"fast"` allows bfloat16 if the device supports it.
    """

    model: nn.Module
    info: ModelInfo
    source: SourceData
    encoder: Encoder
    generator: torch.Generator
    call: Call | None = None
    speed: SpeedName = "exact"

    def logits(self, x: Tensor) -> Tensor:
        """Run the model on a batch of images in its current mode and return the logits."""
        output = self.model(x) if self.call is None else self.call.make(self.model, x)
        return get_logits(output, self.info.logits_at)


@dataclass(frozen=True)
class Saved:
    """An artifact's content, as a part sees it when a file is loaded.

    Attributes:
        names: Names of all tensors.
        card: The entry of the part in the artifact's card, which fits the part's `card_schema`.
        shapes: Shapes of the model's parameters and buffers, by name.
        n_features: Width of the features; None if it is not known.
    """

    names: Collection[str]
    card: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    n_features: int | None = None

    def by_parameter(
        self, prefixes: Sequence[str], make: Callable[[tuple[int, ...], str], Schema]
    ) -> dict[str, Schema]:
        """Return schemas of tensors `<prefix>/<parameter>`.

        A parameter with a tensor of one prefix must have tensors of all. `make` returns the schema,
        given the shape of the parameter and the prefix.
        """
        found = [name.partition("/") for name in self.names]
        used = dict.fromkeys(name for prefix, _, name in found if prefix in prefixes)
        return {
            f"{prefix}/{name}": make(self.shapes[name], prefix)
            for name in used
            if name in self.shapes
            for prefix in prefixes
        }


@dataclass(frozen=True, kw_only=True)
class Part(Values):
    """Base class of all parts: options as fields, and `compute`."""

    name: ClassVar[str] = ""
    #: Whether it can be computed for models that predict every pixel.
    dense: ClassVar[bool] = False
    #: Whether it is always computed in the model's own precision.
    always_exact: ClassVar[bool] = False
    #: What the part's entry in the card must look like: the fields that are used after loading.
    card_schema: ClassVar[Schema] = Items(Anything())

    @classmethod
    def tensor_schemas(cls, saved: Saved) -> Mapping[str, Schema] | None:
        """Return what each tensor of the part must look like when a file is loaded, by name.

        The names of sizes are `"classes"` and `"features"`. None, the default, accepts any finite
        tensors.
        """
        return None

    def compute(self, context: Context) -> Computed:
        """Return tensors by name, `<part>/<name>`, and the card: options and sample counts."""
        raise TypeError(f"{type(self).__name__} must define compute()")

    def check(self, model: nn.Module, info: ModelInfo) -> None:
        """Refuse a model that the part does not support, before anything is computed."""

    def n_passes(self, info: ModelInfo) -> int:
        """Return how many times `context.encoder` encodes all source images."""
        return 0

    def to_card(self) -> dict[str, Any]:
        """Return the options as plain JSON types, with named transforms resolved."""
        values = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}
        if "views" in values:
            values["views"] = get_views(values["views"]).to_dict()
        return values


def check_views(views: Any, instead: str) -> None:
    """Refuse views that move pixels, if pixels have labels."""
    if get_views(views).moves_pixels:
        raise InvalidConfig(
            "views_move_pixels",
            "Expected views that do not move pixels, because this model predicts every pixel, "
            f"found crops or flips. Use {instead}.",
        )


#: The order of preparation. The position is the offset of the random seed; do not reorder:
#: artifacts must stay reproducible.
_ORDER = (
    *("penalty", "prototypes", "features", "fisher"),
    *("contrast", "accuracy", "mirror", "confidence"),
)


def get_place(part: Part) -> int:
    """Return the position of a part in the order of preparation; custom parts come last."""
    return _ORDER.index(part.name) if part.name in _ORDER else len(_ORDER)


def make_generator(part: str, seed: int) -> torch.Generator:
    """Return the random number generator of a part, which is independent of other parts."""
    is_ours = part in _ORDER
    number = (
        _ORDER.index(part)
        if is_ours
        else int.from_bytes(hashlib.sha256(part.encode()).digest()[:6])
    )
    return torch.Generator().manual_seed(seed * 1000 + number)


#: The registered parts by name.
PARTS = Registry(Part)
register_part = PARTS.register


def get_part(part: str | Part | type[Part]) -> Part:
    """Return a part with its options, given a part, a class of parts or a name."""
    return part if isinstance(part, Part) else PARTS.build(part)
