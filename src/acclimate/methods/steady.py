from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.export import ExportPlan
from acclimate.forward import Forward
from acclimate.functional.across import batch_size
from acclimate.functional.entropy import cross_entropy_between, entropy, log_probs
from acclimate.functional.label_filter import filter_labels
from acclimate.functional.stream_norm import PROBE
from acclimate.functional.views import spread
from acclimate.methods.config import (
    GradientConfig,
    changed,
    hp,
    log_uniform,
    options,
    published,
    uniform,
)
from acclimate.methods.gradient import GradientMethod, build_optimizer, copy_values
from acclimate.parts.confidence import Confidence
from acclimate.parts.mirror import Mirror, keeps_class
from acclimate.parts.penalty import Penalty
from acclimate.parts.prototypes import Prototypes
from acclimate.schema import Fields, Maybe, Number, TensorOf
from acclimate.terms.nsp import Nsp

#: Samples of a batch from which it is learned from at the full rate.
FULL_BATCH = 64
#: Samples of a stream before its correlation is known.
_FIRST = 128
#: Probability of a repeated label from which nothing is learned.
_CORRELATED = 0.3
#: Predictions may change by so many times the share that the source's weights are unsure of.
_DRIFT = 3.0
_SMALLEST_DRIFT = 0.02
#: Rise of the pace with each batch that has not drifted.
_RECOVERY = 1.05
_SLOWEST = 1e-3
#: A tensor is taken for at least this share of the median size of all.
_SMALLEST_SIZE = 0.1


@options
class SteadyConfig(GradientConfig):
    """Options of `steady`; the defaults are for all models and streams."""

    presets = published()

    statistics: str = changed(GradientConfig, "statistics", "auto")
    lr: float = hp(
        0.01,
        low=0.0,
        search=log_uniform(1e-3, 3e-2),
        help="learning rate, as a share of the root mean square of each parameter tensor",
    )
    damping: float = hp(
        20.0,
        low=0.0,
        search=log_uniform(3, 100),
        help="a parameter with penalty w learns at the rate divided by 1 + damping · w",
    )
    reach: float = hp(
        0.05,
        low=0.0,
        search=log_uniform(0.02, 0.2),
        help="largest distance of a parameter tensor from the source's, as a share of its norm",
    )
    main_confidence: float = hp(0.2, low=0.0, help="weight of the mean entropy, main task")
    main_diversity: float = hp(0.25, low=0.0, help="weight of the entropy of the mean, main task")
    aux_confidence: float = hp(0.8, low=0.0, help="weight of the mean entropy, prototypes")
    aux_diversity: float = hp(0.8, low=0.0, help="weight of the entropy of the mean, prototypes")
    consistency: float = hp(
        0.3, low=0.0, search=uniform(0.0, 1.0), help="weight of the agreement of both views"
    )
    temperature: float = hp(0.1, low=1e-4, help="temperature of the nearest-prototype softmax")
    mirror: bool = hp(
        True, help="average over the image and its mirror image, where that keeps the class"
    )
    filter_labels: bool = hp(
        True, help="correct predictions by their neighbours in the stream, if it is correlated"
    )


