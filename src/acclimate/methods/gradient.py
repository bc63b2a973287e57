"""The base of methods that learn by gradient steps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from acclimate.errors import UnsuitableModel
from acclimate.methods.base import Method, Problem
from acclimate.methods.config import Config, GradientConfig
from acclimate.snapshot import Tree, copy_tree
from acclimate.terms.swr import Swr


class GradientMethod(Method):
    """A method that takes one optimiser step a batch.

    A subclass writes `loss`, and `trainable` if not all parameters move. An update that would make
    any parameter non-finite is not applied; it is counted in `counts.skipped["non_finite"]`.
    """

    config_class: ClassVar[type[Config]] = GradientConfig
    config: GradientConfig
    backwards: ClassVar[int] = 1

    regularizer: Swr | None = None
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

    def extra_trainable(self) -> dict[str, nn.Parameter]:
        """Return parameters that move besides the model's own, by name."""
        return {}

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of a batch and the loss to be minimised; runs with gradients."""
        raise TypeError(f"{type(self).__name__} must define loss()")

    def setup(self) -> None:
        """Collect what moves and build the optimiser."""
        self.parameters_moved = {
            **self.trainable(self.model, self.config),
            **self.extra_trainable(),
        }
        if not self.parameters_moved:
            raise UnsuitableModel(f"{self.name} finds no parameter to train in this model.")
        self.optimizer = build_optimizer(list(self.parameters_moved.values()), self.config)
        # What SWR holds the next update to: the values before the last applied update, so that
        # the anchor lags one update behind. (Taken after the update, the term would be zero.)
        self.add_state("previous", {})

    def _moved(self) -> str:
        names = list(self.parameters_moved)
        return f"{len(names)} tensors, {hashlib.sha256(repr(names).encode()).hexdigest()[:12]}"

    def step(self, x: Tensor) -> Tensor:
        """Predict, then take one optimiser step on the loss."""
        with self._trainable_only(), torch.enable_grad():
            logits, loss = self.loss(x)
            gradients = torch.autograd.grad(
                loss, list(self.parameters_moved.values()), allow_unused=True
            )
        self.counts.backwards += 1
        self._update(loss, gradients)
        return logits

    def _update(self, loss: Tensor, gradients: Sequence[Tensor | None]) -> None:
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
            return
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
            return
        self.counts.updates += 1
        if self.regularizer is not None and self.regularizer.anchor == "previous":
            self.previous = before

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


def build_optimizer(
    parameters: Sequence[nn.Parameter], config: GradientConfig
) -> torch.optim.Optimizer:
    """Build the optimiser a configuration names."""
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=config.lr,
            momentum=config.sgd_momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
        )
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(
        parameters,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Say whether no tensor holds an infinity or a NaN."""
    filled = [tensor.detach() for tensor in tensors if tensor.numel()]
    if not filled:
        return True
    # The largest magnitude: exact, carries NaN and infinity, and cannot overflow as a sum does.
    largest = torch._foreach_norm(filled, float("inf"))
    return bool(torch.stack([value.isfinite().to(filled[0].device) for value in largest]).all())
