"""Source prototypes, and the projector that is trained with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.errors import BadInput, UnsuitableModel
from acclimate.functional.pixels import sample_rows
from acclimate.functional.swr_nsp import move_prototypes, prototype_logits
from acclimate.functional.views import apply_views, get_views
from acclimate.introspect import ModelInfo, get_head
from acclimate.options import hp
from acclimate.parts.encoder import Encoded
from acclimate.parts.part import Computed, Context, Part, Saved, check_views, register_part
from acclimate.schema import Anything, Fields, Number, Schema, TensorOf

#: Up to this many classes, depth "auto" means no projector. The paper uses none for 10 classes and
#: two layers for 100, and does not state a limit; this is the geometric mean of both.
FEW_CLASSES = 31


@register_part
@dataclass(frozen=True, kw_only=True)
class Prototypes(Part):
    """One prototype per class, and the projector (paper, section 3.3 and supplement C).

    The tensors are `prototypes/embedding` (K, d) and the projector's weights `projector/<name>`.
    Prototypes of models that predict every pixel are an extension of the paper: the same number of
    pixels of each class is sampled from each image, at the resolution of the head's input.
    """

    name: ClassVar[str] = "prototypes"
    dense: ClassVar[bool] = True

    source: str = hp(
        "embedding",
        choices=("embedding", "classifier"),
        help="embedding: moving averages of projections, or of features without a projector; "
        "classifier: the rows of the head's weight",
    )
    depth: int | str = hp(
        "auto",
        choices=("auto", 0, 1, 2, 3),
        help="number of layers of the projector; auto: 0 for few classes, 2 for many",
    )
    width: int = hp(512, low=1, help="output width of the projector")
    hidden: int = hp(
        512,
        low=1,
        help="hidden width of the projector; not stated in the paper, 512 equals the output width",
    )
    epochs: int = hp(20, low=1, help="passes over the source data for training the projector")
    momentum: float = hp(0.99, low=0.0, high=0.999999, help="momentum of the moving averages (α)")
    temperature: float = hp(0.1, low=1e-6, help="temperature of the nearest-prototype softmax (τ)")
    lr: float = hp(1e-3, low=1e-12, help="learning rate of the projector; not stated in the paper")
    optimizer: str = hp(
        "adam",
        choices=("adam", "sgd"),
        help="optimiser of the projector; sgd uses Nesterov momentum of 0.9",
    )
    views: Any = hp("projector", help="transforms for training the projector: a name or a list")
    pixels: int = hp(
        64, low=1, help="pixels per class and image, if the model predicts every pixel"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        get_views(self.views)

    card_schema: ClassVar[Schema] = Fields(
        {
            "projector_depth": Number(int, low=0, high=3),
            "hidden": Number(int, low=1, high=2**20),
            "width": Number(int, low=1, high=2**20),
        },
        others=Anything(),
    )

    @classmethod
    def tensor_schemas(cls, saved: Saved) -> Mapping[str, Schema]:
        depth, hidden, width = (saved.card[name] for name in ("projector_depth", "hidden", "width"))
        schemas: dict[str, Schema] = {
            "prototypes/embedding": TensorOf(("classes", width if depth else "features"))
        }
        with torch.device("meta"):
            projector = build_projector(depth, saved.n_features or 1, hidden, width)
        for name, tensor in projector.state_dict().items():
            dtype = None if tensor.is_floating_point() else tensor.dtype
            low = 0 if name.endswith(("running_var", "num_batches_tracked")) else None
            schemas[f"projector/{name}"] = TensorOf(tuple(tensor.shape), dtype, low=low)
        return schemas

    def depth_for(self, n_classes: int) -> int:
        """Return the number of projector layers for that many classes.

        >>> Prototypes().depth_for(10), Prototypes().depth_for(100)
        (0, 2)
        """
        if self.source == "classifier":
            return 0
        if isinstance(self.depth, int):
            return self.depth
        return 0 if n_classes <= FEW_CLASSES else 2

    def n_passes(self, info: ModelInfo) -> int:
        if self.source == "classifier":
            return 0
        return self.epochs if self.depth_for(info.known_classes) else 1

    def check(self, model: nn.Module, info: ModelInfo) -> None:
        if info.is_dense and self.depth_for(info.known_classes):
            check_views(self.views, 'Prototypes(views="test")')

    def compute(self, context: Context) -> Computed:
        info, source, generator = context.info, context.source, context.generator
        depth = self.depth_for(info.known_classes)
        card = {**self.to_card(), "projector_depth": depth}
        if self.source == "classifier":
            return {"prototypes/embedding": _classifier_rows(context.model, info)}, card
        reference = next(iter(context.model.parameters()))
        seed = int(torch.randint(2**31, (), generator=generator))
        projector = build_projector(depth, info.known_width, self.hidden, self.width, seed)
        projector.to(reference)
        width = self.width if depth else info.known_width
        # All pixels of one class in an image together have the weight of one sample.
        momentum = self.momentum ** (1 / self.pixels if info.is_dense else 1)
        moving = _Moving(source.n_classes, width, reference, momentum)
        if depth == 0:
            for x, y in source.iterate("prototypes"):
                found = context.encoder.recall(x)
                picked, y = self._pick(found, y, context)
                moving.move(found.features[picked], y)
            context.encoder.end_pass()
            moving.check_complete()
            return {"prototypes/embedding": moving.prototypes}, card
        self._start(moving, projector, context)
        history = self._train(moving, projector, context)
        weights = {f"projector/{name}": value for name, value in projector.state_dict().items()}
        return {"prototypes/embedding": moving.prototypes, **weights}, {**card, "loss": history}

    def _start(self, moving: _Moving, projector: nn.Module, context: Context) -> None:
        """Run until every class has a prototype (steps 1 and 2 of the paper), at most one pass."""
        projector.train()
        usable = False
        for _, features, _, y in self._iterate("first prototypes", context):
            usable = True
            with torch.no_grad():
                moving.move(projector(features), y)
            if bool(moving.seen.all()):
                return
        if not usable:
            raise BadInput(
                "single_sample",
                "Expected source batches of more than one sample to train a projector, found "
                "single samples only. Use larger batches.",
            )
        moving.check_complete()

    def _train(self, moving: _Moving, projector: nn.Module, context: Context) -> list[float]:
        """Train the projector with the embedding loss (eq. 6) while updating the prototypes.

        Returns:
            The mean loss of each epoch.
        """
        optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(projector.parameters(), lr=self.lr)
            if self.optimizer == "adam"
            else torch.optim.SGD(projector.parameters(), lr=self.lr, momentum=0.9, nesterov=True)
        )
        source, encoder, views = context.source, context.encoder, get_views(self.views)
        history = []
        for epoch in range(self.epochs):
            losses = []
            stage = f"projector, epoch {epoch + 1} of {self.epochs}"
            for x, features, picked, y in self._iterate(stage, context):
                view = apply_views(views, x, source.normalization, context.generator)
                view_features = encoder.encode(view).features[picked]
                with torch.enable_grad():
                    embeddings = projector(features)
                    # The prototypes are updated before the loss; the supplement leaves it open.
                    moving.move(embeddings, y)
                    first, second = (
                        F.cross_entropy(
                            prototype_logits(part, moving.prototypes, self.temperature), y
                        )
                        for part in (embeddings, projector(view_features))
                    )
                    loss = first + second
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(float(loss.detach()))
            encoder.end_pass()
            history.append(sum(losses) / len(losses))
        return history

    def _iterate(
        self, stage: str, context: Context
    ) -> Iterator[tuple[Tensor, Tensor, slice | Tensor, Tensor]]:
        """Yield images, the features to use, their indices and labels: two at least, for BatchNorm.

        One image is enough if every pixel is predicted.
        """
        for x, y in context.source.iterate(stage):
            if len(x) == 1 and context.source.ignore_label is None:
                continue
            found = context.encoder.recall(x)
            picked, y = self._pick(found, y, context)
            if len(y) >= 2:
                yield x, found.features[picked], picked, y

    def _pick(self, found: Encoded, y: Tensor, context: Context) -> tuple[slice | Tensor, Tensor]:
        """Return the indices and labels of the features to use: all samples, or some pixels."""
        if found.feature_grid is None:
            return slice(None), y
        labels, is_labelled = context.source.label_rows(y, found.feature_grid)
        picked = sample_rows(labels, is_labelled, len(y), self.pixels, context.generator)
        return picked, labels[picked]


class _Moving:
    """Moving averages of the prototypes."""

    def __init__(self, n_classes: int, width: int, like: Tensor, momentum: float) -> None:
        self.prototypes = torch.zeros(n_classes, width, device=like.device, dtype=like.dtype)
        self.seen = torch.zeros(n_classes, dtype=torch.bool, device=like.device)
        self.momentum = momentum

    def move(self, embeddings: Tensor, y: Tensor) -> None:
        self.prototypes, self.seen = move_prototypes(
            self.prototypes, self.seen, embeddings.detach(), y, self.momentum
        )

    def check_complete(self) -> None:
        missing = (~self.seen).nonzero().flatten().tolist()
        if missing:
            shown = ", ".join(map(str, missing[:20])) + (" …" if len(missing) > 20 else "")
            raise BadInput(
                "missing_classes",
                f"Expected source samples of all {len(self.seen)} classes, found none of "
                f"{len(missing)} classes: {shown}. Pass source data of all classes that the model "
                "predicts; each needs a prototype.",
                missing=tuple(missing),
            )


def _classifier_rows(model: nn.Module, info: ModelInfo) -> Tensor:
    weight = getattr(get_head(model, info.known_head), "weight", None)
    shape = (info.n_classes, info.n_features)
    if not isinstance(weight, Tensor) or weight.flatten(1).shape != shape:
        raise UnsuitableModel(
            "wrong_head",
            f'Expected the head "{info.head}" to have a weight of shape {shape}, one row per '
            "class, to take prototypes from. Use prototypes from source data: "
            'Prototypes(source="embedding").',
            head=info.head,
        )
    return weight.detach().flatten(1).clone()


def build_projector(depth: int, n_in: int, hidden: int, n_out: int, seed: int = 0) -> nn.Module:
    """Build a projector of `depth` linear layers; depth 0 is the identity.

    The layers are Linear – BatchNorm – ReLU – … – Linear, as in the paper's figure. The initial
    weights depend on the seed only; the global random state is unchanged.

    >>> [type(layer).__name__ for layer in build_projector(2, 8, 16, 4)]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    """
    if depth == 0:
        return nn.Identity()
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(depth - 1):
            layers += [nn.Linear(n_in, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
            n_in = hidden
        layers.append(nn.Linear(n_in, n_out))
    return nn.Sequential(*layers)
