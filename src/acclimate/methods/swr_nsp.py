"""The paper's method: shift-agnostic weight regularisation and nearest source prototypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from acclimate.errors import ArtifactMissing
from acclimate.functional.entropy import information_maximization
from acclimate.functional.norm import batch_norm_layers
from acclimate.functional.views import VIEW_SETS, apply_views, get_views
from acclimate.methods.config import Config, GradientConfig, choice, hp, log_uniform, uniform
from acclimate.methods.gradient import GradientMethod
from acclimate.terms.nsp import Nsp
from acclimate.terms.projector import build_projector
from acclimate.terms.swr import Swr


@dataclass(frozen=True, kw_only=True)
class SwrNspConfig(GradientConfig):
    """Options of `swr_nsp`; the defaults are the paper's.

    The paper is silent on `detach_target` and `projector_statistics`; the reasons for their
    defaults stand in `acclimate.terms.Nsp`.
    """

    main_confidence: float = hp(
        0.2, search=uniform(0.1, 1.0), help="weight of the mean entropy, main task (λ_m1)"
    )
    main_diversity: float = hp(
        0.25, search=uniform(0.0, 1.0), help="weight of the entropy of the mean, main task (λ_m2)"
    )
    aux_confidence: float = hp(
        0.8, search=uniform(0.1, 1.0), help="weight of the mean entropy, prototypes (λ_a1)"
    )
    aux_diversity: float = hp(
        0.25, search=uniform(0.0, 1.0), help="weight of the entropy of the mean, prototypes (λ_a2)"
    )
    consistency: float = hp(
        0.1, low=0.0, search=uniform(0.0, 0.5), help="weight of the self-supervised term (λ_s)"
    )
    strength: float = hp(
        250.0, low=0.0, search=log_uniform(10, 3000), help="weight of the regulariser (λ_r)"
    )
    anchor: str = hp(
        "previous",
        choices=("previous", "source"),
        search=choice("previous", "source"),
        help="θ* of the regulariser: parameters before the last update, or the source's",
    )
    temperature: float = hp(
        0.1, low=1e-4, search=uniform(0.05, 0.5), help="of the nearest-prototype softmax (τ)"
    )
    views: str = hp(
        "test", choices=tuple(VIEW_SETS), help="transforms that make the second view of a batch"
    )
    detach_target: bool = hp(
        True, help="no gradient through the original view's prediction in eq. 9"
    )
    projector_statistics: str = hp(
        "batch", choices=("source", "batch"), help="BatchNorm statistics inside the projector"
    )
    train_projector: bool = hp(False, help="fine-tune the projector instead of freezing it")


class SwrNsp(GradientMethod):
    """Trains all parameters, damped by shift-agnostic penalties, towards the source's prototypes.

    Paper: Choi et al. 2022, https://arxiv.org/abs/2207.11707. Official code: none is public.
    Moves all parameters; the auxiliary loss moves the encoder only. Returns the logits before the
    update. Cost of a batch: 2 forwards (the second on a transformed view), 1 backward through both.
    """

    name: ClassVar[str] = "swr_nsp"
    config_class: ClassVar[type[Config]] = SwrNspConfig
    config: SwrNspConfig
    paper: ClassVar[str] = "https://arxiv.org/abs/2207.11707"
    year: ClassVar[int] = 2022
    moves: ClassVar[str] = "all parameters"
    needs: ClassVar[tuple[str, ...]] = ("penalty", "prototypes")
    forwards: ClassVar[int] = 2

    def setup(self) -> None:
        """Take penalties, prototypes and projector from the artifact."""
        if self.artifact is None:
            raise ArtifactMissing("swr_nsp needs an artifact: acclimate.prepare(model, source).")
        config = self.config
        reference = next(iter(self.model.parameters()))
        prototypes = self.artifact.part("prototypes")["embedding"].clone().to(reference)
        self.nsp = Nsp(
            prototypes,
            load_projector(self.artifact).to(reference),
            temperature=config.temperature,
            confidence=config.aux_confidence,
            diversity=config.aux_diversity,
            consistency=config.consistency,
            detach_target=config.detach_target,
            statistics="batch" if config.projector_statistics == "batch" else "source",
        )
        super().setup()
        self.regularizer = Swr(self.artifact.part("penalty"), config.strength, config.anchor)
        if config.anchor == "source":
            self.previous = {
                name: parameter.detach().clone()
                for name, parameter in self.parameters_moved.items()
            }
        self._views = get_views(config.views)

    def needs_several_samples(self) -> bool:
        """A projector with BatchNorm needs a batch, even if the model does not."""
        inside = bool(batch_norm_layers(self.nsp.projector))
        return super().needs_several_samples() or (inside and self.nsp.statistics == "batch")

    def extra_trainable(self) -> dict[str, nn.Parameter]:
        """Return the projector's parameters if they are to move."""
        if not self.config.train_projector:
            return {}
        return {f"nsp.projector.{n}": p for n, p in self.nsp.projector.named_parameters()}

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return main and auxiliary loss; the regulariser is added to the gradient."""
        first = self.run(x)
        view_features = None
        if self.config.consistency > 0:
            view = apply_views(self._views, x, self.normalization, self.generator)
            view_features = self.run(view, moves=False).known_features
        main = information_maximization(
            first.logits, self.config.main_confidence, self.config.main_diversity
        )
        return first.logits, main + self.nsp(first.known_features, view_features)


def load_projector(artifact: Any) -> nn.Module:
    """Build the projector an artifact describes, with its trained weights."""
    options = artifact.parts["prototypes"]
    depth = options["projector_depth"]
    projector = build_projector(
        depth, artifact.anatomy.n_features, options["hidden"], options["width"]
    )
    if depth:
        # Assigned, not copied: a fresh single-precision layer would round double-precision weights.
        # Cloned, since they may be trained, and the artifact must not change.
        weights = {name: value.clone() for name, value in artifact.part("projector").items()}
        projector.load_state_dict(weights, assign=True)
    return projector