class Steady(GradientMethod):
    """SWR and NSP for any stream: robust statistics, two views, bounded steps, filtered labels.

    Our own method, built from the paper's penalties and prototypes. What differs from `swr_nsp`:

    - BatchNorm mixes the source's statistics with those of the stream (`statistics="auto"`; see
      `acclimate.functional.stream_norm`).
    - The second view is the mirror image, if `prepare` found that it keeps the class. Predictions
      are averaged over both views, and the losses are those of the average.
    - The penalties damp the steps themselves: rate / (1 + damping · w), relative to the size of
      each parameter tensor, so that the strength depends neither on the size of gradients nor of
      weights. A tensor never moves farther from the source's than `reach`.
    - The entropy of the mean prediction covers the images before a small batch. Batches of fewer
      than 64 images are learned from at a rate in proportion.
    - Before a batch, some of its images are also predicted with the source's weights. If the
      predictions differ more than those are unsure of, what was learned shrinks, and so does the
      pace of learning, until they do not.
    - On a correlated stream, predictions are corrected by their neighbours (see
      `acclimate.functional.label_filter`), and the rate goes to zero: classes that come one after
      another cannot be learned from.
    """

    name = "steady"
    config_class = SteadyConfig
    config: SteadyConfig
    card = GradientMethod.card.variant(forwards=2, backwards=1)
    needs = (Penalty, Prototypes, Mirror, Confidence)

    labels_before: dict[str, Any] | None
    means: dict[str, Tensor]
    pace: float

    def setup(self) -> None:
        """Declare state, and set the rate of each parameter tensor."""
        super().setup()
        artifact, config = self.known_artifact, self.config
        self.nsp = Nsp(temperature=config.temperature, projector_statistics="source").attach(self)
        accuracies = artifact.part("mirror")
        self._has_mirror = config.mirror and keeps_class(**accuracies)
        self._n = 0
        self._share = 1.0
        share, mean = Number(float, low=0, high=1), TensorOf(("classes",), low=0)
        labels = {"stay": share, "last": mean, "mean": mean, "n": Number(float, low=1)}
        self.add_state("labels_before", None, Maybe(Fields(labels)))
        self.add_state("means", {}, Fields({"main": mean, "aux": mean}, partial=True))
        self.add_state("pace", 1.0, share)
        penalty = artifact.part("penalty")
        moved, own = self.parameters_moved, self.trained()
        sizes = {name: float(p.detach().square().mean().sqrt()) for name, p in moved.items()}
        smallest = _SMALLEST_SIZE * float(torch.tensor(list(sizes.values())).median())
        groups: list[dict[str, Any]] = []
        self._reach: dict[str, float] = {}
        for name, parameter in moved.items():
            size = max(sizes[name], smallest)
            weight = float(penalty[name].mean()) if name in penalty else 0.0
            groups.append({"params": [parameter], "scale": size / (1 + config.damping * weight)})
            if name in own:  # a term may train parameters that the source does not have
                self._reach[name] = config.reach * size * math.sqrt(parameter.numel())
        self.optimizer = build_optimizer(groups, config)

    def scale_rate(self, share: float) -> None:
        """Learn at a share of the configured rate."""
        self._share = share

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the corrected average of both views, and the losses of the average."""
        config, self._n = self.config, batch_size(x)
        views = self._run_views(x)
        main = _average([view.logits for view in views])
        near = [self.nsp.logits(view.known_features) for view in views]
        loss = self._sharpen("main", main, config.main_confidence, config.main_diversity)
        loss = loss + self._sharpen(
            "aux", _average(near), config.aux_confidence, config.aux_diversity
        )
        if len(near) == 2:
            first, second = near
            agreement = cross_entropy_between(first.detach(), second)
            agreement = agreement + cross_entropy_between(second.detach(), first)
            loss = loss + config.consistency * agreement.mean() / 2
        return self._correct(main.detach()), loss

    def infer(self, x: Tensor) -> Tensor:
        """Predict one batch in the same way, and learn nothing."""
        return self._correct(_average([view.logits for view in self._run_views(x, moves=False)]))

    def plan_export(self) -> ExportPlan:
        """Average over both views; leave out the correction by neighbours in the stream."""
        lost = ("On a correlated stream, predictions are corrected by their neighbours in it.",)
        return replace(
            super().plan_export(),
            is_mirrored=self._has_mirror,
            lost=lost if self.config.filter_labels else (),
        )

    def step(self, x: Tensor) -> Iterator[Tensor]:
        """Undo what was learned too fast, then predict and learn."""
        if self.counts.updates == 0:
            yield from super().step(x)
            return
        moved = [self.parameters_moved[name] for name in self._reach]
        learned = [parameter.detach().clone() for parameter in moved]
        try:
            self._hold_back(x[spread(x, PROBE)], moved, learned)
            yield from super().step(x)
        except BaseException:
            copy_values(learned, moved)
            raise

    def update(self, loss: Tensor, gradients: Sequence[Tensor | None]) -> bool:
        """Step at a rate that fits the batch and the stream."""
        rate = self.config.lr * self._share * self.pace * min(1.0, self._n / FULL_BATCH)
        rate *= min(1.0, (self.counts.samples + self._n) / _FIRST)
        if self.labels_before is not None:
            if self.labels_before["stay"] >= _CORRELATED:
                self.counts.skip("correlated")
                return False
            rate *= (1 - self.labels_before["stay"] / _CORRELATED) ** 2
        if self.statistics == "auto":
            rate *= self.trust
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        return super().update(loss, gradients)

    def after_update(self, x: Tensor) -> None:
        """Bring parameters that have left the reach of the source's back to its border."""
        source = self.initial()["modules"]
        for name, reach in self._reach.items():
            parameter = self.parameters_moved[name]
            start = source[f"model.{name}"].to(parameter)
            distance = torch.linalg.vector_norm(parameter - start)
            parameter.copy_(
                torch.where(
                    distance > reach, start + (parameter - start) * (reach / distance), parameter
                )
            )

    def _hold_back(
        self, x: Tensor, moved: Sequence[nn.Parameter], learned: Sequence[Tensor]
    ) -> None:
        """Shrink what was learned if predictions differ too much from those of the source."""
        source = self.initial()["modules"]
        start = [source[f"model.{name}"].to(p) for name, p in zip(self._reach, moved, strict=True)]
        # Not run(): the call must return the output for the whole batch.
        here = self._pass(x, False, None, None).logits
        try:
            copy_values(start, moved)
            reference = log_probs(self._pass(x, False, None, None).logits).exp()
        finally:
            copy_values(learned, moved)
        self.counts.forwards += 2
        confidence, classes = reference.max(dim=1)
        drift = float((here.argmax(dim=1) != classes).float().mean())
        allowed = max(_DRIFT * (1 - float(confidence.mean())), _SMALLEST_DRIFT)
        if drift <= allowed:
            self.pace = min(1.0, _RECOVERY * self.pace)
            return
        share = allowed / drift
        copy_values([torch.lerp(a, b, share) for a, b in zip(start, learned, strict=True)], moved)
        self.pace = max(_SLOWEST, share * self.pace)

    def _run_views(self, x: Tensor, moves: bool = True) -> list[Forward]:
        first = self.run(x, moves=moves)
        if not (self._has_mirror and x.dim() == 4):
            return [first]
        second = self.run(x.flip(-1), moves=False)
        self.view_logits = first.logits.detach(), second.logits.detach()
        return [first, second]

    def _sharpen(self, name: str, log_p: Tensor, confidence: float, diversity: float) -> Tensor:
        """Return the information maximisation, with the mean over this batch and those before."""
        mean = log_p.exp().mean(dim=0)
        if name in self.means:
            own = self._n / (self._n + FULL_BATCH)
            # The gradient is that of the batch: it must not shrink with the batch.
            mean = mean + (torch.lerp(self.means[name].to(mean), mean, own) - mean).detach()
        if bool(mean.isfinite().all()):
            self.means = {**self.means, name: mean.detach()}
        # A class that nobody predicts must not make the gradient infinite.
        log_mean = mean.clamp_min(torch.finfo(mean.dtype).tiny).log()
        return confidence * entropy(log_p).mean() - diversity * entropy(log_mean)

    def _correct(self, log_p: Tensor) -> Tensor:
        """Return predictions that are corrected by their neighbours in the stream."""
        if not (self.config.filter_labels and bool(log_p.isfinite().all())):
            return log_p
        corrected, state = filter_labels(log_p, self.labels_before)
        if self.is_learning:
            self.labels_before = state
        self.plain_logits = log_p
        return corrected


def _average(logits: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean probabilities."""
    stacked = torch.stack([log_probs(each) for each in logits])
    return torch.logsumexp(stacked, dim=0) - math.log(len(logits))
