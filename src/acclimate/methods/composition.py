"""What can be laid over any gradient method: SWR as a regulariser, NSP as an auxiliary loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from acclimate.artifact import Artifact
from acclimate.errors import ArtifactMissing, InvalidConfig, did_you_mean
from acclimate.functional.penalty import SHAPES, penalties, shape_penalties
from acclimate.functional.views import VIEW_SETS
from acclimate.methods.config import Values, choice, hp, log_uniform, uniform
from acclimate.terms.nsp import Nsp
from acclimate.terms.projector import build_projector
from acclimate.terms.swr import Swr


@dataclass(frozen=True, kw_only=True)
class SwrOptions(Values):
    """Options of shift-agnostic weight regularisation; the defaults are the paper's."""

    strength: float = hp(
        250.0, low=0.0, search=log_uniform(10, 3000), help="weight of the regulariser (λ_r)"
    )
    anchor: str = hp(
        "previous",
        choices=("previous", "source"),
        search=choice("previous", "source"),
        help="θ* of the regulariser: parameters before the last update, or the source's",
    )
    exponent: float = hp(
        0.0, low=0.0, help="of the penalties; 0 takes them as prepared (2 in the paper; 1 or 3)"
    )
    shape: str = hp(
        "measured",
        choices=SHAPES,
        help="of the penalties over the layers: as measured, or a variant of the supplement",
    )


@dataclass(frozen=True, kw_only=True)
class NspOptions(Values):
    """Options of nearest source prototypes; the defaults are the paper's.

    The paper is silent on `detach_target` and `projector_statistics`; the reasons for their
    defaults stand in `acclimate.terms.Nsp`.
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


@dataclass(frozen=True)
class Composition:
    """What is laid over a method: nothing, SWR, NSP, or both."""

    regularizer: SwrOptions | None = None
    auxiliary: NspOptions | None = None

    @classmethod
    def of(cls, regularizer: Any, auxiliary: Any) -> Composition:
        """Return what a user meant: names, options, or None."""
        return cls(
            _options(regularizer, "regularizer", {"swr": SwrOptions}),
            _options(auxiliary, "auxiliary", {"nsp": NspOptions}),
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """The parts of an artifact it needs."""
        swr = ("penalty",) if self.regularizer is not None else ()
        return (*swr, "prototypes") if self.auxiliary is not None else swr

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain JSON types."""
        named = {"regularizer": self.regularizer, "auxiliary": self.auxiliary}
        return {name: value.to_dict() for name, value in named.items() if value is not None}


def build_swr(options: SwrOptions, artifact: Artifact | None, model: nn.Module) -> Swr:
    """Return the regulariser, with the penalties of the artifact."""
    prepared = _need(artifact, "penalty", "swr")
    weights = prepared.part("penalty")
    if options.exponent:
        weights = penalties(prepared.part("cosine"), options.exponent)
    weights = {name: weights[name] for name, _ in model.named_parameters() if name in weights}
    return Swr(shape_penalties(weights, options.shape), options.strength, options.anchor)


def build_nsp(options: NspOptions, artifact: Artifact | None, like: Tensor) -> Nsp:
    """Return the auxiliary loss, with prototypes and projector of the artifact.

    Args:
        options: Its weights.
        artifact: Must have the part `prototypes`.
        like: A parameter of the model, for type and device.
    """
    prepared = _need(artifact, "prototypes", "nsp")
    return Nsp(
        prepared.part("prototypes")["embedding"].clone().to(like),
        load_projector(prepared).to(like),
        temperature=options.temperature,
        confidence=options.aux_confidence,
        diversity=options.aux_diversity,
        consistency=options.consistency,
        detach_target=options.detach_target,
        statistics="batch" if options.projector_statistics == "batch" else "source",
    )


def load_projector(artifact: Artifact) -> nn.Module:
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


def _need(artifact: Artifact | None, part: str, term: str) -> Artifact:
    if artifact is None:
        raise ArtifactMissing(
            "artifact_needed",
            f"an artifact with the part {part} is needed: acclimate.prepare(model, source).",
            methods=(term,),
        )
    return artifact


def _options(value: Any, what: str, kinds: dict[str, Any]) -> Any:
    if value is None or isinstance(value, tuple(kinds.values())):
        return value
    if isinstance(value, str) and value in kinds:
        return kinds[value]()
    named = ", ".join(f'"{name}" or {kind.__name__}(...)' for name, kind in kinds.items())
    text = f"expected {what} to be {named}, found {value!r}."
    if isinstance(value, str):
        raise InvalidConfig(
            "unknown_name",
            f"{text} {did_you_mean(value, kinds)}",
            kind=what,
            name=value,
            known=tuple(kinds),
        )
    raise InvalidConfig("wrong_type", text, option=what, found=type(value).__name__)
