"""The base class of methods that learn by gradient steps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from acclimate.artifact import Artifact
from acclimate.errors import AcclimateWarning, ArtifactMissing, InvalidConfig, UnsuitableModel
from acclimate.export import ExportPlan, refuse_export
from acclimate.forward import (
    Forward,
    Pass,
    is_about_inference,
    no_gradient,
    split,
    sum_gradients,
)
from acclimate.functional.across import average
from acclimate.functional.checkpointing import find_blocks
from acclimate.functional.inputs import all_finite
from acclimate.functional.norm import Statistics, norm_parameters
from acclimate.functional.pixels import random_box
from acclimate.functional.views import Views, apply_views, spread
from acclimate.methods.config import Config, GradientConfig, MethodCard, Problem
from acclimate.methods.method import Method
from acclimate.schema import Fields, Schema, TensorOf, like
from acclimate.snapshot import Tree, copy_tree
from acclimate.terms.term import ActiveTerm, Term


class GradientMethod(Method):
    """A method that takes one optimiser step per batch.

    A subclass defines `loss`. It defines `trainable` if it does not train all parameters,
    `after_update` if more happens after an update, and `differentiate` if one backward pass does
    not give the gradients. Terms can be added to any such method:
    `adapt(..., terms=["swr", "nsp"])`.

    An update that would make any parameter non-finite is not applied; it is counted in
    `counts.skipped["non_finite"]`. A batch from which no sample is selected is counted in
    `counts.skipped["nothing_selected"]`, and an update that changed no parameter in
    `counts.skipped["unchanged"]`.
    """

    config_class = GradientConfig
    config: GradientConfig
    card = MethodCard(moves="all parameters", backwards=1)
    takes_terms = True
    #: The terms that are part of the method itself. Their options are those of the config.
    contains: ClassVar[tuple[type[Term], ...]] = ()

    #: The trained parameters by name: those of the model under their own names, and those of terms.
    parameters_moved: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer
    #: The active terms by name: an nn.ModuleDict of `ActiveTerm`.
    terms: Any

    _first: Forward | None
    _passes: list[Pass]

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "contains" in vars(cls) and "needs" not in vars(cls):
            cls.needs = tuple(part for term in cls.contains for part in term.needs)

    # Hooks for subclasses -----------------------------------------------------------------------

    @classmethod
    def trainable(cls, model: nn.Module, config: Any) -> dict[str, nn.Parameter]:
        """Return the parameters to train, by name; by default all that are not frozen."""
        return {name: p for name, p in model.named_parameters() if p.requires_grad}

    @classmethod
    def check(cls, model: nn.Module, config: Config) -> list[Problem]:
        """Report a model without a parameter that could be trained."""
        moved = cls.trainable(model, config).values()
        if any(parameter.dtype == torch.float16 for parameter in moved):
            what = (
                "float16 parameters cannot be trained: small updates are lost, and Adam's divisor "
                "rounds to zero."
            )
            return [Problem("precision", what, "Use model.bfloat16() or model.float().")]
        what = "every parameter that this method would train is frozen."
        remedy = "Unfreeze the model with model.requires_grad_(True)."
        return [] if moved else [Problem("parameters", what, remedy)]

    @classmethod
    def own_terms(cls, config: Any) -> tuple[Term, ...]:
        """Return the terms that are part of the method itself, with their options."""
        return tuple(term.taken_from(config) for term in cls.contains)

    def trained(self) -> Mapping[str, nn.Parameter]:
        """Return the model's parameters that this instance trains: `trainable`, or fewer."""
        return self.trainable(self.model, self.config)

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits of a batch and the loss to minimise. Gradients are enabled.

        Return None as loss if there is nothing to learn from this batch.
        """
        raise TypeError(f"{type(self).__name__} must define loss()")

    def after_update(self, x: Tensor) -> None:
        """Run after an update, without gradients: update a teacher, restore weights."""

    # Tools for subclasses and terms -------------------------------------------------------------

    @property
    def known_artifact(self) -> Artifact:
        """The artifact, where the method or a term needs one; it is an error if there is none."""
        if self.artifact is None:
            raise ArtifactMissing(
                "artifact_needed",
                f'The method "{self.name}" or one of its terms needs an artifact, found none. '
                "Prepare one with acclimate.prepare(model, source).",
                methods=(self.name,),
            )
        return self.artifact

    def first_pass(self, x: Tensor) -> Forward:
        """Return the pass with a graph that `loss` ran on the batch; run one if there is none.

        Terms take logits and features from it, so that no forward pass runs twice.
        """
        return self._first if self._first is not None else self.run(x, moves=False)

    def forget_pass(self) -> None:
        """Discard the pass that `first_pass` returns, because weights have changed since."""
        self._first = None

    def view(self, x: Tensor, views: Views) -> tuple[slice, Tensor] | None:
        """Return the selected samples and their transformed view; None if none is selected.

        `speed` decides how many samples are selected.
        """
        size = self.speed.view_size(len(x), self.counts.batches)
        if size == 0:
            return None
        if self._is_dense and views.moves_pixels:
            raise InvalidConfig(
                "views_move_pixels",
                "Expected views that do not move pixels, because this model predicts every pixel, "
                'found crops or flips. Use views="test".',
            )
        picked = spread(x, size)
        return picked, apply_views(views, x[picked], self.normalization, self.generator)

    def gradients_of(self, loss: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of a loss for all trained parameters, and count the backward."""
        if not loss.requires_grad:
            raise no_gradient(f'the method "{self.name}"')
        if self.is_learning:
            self.counts.backwards += 1
        moved = list(self.parameters_moved.values())
        passes, self._passes = self._passes, []
        leaves = [leaf for each in passes for leaf in each.leaves]
        found = torch.autograd.grad(loss, [*moved, *leaves], allow_unused=True)
        gradients: list[Tensor | None] = list(found[: len(moved)])
        outer = list(found[len(moved) :])
        for each in passes:
            own, outer = outer[: len(each.leaves)], outer[len(each.leaves) :]
            gradients = sum_gradients(gradients, each.send_back(own, moved))
            self.counts.forwards += 1
        return tuple(gradients)

    def differentiate(
        self, x: Tensor, loss: Tensor
    ) -> tuple[Tensor | None, Sequence[Tensor | None]]:
        """Return the whole loss and the gradients of all trained parameters, in their order.

        `loss` is what the method of that name returned for the batch. Return None and nothing if
        there is nothing to learn after all.
        """
        return self.add_terms(x, loss)

    def add_terms(self, x: Tensor, loss: Tensor) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Return the loss with all terms, and its gradients."""
        if not self.terms:
            return loss, self.gradients_of(loss)
        self.note_loss("main", loss)
        for term in self._terms_with("loss"):
            added = term.loss(self, x)
            loss = loss if added is None else loss + added
        gradients: Sequence[Tensor | None] = self.gradients_of(loss)
        # Free the graph of the first pass before the following passes need memory.
        loss = loss.detach()
        self.forget_pass()
        for term in self._terms_with("later_loss"):
            added = term.later_loss(self, x)
            if added is not None:
                gradients = sum_gradients(gradients, self.gradients_of(added))
                loss = loss + added.detach()
        return loss, gradients

    def update(self, loss: Tensor, gradients: Sequence[Tensor | None]) -> bool:
        """Step the optimiser; return whether the update was applied."""
        found = zip(self.parameters_moved, average(gradients), strict=True)
        given = {name: gradient for name, gradient in found if gradient is not None}
        moved = [self.parameters_moved[name] for name in given]
        steps: Sequence[Tensor] = list(given.values())
        for term in self._terms_with("add_gradients"):
            steps = term.add_gradients(list(given), steps, moved)
        before = [parameter.detach().clone() for parameter in moved]
        is_finite = bool(loss.isfinite()) and all_finite(steps)
        if not (is_finite and self._try_step(moved, steps, before)):
            self.counts.skip("non_finite")
            return False
        if all(map(torch.equal, before, moved)):
            self._report_unchanged()
        else:
            self.counts.updates += 1
        for term in self._terms_with("after_update"):
            term.after_update(dict(zip(given, before, strict=True)))
        return True

    # Implementation -----------------------------------------------------------------------------

    def setup(self) -> None:
        """Attach the terms, collect the trained parameters and build the optimiser."""
        self.terms = nn.ModuleDict()
        for term in (*self.own_terms(self.config), *self.added_terms):
            self.terms[term.name] = term.attach(self)
        self.parameters_moved = dict(self.trained())
        for name, active in self.terms.items():
            own = active.trainable().items()
            self.parameters_moved |= {f"{name}.{key}": parameter for key, parameter in own}
        if not self.parameters_moved:
            raise UnsuitableModel(
                "nothing_to_train",
                f'Expected parameters to train for the method "{self.name}", but all are frozen. '
                "Unfreeze the model with model.requires_grad_(True).",
            )
        if limit := self.speed.pinned:
            terms = self.terms.values()
            held = [n for n in self.parameters_moved if any(t.holds(n, limit) for t in terms)]
            for name in held[: len(self.parameters_moved) - 1]:
                del self.parameters_moved[name]
        self.optimizer = build_optimizer(list(self.parameters_moved.values()), self.config)
        for active in self.terms.values():
            active.start(self)
        self._batch: Tensor | None = None
        self._first = None
        self._passes = []
        self._check_speed()

    def scale_rate(self, share: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = share * self.config.lr

    def _terms_with(self, hook: str) -> list[ActiveTerm]:
        """Return the terms that override a hook of `ActiveTerm`."""
        terms: Iterable[ActiveTerm] = self.terms.values()
        return [t for t in terms if getattr(type(t), hook) is not getattr(ActiveTerm, hook)]

    def _answer(self, logits: Tensor, found: Forward) -> Tensor:
        """Return the logits of the term that replaces the model's, if one does."""
        for term in self._terms_with("answer"):
            made = term.answer(self, found)
            logits = logits if made is None else made
        return logits

    def infer(self, x: Tensor) -> Tensor:
        found = self.run(x, moves=False)
        return self._answer(found.logits, found)

    def plan_export(self) -> ExportPlan:
        """Refuse a term that replaces the predictions."""
        for term in self._terms_with("answer"):
            if getattr(getattr(term, "options", None), "predictor", "") != "head":
                raise refuse_export(self.name, "one of its terms replaces the predictions.")
        return super().plan_export()

    @property
    def moving_statistics(self) -> str:
        """The BatchNorm statistics in use; empty if the model has no BatchNorm."""
        return self.statistics if self._has_batch_norm else ""

    def _check_speed(self) -> None:
        """Refuse speed options that would change the result in an unintended way."""
        moving = self.moving_statistics
        excluded = {
            "micro_batch": ("running", "robust", "balanced", "auto"),
            "checkpoint": ("robust", "balanced", "auto"),
        }
        for option, statistics in excluded.items():
            if getattr(self.speed, option) and moving in statistics:
                raise InvalidConfig(
                    "conflicting_options",
                    f"The option {option} cannot be used with {moving} BatchNorm statistics, "
                    "because these would change between two passes of one batch. Use "
                    'statistics="batch" or "mixed".',
                    options=(option, "statistics"),
                )
        if self.speed.checkpoint and not find_blocks(self.model):
            raise UnsuitableModel(
                "not_applicable",
                "The option checkpoint needs a model with blocks (modules that contain layers), "
                "found none. Remove checkpoint, or use micro_batch.",
                option="checkpoint",
            )

    def needs_several_samples(self) -> bool:
        """A term may need a batch even if the model does not."""
        terms = self._terms_with("needs_several_samples")
        return super().needs_several_samples() or any(t.needs_several_samples() for t in terms)

    def step(self, x: Tensor) -> Iterator[Tensor]:
        whole = None
        if self.speed.crop:
            whole, x = self.infer(x), self._crop(x)
        self._batch = x
        try:
            with self._differentiable():
                logits, loss = self.loss(x)
                if self.terms and loss is not None:
                    logits = self._answer(logits, self.first_pass(x))
            yield logits.detach() if whole is None else whole
            del logits
            gradients: Sequence[Tensor | None] = ()
            if loss is not None:
                with self._differentiable():
                    loss, gradients = self.differentiate(x, loss)
        finally:
            self._batch = self._first = None  # these keep the graph alive
            self._passes = []
        if loss is None:
            self.counts.skip("nothing_selected")
            return
        self.note_loss("loss", loss)
        if self.update(loss, gradients):
            self.after_update(x)

    @contextmanager
    def _differentiable(self) -> Iterator[None]:
        """Compute with gradients of the trained parameters."""
        try:
            with self._trainable_only(), torch.enable_grad():
                yield
        except RuntimeError as error:
            if not is_about_inference(error):
                raise
            raise no_gradient(f'the method "{self.name}"') from error

    def _pass(
        self, x: Tensor, moves: bool, statistics: Statistics | None, model: nn.Module | None
    ) -> Forward:
        """Run the model in micro-batches; keep the first pass on the batch for the terms."""
        whole, size = super()._pass, self.speed.micro_batch
        if size == 0 or len(x) <= size:
            result = whole(x, moves, statistics, model)
        else:
            parts = Pass.of(
                split(x, size, 2 if self.needs_several_samples() else 1),
                lambda part: whole(part, moves, statistics, model),
                lambda part: whole(part, False, statistics, model),
            )
            result = parts.result
            if torch.is_grad_enabled():
                self._passes.append(parts)
        if self.terms and x is self._batch and model is None and self._first is None:
            known = result.logits if result.features is None else result.features
            self._first = result if known.requires_grad else None
        return result

    def _crop(self, x: Tensor) -> Tensor:
        """Return a random square crop of all images; crop revealed labels in the same way."""
        if not self._is_dense:
            raise InvalidConfig(
                "not_applicable",
                "The option crop is for models that predict every pixel, but this model predicts "
                "whole images. Remove crop, or use micro_batch.",
                option="crop",
            )
        box = random_box(x.shape[2], x.shape[3], self.speed.crop, self.generator)
        if self.labels is not None:
            self.labels = self.labels[..., *box]
        return x[..., *box]

    def _try_step(
        self, moved: Sequence[nn.Parameter], steps: Sequence[Tensor], before: Sequence[Tensor]
    ) -> bool:
        """Step the optimiser with the given gradients; the caller's `.grad` is unchanged.

        If a parameter is not finite afterwards, or the optimiser fails, everything is restored.
        """
        every, state = list(self.parameters_moved.values()), copy_tree(self._optimizer_tree())
        kept = [parameter.grad for parameter in every]
        self.optimizer.zero_grad(set_to_none=True)
        is_finite = False
        try:
            for parameter, gradient in zip(moved, steps, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
            is_finite = all_finite(moved)
        finally:
            for parameter, own in zip(every, kept, strict=True):
                parameter.grad = own
            if not is_finite:
                copy_values(before, moved)
                self._load_optimizer_tree(state)
        return is_finite

    def _report_unchanged(self) -> None:
        """Count an update that changed no parameter, and warn once."""
        self.counts.skip("unchanged")
        self._warn(
            AcclimateWarning(
                "nothing_changed",
                f'An update of the method "{self.name}" changed no parameter, because the '
                "gradients or the learning rate are zero or too small. Such updates are counted "
                'in counts.skipped["unchanged"]. Check the learning rate and the loss.',
            )
        )

    @contextmanager
    def _trainable_only(self) -> Iterator[None]:
        """Require gradients of trained parameters only, which saves memory; restore the flags."""
        moved = {id(parameter) for parameter in self.parameters_moved.values()}
        flags = [(parameter, parameter.requires_grad) for parameter in self.parameters()]
        try:
            for parameter, _ in flags:
                parameter.requires_grad_(id(parameter) in moved)
            yield
        finally:
            for parameter, flag in flags:
                parameter.requires_grad_(flag)

    def _declared_state(self) -> dict[str, Tree]:
        terms = {name: active.state for name, active in self.terms.items()}
        return {**super()._declared_state(), "terms": terms}

    def _set_declared_state(self, state: dict[str, Tree]) -> None:
        super()._set_declared_state(state)
        for name, active in self.terms.items():
            active.state = state["terms"][name]

    def _state_schemas(self) -> dict[str, Schema]:
        terms = {name: active.schema(self) for name, active in self.terms.items()}
        return {**super()._state_schemas(), "terms": Fields(terms)}

    def _identity(self) -> dict[str, Any]:
        names = list(self.parameters_moved)
        moved = f"{len(names)} tensors, {hashlib.sha256(repr(names).encode()).hexdigest()[:12]}"
        terms = {term.name: term.to_dict() for term in self.added_terms}
        return {**super()._identity(), "terms": terms, "moves": moved}

    def _optimizer_tree(self) -> Tree:
        return {
            name: dict(self.optimizer.state[parameter])
            for name, parameter in self.parameters_moved.items()
            if parameter in self.optimizer.state
        }

    def _optimizer_schema(self) -> Schema:
        """Return what the optimiser's state must look like: what it has after a step."""
        probe = nn.Parameter(torch.zeros(2, 3))
        probe.grad = torch.zeros(2, 3)
        optimizer = build_optimizer([probe], self.config)
        optimizer.step()

        def schema(key: str, value: Any, parameter: nn.Parameter) -> Schema:
            if not isinstance(value, Tensor):
                return like(value)
            low = 0.0 if key in ("step", "exp_avg_sq", "max_exp_avg_sq") else None
            form = parameter if value.shape == probe.shape else value
            return TensorOf(tuple(form.shape), form.dtype, low)

        made = optimizer.state[probe].items()
        fields = {
            name: Fields({key: schema(key, value, parameter) for key, value in made})
            for name, parameter in self.parameters_moved.items()
        }
        return Fields(fields, partial=True)

    def _load_optimizer_tree(self, tree: Tree) -> None:
        self.optimizer.state.clear()
        for name, values in tree.items():
            parameter = self.parameters_moved[name]
            # Adam counts its steps on the CPU in single precision. All other tensors have the
            # device and dtype of the parameter.
            self.optimizer.state[parameter] = {
                key: value.to(parameter) if isinstance(value, Tensor) and key != "step" else value
                for key, value in values.items()
            }


class NormLayersMethod(GradientMethod):
    """A gradient method that trains scale and shift of the normalisation layers only."""

    card = MethodCard(moves="scale and shift of normalisation layers", backwards=1)

    @classmethod
    def trainable(cls, model: nn.Module, config: Any) -> dict[str, nn.Parameter]:
        """Return scale and shift of the normalisation layers that are not frozen."""
        return {name: p for name, p in norm_parameters(model).items() if p.requires_grad}

    @classmethod
    def check(cls, model: nn.Module, config: Config) -> list[Problem]:
        """Report a model without trainable normalisation layers."""
        if norm_parameters(model):
            return super().check(model, config)
        what = (
            "no BatchNorm, InstanceNorm, GroupNorm, LayerNorm or RMSNorm with parameters was "
            f"found; {cls.name} moves only those."
        )
        return [Problem("normalisation", what, 'Use "swr_nsp", which trains other layers.')]


def build_optimizer(
    parameters: Sequence[nn.Parameter] | Sequence[dict[str, Any]], config: GradientConfig
) -> torch.optim.Optimizer:
    """Build the optimiser that a configuration names, for parameters or groups of them."""
    shared: Any = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        momentum, nesterov = config.sgd_momentum, config.nesterov
        return torch.optim.SGD(parameters, momentum=momentum, nesterov=nesterov, **shared)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, betas=(config.beta1, config.beta2), **shared)


@torch.no_grad()
def copy_values(values: Sequence[Tensor], parameters: Sequence[nn.Parameter]) -> None:
    """Copy values into parameters."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
