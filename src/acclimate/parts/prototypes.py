"""Source prototypes, and the projector that is trained around them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.errors import BadInput, InvalidConfig, UnsuitableModel
from acclimate.functional.pixels import sample_rows
from acclimate.functional.prototypes import move_prototypes, prototype_logits
from acclimate.functional.views import apply_views, get_views
from acclimate.parts.encoder import Encoded, Encoder
from acclimate.parts.options import PrototypeOptions, to_card
from acclimate.parts.source import Source
from acclimate.taps import Anatomy, get_head
from acclimate.terms.projector import build_projector


def prepare_prototypes(
    model: nn.Module,
    anatomy: Anatomy,
    source: Source,
    options: PrototypeOptions,
    generator: torch.Generator,
    encoder: Encoder | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return prototypes (and the projector's weights, if there is one), and the part's card.

    An encoder with a cache spares the model a second look at the source's images; their views are
    new in every epoch. Of a model that predicts every pixel, some pixels are drawn from each image,
    of each of its classes alike, at the resolution of the head's input.
    """
    depth = options.depth_for(anatomy.n_classes)
    card = {**to_card(options), "projector_depth": depth}
    if options.source == "classifier":
        return {"prototypes/embedding": _classifier_rows(model, anatomy)}, card
    reference = next(iter(model.parameters()))
    seed = int(torch.randint(2**31, (), generator=generator))
    projector = build_projector(depth, anatomy.n_features, options.hidden, options.width, seed)
    projector.to(reference)
    width = options.width if depth else anatomy.n_features
    encoder = Encoder(model, anatomy) if encoder is None else encoder
    # So that all pixels of an image together weigh what a sample weighs.
    momentum = options.momentum ** (1 / options.pixels if anatomy.is_dense else 1)
    moving = _Moving(source.n_classes, width, reference, momentum)
    if depth == 0:
        for x, y in source.iterate("prototypes"):
            found = encoder.recall(x)
            picked, y = _pick(found, y, source, options, generator)
            moving.move(found.features[picked], y)
        encoder.end_pass()
        moving.check_complete()
        return {"prototypes/embedding": moving.prototypes}, card
    if anatomy.is_dense and get_views(options.views).move_pixels:
        raise InvalidConfig(
            "views_move_pixels",
            "expected views that leave every pixel in its place, as this model predicts every "
            'pixel; found crops or mirror images. Use PrototypeOptions(views="test").',
        )
    _start(moving, projector, source, encoder, options, generator)
    history = _train(moving, projector, source, encoder, options, generator)
    weights = {f"projector/{name}": value for name, value in projector.state_dict().items()}
    return {"prototypes/embedding": moving.prototypes, **weights}, {**card, "loss": history}


class _Moving:
    """Prototypes under way."""

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
                f"expected source samples of all {len(self.seen)} classes, but none was found of "
                f"{len(missing)}: {shown}. Every class needs a prototype: give source data that "
                "covers all classes the model predicts.",
                missing=tuple(missing),
            )


def _start(
    moving: _Moving,
    projector: nn.Module,
    source: Source,
    encoder: Encoder,
    options: PrototypeOptions,
    generator: torch.Generator,
) -> None:
    """Go on until every class has a prototype (the paper's steps 1 and 2), at most one pass."""
    projector.train()
    usable = False
    for x, y in source.iterate("first prototypes"):
        if _is_single(x, source):
            continue
        found = encoder.recall(x)
        picked, y = _pick(found, y, source, options, generator)
        if len(y) < 2:
            continue
        usable = True
        with torch.no_grad():
            moving.move(projector(found.features[picked]), y)
        if bool(moving.seen.all()):
            return
    if not usable:
        raise BadInput(
            "single_sample",
            "expected source batches of more than one sample to train a projector.",
        )
    moving.check_complete()


def _train(
    moving: _Moving,
    projector: nn.Module,
    source: Source,
    encoder: Encoder,
    options: PrototypeOptions,
    generator: torch.Generator,
) -> list[float]:
    """Train the projector with the embedding loss (eq. 6) while the prototypes move on.

    Returns the mean loss of each epoch.
    """
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(projector.parameters(), lr=options.lr)
        if options.optimizer == "adam"
        else torch.optim.SGD(projector.parameters(), lr=options.lr, momentum=0.9, nesterov=True)
    )
    views = get_views(options.views)
    history = []
    for epoch in range(options.epochs):
        losses = []
        for x, y in source.iterate(f"projector, epoch {epoch + 1} of {options.epochs}"):
            if _is_single(x, source):
                continue
            found = encoder.recall(x)
            picked, y = _pick(found, y, source, options, generator)
            if len(y) < 2:
                continue
            features = found.features[picked]
            view = apply_views(views, x, source.normalization, generator)
            view_features = encoder.encode(view).features[picked]
            with torch.enable_grad():
                embeddings = projector(features)
                moving.move(embeddings, y)
                losses_of_views = [
                    F.cross_entropy(
                        prototype_logits(part, moving.prototypes, options.temperature), y
                    )
                    for part in (embeddings, projector(view_features))
                ]
                loss = losses_of_views[0] + losses_of_views[1]
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
        encoder.end_pass()
        history.append(sum(losses) / len(losses))
    return history


def _is_single(x: Tensor, source: Source) -> bool:
    """Say whether a batch has no statistics for the projector's BatchNorm; pixels have some."""
    return len(x) == 1 and source.ignore_label is None


def _pick(
    found: Encoded, y: Tensor, source: Source, options: PrototypeOptions, draws: torch.Generator
) -> tuple[slice | Tensor, Tensor]:
    """Return which features are used, and their labels: those of all samples, or of some pixels."""
    if found.feature_grid is None:
        return slice(None), y
    labels, is_labelled = source.label_rows(y, found.feature_grid)
    picked = sample_rows(labels, is_labelled, len(y), options.pixels, draws)
    return picked, labels[picked]


def _classifier_rows(model: nn.Module, anatomy: Anatomy) -> Tensor:
    weight = getattr(get_head(model, anatomy.head), "weight", None)
    shape = (anatomy.n_classes, anatomy.n_features)
    if not isinstance(weight, Tensor) or weight.flatten(1).shape != shape:
        raise UnsuitableModel(
            "wrong_head",
            f'expected the head "{anatomy.head}" to have a weight of shape {shape}, one row a '
            "class, to take prototypes from. Use prototypes from source data: source='embedding'.",
            head=anatomy.head,
        )
    return weight.detach().flatten(1).clone()
