"""Nearest source prototypes (NSP) as a term."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from acclimate.artifact import Artifact
from acclimate.forward import Forward
from acclimate.functional.across import batch_mean
from acclimate.functional.entropy import cross_entropy_between, information_maximization
from acclimate.functional.norm import batch_norm_layers, use_statistics
from acclimate.functional.pixels import resize_maps, take_samples, to_maps, to_rows
from acclimate.functional.swr_nsp import prototype_logits
from acclimate.functional.views import VIEW_SETS, get_views
from acclimate.options import Values, hp, options, uniform
from acclimate.parts.prototypes import Prototypes, build_projector
from acclimate.terms.term import ActiveTerm, Term, register_term

if TYPE_CHECKING:
    from acclimate.methods.gradient import GradientMethod


@options
class NspOptions(Values):
    """The options that the term shares with the methods that contain it.

    The paper does not specify two of them. `detach_target`: eq. 9 shows no stop-gradient, but the
    figure's caption and the text state that the transformed projection is pulled towards the
    target of the original one, which a fixed target does. `projector_statistics`: the paper states
    only that it uses batch statistics on test data. The prototypes use batch statistics, too.
    """

    aux_confidence: float = hp(
        0.8, search=uniform(0.1, 1.0), help="weight of the mean entropy, prototypes (λ_a1)"
    )
    aux_diversity: float = hp(
        0.25, search=uniform(0.0, 1.0), help="weight of the entropy of the mean, prototypes (λ_a2)"
    )
    consistency: float = hp(
        0.1, low=0.0, search=uniform(0.0, 0.5), help="weight of the self-supervised term (λ_s)"
    )
    temperature: float = hp(
        0.1,
        low=1e-4,
        search=uniform(0.05, 0.5),
        help="temperature of the nearest-prototype softmax (τ)",
    )
    views: str = hp(
        "test", choices=tuple(VIEW_SETS), help="transforms of the second view of a batch"
    )
    detach_target: bool = hp(
        True, help="stop the gradient through the original view's prediction in eq. 9"
    )
    projector_statistics: str = hp(
        "batch", choices=("source", "batch"), help="BatchNorm statistics inside the projector"
    )
    train_projector: bool = hp(False, help="fine-tune the projector instead of freezing it")
    predictor: str = hp(
        "head",
        choices=("head", "prototypes"),
        help="whose logits are returned: the model's, or the nearest-prototype classifier's",
    )


@register_term
@options
class Nsp(NspOptions, Term):
    """Pulls features towards their nearest source prototype (paper, eq. 5 and 7 to 9).

    It depends on features only, so its gradient reaches the encoder but not the head. The defaults
    are those of the paper.
    """

    name = "nsp"
    needs = (Prototypes,)

    weight: float = hp(1.0, low=0.0, help="weight of the whole term")

    def attach(self, method: GradientMethod) -> ActiveNsp:
        """Read prototypes and projector from the artifact, in the model's precision."""
        artifact, like = self.artifact_of(method), next(iter(method.model.parameters()))
        prototypes = artifact.part("prototypes")["embedding"].clone().to(like)
        return ActiveNsp(prototypes, load_projector(artifact).to(like), self)


class ActiveNsp(ActiveTerm):
    """The active term; `prototypes` (K, d) are in the space that `projector` maps features to."""

    prototypes: Tensor

    def __init__(self, prototypes: Tensor, projector: nn.Module, options: Nsp) -> None:
        super().__init__()
        self.projector = projector
        self.register_buffer("prototypes", prototypes)
        self.options = options
        self._views = get_views(options.views)
        self._target: Tensor | None = None

    def trainable(self) -> Mapping[str, nn.Parameter]:
        return dict(self.projector.named_parameters()) if self.options.train_projector else {}

    def needs_several_samples(self) -> bool:
        uses_batch = self.options.projector_statistics == "batch"
        return uses_batch and bool(batch_norm_layers(self.projector))

    def logits(self, features: Tensor) -> Tensor:
        """Classify features by their nearest prototype."""
        statistics: Any = self.options.projector_statistics
        with use_statistics(self.projector, statistics):
            embeddings = self.projector(features)
        return prototype_logits(embeddings, self.prototypes, self.options.temperature)

    def loss(self, method: GradientMethod, x: Tensor) -> Tensor:
        """Return the information maximisation over prototypes, and eq. 9 if not detached."""
        options = self.options
        logits = self.logits(method.first_pass(x).known_features)
        loss = information_maximization(logits, options.aux_confidence, options.aux_diversity)
        method.note_loss("prototypes", loss)
        self._target = logits.detach() if options.detach_target else None
        if not options.detach_target:
            agreement = self._agreement(method, x, logits)
            loss = loss if agreement is None else loss + agreement
        return options.weight * loss

    def later_loss(self, method: GradientMethod, x: Tensor) -> Tensor | None:
        """Return the self-supervised loss. With a fixed target, the two views are independent."""
        if self._target is None:
            return None
        target, self._target = self._target, None
        agreement = self._agreement(method, x, target)
        return None if agreement is None else self.options.weight * agreement

    def answer(self, method: GradientMethod, found: Forward) -> Tensor | None:
        if self.options.predictor == "head":
            return None
        near = self.logits(found.known_features)
        if found.grid is None or found.feature_grid is None:
            return near
        return to_rows(resize_maps(to_maps(near, found.feature_grid), found.grid[1:]))

    def _agreement(self, method: GradientMethod, x: Tensor, target: Tensor) -> Tensor | None:
        """Return eq. 9: the cross entropy of the transformed view with the original's logits."""
        if self.options.consistency == 0:
            return None
        view = method.view(x, self._views)
        if view is None:
            return None
        picked, x_view = view
        target = target[picked] if len(target) == len(x) else take_samples(target, len(x), picked)
        found = self.logits(method.run(x_view, moves=False).known_features)
        agreement = self.options.consistency * batch_mean(cross_entropy_between(target, found))
        method.note_loss("agreement", agreement)
        return agreement


def load_projector(artifact: Artifact) -> nn.Module:
    """Build the projector that an artifact describes, with its trained weights."""
    card = artifact.parts["prototypes"]
    depth = card["projector_depth"]
    projector = build_projector(depth, artifact.info.known_width, card["hidden"], card["width"])
    if depth:
        # Assigned, not copied: a new single-precision layer would round double-precision weights.
        # Cloned, because they may be trained and the artifact must not change.
        weights = {name: value.clone() for name, value in artifact.part("projector").items()}
        projector.load_state_dict(weights, assign=True)
    return projector
