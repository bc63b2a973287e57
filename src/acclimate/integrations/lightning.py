"""A callback that adapts a model while Lightning tests it or predicts with it.

It works with `lightning` and with `pytorch_lightning`. If both are installed, import yours first.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from acclimate.artifact import Artifact
from acclimate.errors import AcclimateWarning, MissingExtra, UnsuitableModel, did_you_mean, warn
from acclimate.guard import GuardReport
from acclimate.integrations.in_place import in_place
from acclimate.methods.method import Counts, Method
from acclimate.zoo.torchvision_compat import import_library

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _find_callback() -> Any:
    """Return the base class of callbacks of the package in use."""
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return import_library(name, "lightning").Callback
        except MissingExtra as error:
            missing = error
    raise missing


if TYPE_CHECKING:
    Callback = object
else:
    Callback = _find_callback()


class Acclimate(Callback):
    """Adapts the model in `trainer.test` and `trainer.predict`, and gives it back bit for bit.

    While it runs, every call of the module predicts and learns, although Lightning has put it in
    eval mode and disabled gradients. Labels of batches are not looked at. With several processes,
    each adapts on its own share of the batches.

    Args:
        method: Name of the method.
        artifact: Artifact of the module.
        module: Name of the module that test and predict steps call, such as `"net"` if they call
            `self.net(x)`; by default the LightningModule itself, as in `self(x)`.
        reset_each: Whether to reset the model before each further dataloader.
        on_adapt: Called with the adapted model when it is made, for example to log what it does.
        **options: All other arguments of `acclimate.adapt`.

    Attributes:
        adapted: The adapted model; None outside of test and predict.
        counts: Its counts at the end of the last test or prediction; None before.
        report: The report of the guard at that time; None without a guard.
    """

    def __init__(
        self,
        method: str = "steady",
        artifact: Artifact | None = None,
        *,
        module: str | None = None,
        reset_each: bool = False,
        on_adapt: Callable[[Method], object] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.method, self.artifact, self.module = method, artifact, module
        self.reset_each, self.on_adapt, self.options = reset_each, on_adapt, options
        self.adapted: Method | None = None
        self.counts: Counts | None = None
        self.report: GuardReport | None = None
        self._stack = ExitStack()
        self._dataloader = 0

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Adapt the module."""
        target = pl_module if self.module is None else _get_module(pl_module, self.module)
        self.adapted = self._stack.enter_context(
            in_place(target, self.method, self.artifact, **self.options)
        )
        self._dataloader = 0
        if self.on_adapt is not None:
            self.on_adapt(self.adapted)

    def on_test_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Reset between dataloaders, if that was asked for."""
        if dataloader_idx != self._dataloader and self.reset_each and self.adapted is not None:
            with torch.inference_mode(False):  # Lightning's own; the state must be normal tensors
                self.adapted.reset()
        self._dataloader = dataloader_idx

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the module back."""
        self._end()
        if self.counts is not None and self.counts.batches == 0:
            warn(
                AcclimateWarning(
                    "nothing_adapted",
                    "The module that was adapted was not called. Name the one that your steps "
                    'call: Acclimate(module="net") for self.net(x).',
                )
            )

    on_predict_start = on_test_start
    on_predict_batch_start = on_test_batch_start
    on_predict_end = on_test_end

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the module back."""
        self._end()

    def _end(self) -> None:
        if self.adapted is None:
            return
        self.counts = copy.deepcopy(self.adapted.counts)
        self.report = None if self.adapted.guard is None else self.adapted.report()
        self.adapted = None
        self._stack.close()


def _get_module(model: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if name not in modules:
        known = tuple(child for child, _ in model.named_children())
        raise UnsuitableModel(
            "unknown_name",
            f'The LightningModule has no module "{name}". {did_you_mean(name, known)}',
            kind="module",
            name=name,
            known=known,
        )
    return modules[name]
