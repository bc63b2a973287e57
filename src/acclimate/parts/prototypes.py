"""Source prototypes, and the projector that is trained around them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.errors import BadInput, UnsuitableModel
from acclimate.functional.prototypes import move_prototypes, prototype_logits
from acclimate.functional.views import apply_views, get_views
from acclimate.parts.encoder import Encoder
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
    new in every epoch.
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
    moving = _Moving(source.n_classes, width, reference, options.momentum)
    if depth == 0:
        for x, y in source.iterate("prototypes"):
            moving.move(encoder.recall(x).features, y)
        encoder.end_pass()
        moving.check_complete()
        return {"prototypes/embedding": moving.prototypes}, card
    _start(moving, projector, source, encoder)
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
                f"expected source samples of all {len(self.seen)} classes, but none was found of "
                f"{len(missing)}: {shown}. Every class needs a prototype: give source data that "
                "covers all classes the model predicts."
            )


def _start(
    moving: _Moving,
    projector: nn.Module,
    source: Source,
    encoder: Encoder,
) -> None:
    """Go on until every class has a prototype (the paper's steps 1 and 2), at most one pass."""
    projector.train()
    usable = False
    for x, y in source.iterate("first prototypes"):
        if len(x) == 1:  # one sample has no batch statistics for the projector's BatchNorm
            continue
        usable = True
        with torch.no_grad():
            moving.move(projector(encoder.recall(x).features), y)
        if bool(moving.seen.all()):
            return
    if not usable:
        raise BadInput("expected source batches of more than one sample to train a projector.")
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
            if len(x) == 1:
                continue
            features = encoder.recall(x).features
            view = apply_views(views, x, source.normalization, generator)
            view_features = encoder.encode(view).features
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


def _classifier_rows(model: nn.Module, anatomy: Anatomy) -> Tensor:
    weight = getattr(get_head(model, anatomy.head), "weight", None)
    shape = (anatomy.n_classes, anatomy.n_features)
    if not isinstance(weight, Tensor) or weight.flatten(1).shape != shape:
        raise UnsuitableModel(
            f'expected the head "{anatomy.head}" to have a weight of shape {shape}, one row a '
            "class, to take prototypes from. Use prototypes from source data: source='embedding'."
        )
    return weight.detach().flatten(1).clone()
