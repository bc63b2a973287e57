"""A run on its way: it begins anew or goes on, keeps where it stands, and ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.training.checkpoint import (
    Position,
    checkpoint_path,
    load_checkpoint,
    restore,
    save_checkpoint,
)
from acclimate.training.output import log_path, write_log


class Course:
    """What every kind of training does to survive being cut. Files are those of the first process.

    Args:
        fabric: What `make_fabric` gave.
        out: Where the weights are to be written in the end.
        run: What run it is: only the same one is gone on with.
        trained: All that is trained.
        optimizer: As it was before Fabric set it up.

    Attributes:
        position: How far it has come.
    """

    def __init__(
        self,
        fabric: Any,
        out: Path,
        run: Mapping[str, Any],
        trained: nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.position = Position()
        self._fabric, self._out, self._run = fabric, out, run
        self._trained, self._optimizer = trained, optimizer

    def begin(
        self, *, resume: bool, force: bool, others: tuple[Path, ...] = ()
    ) -> dict[str, Tensor]:
        """Take up what an earlier call left, or forget it.

        Args:
            resume: Go on from the checkpoint, if there is one.
            force: Remove it, the log and the others: a later `resume` might take them up.
            others: Files that this kind of training leaves besides.

        Returns:
            What the checkpoint held; nothing if the run begins.
        """
        place = checkpoint_path(self._out)
        if force and self._fabric.is_global_zero:
            for path in (place, log_path(self._out), *others):
                path.unlink(missing_ok=True)
        if not resume or not place.exists():
            return {}
        tensors, self.position = load_checkpoint(place, self._run)
        restore(tensors, self._trained, self._optimizer)
        self._fabric.strategy.precision.load_state_dict(self.position.scaler)
        return tensors

    def keep(self, extra: Mapping[str, Tensor] | None = None) -> None:
        """Write where the run stands, with what else `begin` shall return."""
        self.position.scaler = self._fabric.strategy.precision.state_dict()
        if self._fabric.is_global_zero:
            place = checkpoint_path(self._out)
            save_checkpoint(place, self._trained, self._optimizer, self.position, self._run, extra)

    def log(self, lines: list[dict[str, Any]]) -> None:
        """Write the figures so far."""
        if self._fabric.is_global_zero:
            write_log(log_path(self._out), lines)

    def end(self) -> None:
        """Remove the checkpoint, when the weights are written."""
        if self._fabric.is_global_zero:
            checkpoint_path(self._out).unlink(missing_ok=True)
        self._fabric.barrier()
