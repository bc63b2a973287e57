"""The tasks of the demonstration: images, models trained on them, and the words for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import nn

from acclimate import zoo
from acclimate.builtin import load_head, load_model
from acclimate.data import SETS, ArrayStore, data_root, find_state, get, load
from acclimate.data.places import Notify
from acclimate.errors import BadInput, did_you_mean
from acclimate.progress import Progress


@dataclass(frozen=True)
class SourceModel:
    """A model trained on the images of a task.

    Attributes:
        name: What distinguishes it from others of the task, in one word.
        text: What it is, in a few words.
        load: Returns it, for images in [0, 1].
        load_head: Returns the projection head that it was trained with jointly, if it was.
    """

    name: str
    text: str
    load: Callable[[], nn.Module]
    load_head: Callable[[], nn.Module] | None = None


@dataclass(frozen=True)
class Task:
    """What a demonstration is about.

    Attributes:
        data: Name of the set of images.
        text: What they show, in a few words that can follow "trained on".
        models: A method stands on the first of these that it does not refuse.
    """

    data: str
    text: str
    models: tuple[SourceModel, ...]

    def load(self, split: str, n: int) -> ArrayStore:
        """Return the first images of a split.

        Raises:
            BadInput: It is not on disk, or has fewer.
        """
        is_generated = SETS[self.data].is_generated
        whole = load(self.data, split, n=n) if is_generated else load(self.data, split)
        if n > len(whole):
            raise BadInput(
                "out_of_range",
                f"Expected at most {len(whole)} images, the number of images in the {split} split "
                f"of {self.data}, found {n}.",
                option="images",
                found=n,
            )
        chosen = whole.first(n)
        images = np.array(chosen[:])  # a tensor needs memory that is writable
        return ArrayStore(images, chosen.labels, chosen.classes, chosen.description)


TASKS = {
    "builtin": Task(
        "builtin",
        "computer-made photographs of toys in ten shapes",
        (
            SourceModel("plain", "wide residual network", load_model),
            SourceModel(
                "iabn",
                "the same network built with instance-aware BatchNorm and trained from fresh "
                "weights on 90,000 images once (the first one: on 100,000 three times)",
                lambda: load_model("iabn"),
            ),
            SourceModel(
                "joint",
                "the first one, trained on with a projection head, jointly on a contrastive loss, "
                "on 20,000 images once",
                lambda: load_model("joint"),
                load_head,
            ),
        ),
    ),
    "cifar10": Task(
        "cifar10",
        "small photographs of animals and vehicles in ten classes (CIFAR-10)",
        (
            SourceModel(
                "plain", "residual network of nine layers", lambda: zoo.load("resnet9-cifar10")
            ),
        ),
    ),
}


def get_task(name: str) -> Task:
    """Return the task of that name.

    Raises:
        BadInput: There is none.
    """
    if name not in TASKS:
        raise BadInput(
            "unknown_name",
            f'The demo has no data set "{name}". {did_you_mean(name, TASKS)}',
            kind="data set",
            name=name,
            known=tuple(TASKS),
        )
    return TASKS[name]


def fetch_data(name: str, progress: Progress | None = None, notify: Notify | None = None) -> None:
    """Fetch the images of a task if they are not on disk, having said so.

    Args:
        name: Of the task.
        progress: Called with the number of megabytes.
        notify: Called with what is fetched, and of each mirror that failed.
    """
    task = get_task(name)
    if find_state(task.data):
        return
    if notify is not None:
        size = sum(file.size or 0 for file in SETS[task.data].files) / 1e6
        notify(f"{task.data} is not in {data_root()}: fetching it once ({size:.0f} MB) …")
    get(task.data, progress=progress, notify=notify)
