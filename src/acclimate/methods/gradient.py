"""The base of methods that learn by gradient steps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from acclimate.errors import InvalidConfig, UnsuitableModel
from acclimate.functional.across import average
from acclimate.functional.checkpointing import find_blocks
from acclimate.functional.norm import Statistics, batch_norm_layers
from acclimate.functional.pixels import random_box, take_samples
from acclimate.functional.views import apply_views, get_views
from acclimate.methods.base import Method, Problem
from acclimate.methods.composition import Composition, build_nsp, build_swr
from acclimate.methods.config import Config, GradientConfig
from acclimate.methods.micro_batch import Pass, add, split
from acclimate.methods.optimizer import all_finite, build_optimizer
from acclimate.methods.speed import spread
from acclimate.snapshot import Tree, copy_tree
from acclimate.taps import Forward
from acclimate.terms.nsp import Nsp
from acclimate.terms.swr import Swr


class GradientMethod(Method):
    """A method that takes one optimiser step a batch.

    A subclass writes `loss`, and `trainable` if not all parameters move; `after_update` if more is
    to happen then, and `differentiate` if the gradient is not that of one backward. SWR and NSP can
    be laid over any of them (`adapt(..., regularizer="swr", auxiliary="nsp")`).

    An update that would make any parameter non-finite is not applied; it is counted in
    `counts.skipped["non_finite"]`, a batch without a sample worth learning from in
    `counts.skipped["nothing_selected"]`.
    """

    config_class: ClassVar[type[Config]] = GradientConfig
    config: GradientConfig
    backwards: ClassVar[int] = 1

    regularizer: Swr | None = None
    nsp: Nsp | None
    previous: dict[str, Tensor]

    @classmethod
    def trainable(cls, model: nn.Module, config: Any) -> dict[str, nn.Parameter]:
        """Return the parameters that move, by name: all that are not frozen."""
        return {name: p for name, p in model.named_parameters() if p.requires_grad}

    @classmethod
    def check(cls, model: nn.Module, config: Config) -> list[Problem]:
        """Report a model in which nothing would move."""
        moved = cls.trainable(model, config)
        if any(parameter.dtype == torch.float16 for parameter in moved.values()):
            return [
                Problem(
                    "precision",
                    "float16 parameters cannot be trained: small updates vanish, and Adam's "
                    "divisor rounds to zero.",
                    "Use model.bfloat16() or model.float().",
                )
            ]
        if moved:
            return []
        return [
            Problem(
                "parameters",
                "every parameter that this method would train is frozen, so nothing would move.",
                "Unfreeze the model with model.requires_grad_(True).",
            )
        ]

    @classmethod
    def own_terms(cls, config: Any) -> Composition:
        """Return the terms that the method brings itself."""
        return Composition()

    def extra_trainable(self) -> dict[str, nn.Parameter]:
        """Return parameters that move besides the model's own, by name."""
        return {}

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits of a batch and the loss to be minimised; runs with gradients.

        None as loss: there is nothing to learn from this batch.
        """
        raise TypeError(f"{type(self).__name__} must define loss()")

    def after_update(self, x: Tensor) -> None:
        """Do what follows an update: move a teacher, pull weights back. Runs without gradients."""

    def setup(self) -> None:
        """Build the terms, collect what moves and build the optimiser."""
        own, added = self.own_terms(self.config), self.composition
        swr, nsp = own.regularizer or added.regularizer, own.auxiliary or added.auxiliary
        self.nsp = None
        if nsp is not None:
            self.nsp = build_nsp(nsp, self.artifact, next(iter(self.model.parameters())))
            self._views = get_views(nsp.views)
        self.parameters_moved = {
            **self.trainable(self.model, self.config),
            **self.extra_trainable(),
        }
        if self.nsp is not None and nsp is not None and nsp.train_projector:
            for name, parameter in self.nsp.projector.named_parameters():
                self.parameters_moved[f"nsp.projector.{name}"] = parameter
        if not self.parameters_moved:
            raise UnsuitableModel(
                "nothing_to_train", f"{self.name} finds no parameter to train in this model."
            )
        if swr is not None:
            self.regularizer = build_swr(swr, self.artifact, self.model)
            self._pin(self.regularizer)
        self.optimizer = build_optimizer(list(self.parameters_moved.values()), self.config)
        # What SWR holds the next update to: the values before the last applied update, so that
        # the anchor lags one update behind. (Taken after the update, the term would be zero.)
        self.add_state("previous", {})
        if swr is not None and swr.anchor == "source":
            self.previous = {
                name: parameter.detach().clone()
                for name, parameter in self.parameters_moved.items()
            }
        self._batch: Tensor | None = None
        self._first: Forward | None = None
        self._passes: list[Pass] = []
        self._check_speed()

    def _pin(self, regularizer: Swr) -> None:
        """Leave out of what moves the tensors that their penalty holds in place."""
        limit = self.speed.pinned
        for name in [name for name in self.parameters_moved if regularizer.holds(name, limit)]:
            if limit and len(self.parameters_moved) > 1:
                del self.parameters_moved[name]

    def _check_speed(self) -> None:
        """Refuse what would change the result in a way nobody asked for."""
        moving = self._statistics if self._has_batch_norm else ""
        if self.speed.micro_batch and moving in ("running", "robust"):
            raise InvalidConfig(
                "conflicting_options",
                f'micro_batch and statistics="{moving}" cannot go together: the statistics would '
                'move between the parts of one batch. Use "batch" or "source" statistics.',
                options=("micro_batch", "statistics"),
            )
        if not self.speed.checkpoint:
            return
        if moving == "robust":
            raise InvalidConfig(
                "conflicting_options",
                'checkpoint and statistics="robust" cannot go together: what is computed again '
                "would meet statistics that have moved. Use another choice of statistics.",
                options=("checkpoint", "statistics"),
            )
        if not find_blocks(self.model):
            raise UnsuitableModel(
                "not_applicable",
                "checkpoint needs blocks, modules with layers inside; this model has none. "
                "Leave checkpoint out, or use micro_batch.",
                option="checkpoint",
            )

    def needs_several_samples(self) -> bool:
        """A projector with BatchNorm needs a batch, even if the model does not."""
        nsp = self.nsp
        inside = nsp is not None and nsp.statistics == "batch" and batch_norm_layers(nsp.projector)
        return super().needs_several_samples() or bool(inside)

    def _moved(self) -> str:
        names = list(self.parameters_moved)
        return f"{len(names)} tensors, {hashlib.sha256(repr(names).encode()).hexdigest()[:12]}"

    def step(self, x: Tensor) -> Tensor:
        """Predict, then take one optimiser step on the loss."""
        whole = None
        if self.speed.crop:
            whole, x = self.predict(x), self._crop(x)
        self._batch = x
        try:
            with self._trainable_only(), torch.enable_grad():
                logits, loss, gradients = self.differentiate(x)
        finally:
            self._batch = self._first = None  # which hold the graph
            self._passes = []
        logits = logits if whole is None else whole
        if loss is None:
            self.counts.skip("nothing_selected")
            return logits
        self.note_loss("loss", loss)
        if self._update(loss, gradients):
            self.after_update(x)
        return logits

    def differentiate(self, x: Tensor) -> tuple[Tensor, Tensor | None, Sequence[Tensor | None]]:
        """Return logits, loss and the gradients of all that moves, in its order."""
        logits, loss = self.loss(x)
        if loss is None:
            return logits, None, ()
        if self.nsp is None:
            return logits, loss, self.gradients_of(loss)
        own, target = self.nsp(self._known_first(x).known_features)
        self.note_loss("main", loss)
        self.note_loss("prototypes", own)
        loss = loss + own
        view = self._view(x)
        if view is None:
            return logits, loss, self.gradients_of(loss)
        picked, x_view = view
        target = take_samples(target, len(x), picked)
        if not self.nsp.detach_target:
            agreement = self.nsp.agreement(target, self._view_features(x_view))
            self.note_loss("agreement", agreement)
            loss = loss + agreement
            return logits, loss, self.gradients_of(loss)
        # A fixed target leaves the two views independent: the graph of the first is used up before
        # the second is passed, which halves the memory and takes no more time.
        gradients: Sequence[Tensor | None] = self.gradients_of(loss)
        logits, loss, target, self._first = logits.detach(), loss.detach(), target.detach(), None
        agreement = self.nsp.agreement(target, self._view_features(x_view))
        self.note_loss("agreement", agreement)
        gradients = add(gradients, self.gradients_of(agreement))
        return logits, loss + agreement.detach(), gradients

    def gradients_of(self, loss: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of a loss for all that moves, and count the backward."""
        self.counts.backwards += 1
        moved = list(self.parameters_moved.values())
        passes, self._passes = self._passes, []
        leaves = [leaf for each in passes for leaf in each.leaves]
        found = torch.autograd.grad(loss, [*moved, *leaves], allow_unused=True)
        gradients: list[Tensor | None] = list(found[: len(moved)])
        outer = list(found[len(moved) :])
        for each in passes:
            own, outer = outer[: len(each.leaves)], outer[len(each.leaves) :]
            gradients = add(gradients, each.send_back(own, moved))
            self.counts.forwards += 1
        return tuple(gradients)

    def auxiliary(self, x: Tensor) -> Tensor:
        """Return the loss of nearest source prototypes on a batch, of which `loss` made one pass.

        If it made none with a gradient on the batch as it is, one is made here.
        """
        if self.nsp is None:
            return x.new_zeros(())
        loss, target = self.nsp(self._known_first(x).known_features)
        view = self._view(x)
        if view is not None:
            picked, x_view = view
            target = take_samples(target, len(x), picked)
            loss = loss + self.nsp.agreement(target, self._view_features(x_view))
        return loss  # type: ignore[no-any-return]

    def run(
        self,
        x: Tensor,
        moves: bool = True,
        statistics: Statistics | None = None,
        model: nn.Module | None = None,
    ) -> Forward:
        """Run the model once; a pass on the batch with a graph is kept for the auxiliary loss."""
        result = super().run(x, moves, statistics, model)
        if self.nsp is not None and x is self._batch and model is None:
            features = result.known_features
            if self._first is None and features.requires_grad:
                self._first = result
        return result

    def _pass(
        self, x: Tensor, moves: bool, statistics: Statistics | None, model: nn.Module | None
    ) -> Forward:
        whole, size = super()._pass, self.speed.micro_batch
        if size == 0 or len(x) <= size:
            return whole(x, moves, statistics, model)
        found = Pass.of(
            split(x, size, 2 if self.needs_several_samples() else 1),
            lambda part: whole(part, moves, statistics, model),
            lambda part: whole(part, False, statistics, model),
        )
        if torch.is_grad_enabled():
            self._passes.append(found)
        return found.result

    def _known_first(self, x: Tensor) -> Forward:
        return self._first if self._first is not None else self.run(x, moves=False)

    def _crop(self, x: Tensor) -> Tensor:
        """Return a random square of all images, and cut the labels alike if they were revealed."""
        if not self._is_dense:
            raise InvalidConfig(
                "not_applicable",
                "crop is for models that predict every pixel; this one predicts whole images, "
                "which a part of them does not show. Leave crop out, or use micro_batch.",
                option="crop",
            )
        box = random_box(x.shape[2], x.shape[3], self.speed.crop, self.generator)
        if self._labels is not None:
            self._labels = self._labels[..., *box]
        return x[..., *box]

    def _view(self, x: Tensor) -> tuple[slice, Tensor] | None:
        """Return which samples get a transformed view, and the view; None if none does."""
        size = self.speed.view_size(len(x), self.counts.batches)
        if self.nsp is None or self.nsp.consistency == 0 or size == 0:
            return None
        if self._is_dense and self._views.move_pixels:
            raise InvalidConfig(
                "views_move_pixels",
                "expected views that leave every pixel in its place, as this model predicts every "
                'pixel; found crops or mirror images. Use views="test".',
            )
        picked = spread(x, size)
        return picked, apply_views(self._views, x[picked], self.normalization, self.generator)

    def _view_features(self, view: Tensor) -> Tensor:
        return self.run(view, moves=False).known_features

    def _update(self, loss: Tensor, gradients: Sequence[Tensor | None]) -> bool:
        """Step the optimiser; say whether the update was applied."""
        gradients = average(gradients)
        names = [
            name
            for name, gradient in zip(self.parameters_moved, gradients, strict=True)
            if gradient is not None
        ]
        moved = [self.parameters_moved[name] for name in names]
        steps = [gradient for gradient in gradients if gradient is not None]
        if self.regularizer is not None:
            steps = self.regularizer.add_gradient(names, steps, moved, self.previous)
        if not (bool(loss.isfinite()) and all_finite(steps)):
            self.counts.skip("non_finite")
            return False
        before = {name: p.detach().clone() for name, p in zip(names, moved, strict=True)}
        optimizer_before = copy_tree(self._optimizer_tree())
        applied = False
        try:
            self._apply_step(moved, steps)
            applied = all_finite(moved)
        finally:
            if not applied:
                with torch.no_grad():
                    for name, parameter in zip(names, moved, strict=True):
                        parameter.copy_(before[name])
                self._load_optimizer_tree(optimizer_before)
        if not applied:
            self.counts.skip("non_finite")
            return False
        self.counts.updates += 1
        if self.regularizer is not None and self.regularizer.anchor == "previous":
            self.previous = before
        return True

    def _apply_step(self, moved: Sequence[nn.Parameter], steps: Sequence[Tensor]) -> None:
        """Step the optimiser on given gradients; a caller's own `.grad` is left as it is."""
        kept = [parameter.grad for parameter in self.parameters_moved.values()]
        self.optimizer.zero_grad(set_to_none=True)
        try:
            for parameter, gradient in zip(moved, steps, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
        finally:
            for parameter, own in zip(self.parameters_moved.values(), kept, strict=True):
                parameter.grad = own

    @contextmanager
    def _trainable_only(self) -> Iterator[None]:
        """Ask gradients of what moves only, which saves activations; give the flags back."""
        moved = {id(parameter) for parameter in self.parameters_moved.values()}
        flags = [(parameter, parameter.requires_grad) for parameter in self.parameters()]
        try:
            for parameter, _ in flags:
                parameter.requires_grad_(id(parameter) in moved)
            yield
        finally:
            for parameter, flag in flags:
                parameter.requires_grad_(flag)

    def _optimizer_tree(self) -> Tree:
        return {
            name: dict(self.optimizer.state[parameter])
            for name, parameter in self.parameters_moved.items()
            if parameter in self.optimizer.state
        }

    def _load_optimizer_tree(self, tree: Tree) -> None:
        self.optimizer.state.clear()
        for name, values in tree.items():
            parameter = self.parameters_moved[name]
            # Adam counts its steps on the CPU, in single precision; everything else is like the
            # parameter.
            self.optimizer.state[parameter] = {
                key: value.to(parameter) if isinstance(value, Tensor) and key != "step" else value
                for key, value in values.items()
            }
