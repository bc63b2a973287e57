"""The tasks of the demonstration: images, a model trained on them, and the words for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import nn

from acclimate import zoo
from acclimate.builtin import load_model
from acclimate.data import SETS, LabelledImages, data_root, find_state, get, load
from acclimate.data.places import Notify
from acclimate.errors import BadInput, did_you_mean
from acclimate.parts.source import Progress


@dataclass(frozen=True)
class Task:
    """What a demonstration is about.

    Attributes:
        data: Name of the set of images.
        text: What they show, in a few words that can follow "trained on".
        model_text: What the model is, in a few words.
        load_model: Returns the source model, for images in [0, 1].
    """

    data: str
    text: str
    model_text: str
    load_model: Callable[[], nn.Module]

    def load(self, split: str, n: int) -> LabelledImages:
        """Return the first images of a split.

        Raises:
            BadInput: It is not on disk, or has fewer.
        """
        if SETS[self.data].kind == "made":
            return load(self.data, split, n=n)
        whole = load(self.data, split)
        if n > len(whole):
            raise BadInput(
                f"expected at most {len(whole)} images, as the {split} split of {self.data} has "
                f"that many, found {n}."
            )
        description = {**whole.description, "n": n}
        labels = np.array(whole.labels[:n])  # torch wants memory that could be written to
        return LabelledImages(np.array(whole.images[:n]), labels, whole.classes, description)


TASKS = {
    "builtin": Task(
        "builtin",
        "computer-made photographs of toys in ten shapes",
        "wide residual network",
        load_model,
    ),
    "cifar10": Task(
        "cifar10",
        "small photographs of animals and vehicles in ten classes (CIFAR-10)",
        "residual network of nine layers",
        lambda: zoo.load("resnet9-cifar10"),
    ),
}


def get_task(name: str) -> Task:
    """Return the task of that name.

    Raises:
        BadInput: There is none.
    """
    if name not in TASKS:
        raise BadInput(f'the demo has no data "{name}". {did_you_mean(name, TASKS)}')
    return TASKS[name]


def fetch_data(name: str, progress: Progress | None = None, notify: Notify | None = None) -> None:
    """Fetch the images of a task if they are not on disk, having said so.

    Args:
        name: Of the task.
        progress: Is told of megabytes.
        notify: Is told what is fetched, and of each mirror that failed.
    """
    task = get_task(name)
    if find_state(task.data):
        return
    if notify is not None:
        size = sum(file.size or 0 for file in SETS[task.data].files) / 1e6
        notify(f"{task.data} is not in {data_root()}: fetching it once ({size:.0f} MB) …")
    get(task.data, progress=progress, notify=notify)
