"""Training of a classifier from fresh weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from acclimate import zoo
from acclimate.training.objectives import Objective, make_objective
from acclimate.training.sets import load_sets
from acclimate.training.settings import TrainResult, TrainSettings, learning_rate
from acclimate.training.trainer import Task, Trained, check_logits, first_images


class Classification(Task[TrainResult]):
    """Cross entropy on images with one label, by SGD."""

    settings: TrainSettings
    remedy = "Use a smaller --lr, or more --warmup-epochs."

    def __init__(
        self, settings: TrainSettings, root: str | Path | None, objective: Objective | None = None
    ) -> None:
        self.settings, self.n_epochs = settings, settings.epochs
        self.data, self.test = load_sets(settings, root)
        self.objective = make_objective(settings) if objective is None else objective

    def identify(self) -> dict[str, Any]:
        return {
            "settings": self.settings.to_dict(),
            "objective": type(self.objective).__name__,
            "data": self.data.description,
            "test_data": None if self.test is None else self.test.description,
            "classes": list(self.data.classes),
        }

    def build(self) -> Trained:
        name, n_classes, x = self.settings.model, len(self.data.classes), first_images(self.data)
        is_function = ":" in name and not name.startswith(("timm:", "torchvision:"))
        model = zoo.build(name, None if is_function else n_classes)
        check_logits(model, name, x, n_classes, per_pixel=False)
        self.objective.attach(model, x)
        return Trained(model, self.objective)

    def make_optimizer(self) -> torch.optim.Optimizer:
        options = self.settings
        return torch.optim.SGD(
            self.trained.parameters(),
            options.lr,
            momentum=options.momentum,
            nesterov=options.momentum > 0,
            weight_decay=options.weight_decay,
        )

    def rate(self, step: int, n_steps: int) -> float:
        return learning_rate(self.settings, step, n_steps)

    def end(self, figures: dict[str, Any]) -> dict[str, Any]:
        line = {name: figures[name] for name in ("epoch", "loss", "lr", "minutes")}
        return {**line, "loss": round(line["loss"], 6)}

    def finish(self) -> dict[str, Any]:
        losses, error = [line["loss"] for line in self.log], None
        if self.test is not None:
            error = self.error_percent(self.test)
            self.log.append({"test_error_percent": round(error, 4)})
        return {"test_error_percent": error, "loss": losses}

    def write(self, out: Path, card: dict[str, Any]) -> None:
        self.objective.write(out, self.trained.model, self.identify())
        super().write(out, card)

    def read_result(self, path: Path, done: dict[str, Any], was_done: bool) -> TrainResult:
        error, losses = done["test_error_percent"], tuple(done["loss"])
        return TrainResult(path, error, done["minutes"], losses, was_done)
