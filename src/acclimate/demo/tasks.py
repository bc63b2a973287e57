"""What the demonstration runs: tasks with their source models, settings, and groups of methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from acclimate import zoo
from acclimate.bench.load import find_unsuitable, refuse_methods
from acclimate.builtin import load_head, load_model
from acclimate.corruptions import CORRUPTIONS
from acclimate.data import SETS, ArrayStore, data_root, find_state, get, load
from acclimate.data.places import Notify
from acclimate.demo.settings import DemoChoices
from acclimate.errors import check_at_least, check_each_once, check_name, refuse_value
from acclimate.methods import get_method
from acclimate.options import hp, options
from acclimate.progress import Progress
from acclimate.report import BASELINE

ORDERS = ("shuffled", "sorted")
#: A method is costly if it declares more passes than this for a batch of so many images.
MOST_PASSES, PASSES_BATCH = 100, 200


@dataclass(frozen=True)
class SourceModel:
    """A model trained on the images of a task, for images in [0, 1].

    Attributes:
        name: What distinguishes it from others of the task, in one word.
        text: What it is, in a few words.
        load: Returns it.
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
        """Return the first images of a split."""
        is_generated = SETS[self.data].is_generated
        whole = load(self.data, split, n=n) if is_generated else load(self.data, split)
        if n > len(whole):
            expected = f"at most {len(whole)}, the number of images in {split} of {self.data}"
            refuse_value("images", n, expected)
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
    """Return the task of that name."""
    check_name(name, TASKS, "data set")
    return TASKS[name]


def fetch_data(name: str, progress: Progress | None = None, notify: Notify | None = None) -> None:
    """Fetch the images of a task if they are not on disk, having said so."""
    task = get_task(name)
    if find_state(task.data):
        return
    if notify is not None:
        size = sum(file.size or 0 for file in SETS[task.data].files) / 1e6
        notify(f"{task.data} is not in {data_root()}: fetching it once ({size:.0f} MB) …")
    get(task.data, progress=progress, notify=notify)


@options
class DemoSettings(DemoChoices):
    """What to run; each seed changes order, corruptions, and the draws of methods and artifact."""

    n_source: int = hp(4096, help="Training images the artifact is prepared from.")
    n_penalty: int = hp(1024, help="How many of these the penalty is measured on.")

    def __post_init__(self) -> None:
        super().__post_init__()
        get_task(self.data)
        for name in self.methods:
            get_method(name)
        for name in self.corruptions:
            check_name(name, CORRUPTIONS, "corruption")
        check_name(self.order, ORDERS, "order")
        check_each_once("methods", self.methods)
        check_each_once("corruptions", self.corruptions)
        for option in ("images", "batch_size", "seeds", "n_source", "n_penalty"):
            check_at_least(option, getattr(self, option), 1)
        check_at_least("costly_images", self.costly_images, 0)
        if self.severity not in range(1, 6):
            refuse_value("severity", self.severity, "from 1 to 5")

    @property
    def command(self) -> str:
        """The command line that runs this, without the files it writes.

        >>> DemoSettings(seeds=3, methods=("source", "tent")).command
        'acclimate demo --methods source,tent --seeds 3'
        """
        return self.to_command("demo", without=("n_source", "n_penalty"))


@dataclass(frozen=True)
class Group:
    """Methods that are compared with each other and with no others: on one model, on one stream.

    Attributes:
        name: What sets them apart, as tables show it; empty for the task's own model and all
            images.
        model: They stand on.
        methods: In the order of the table. A group that is set apart begins with the baseline.
        n_images: Of each shift, from the start of the stream.
        is_cut: Whether the stream has more.
    """

    name: str
    model: SourceModel
    methods: tuple[str, ...]
    n_images: int
    is_cut: bool

    @property
    def guests(self) -> tuple[str, ...]:
        """The methods that the group was made for: all, without a baseline that only joined."""
        return tuple(name for name in self.methods if not self.name or name != BASELINE)


def assign_models(
    task: Task, methods: Sequence[str]
) -> tuple[dict[str, SourceModel], dict[str, str]]:
    """Return the first model of the task that each method does not refuse.

    Of methods that refuse all, the reason is returned: that for the first model.
    """
    assigned: dict[str, SourceModel] = {}
    reasons: dict[str, str] = {}
    for model in task.models:
        left = [name for name in methods if name not in assigned]
        if left:
            refused = find_unsuitable(
                model.load(),
                {name: get_method(name).config_class() for name in left},
                has_head=model.load_head is not None,
            )
            assigned |= {name: model for name in left if name not in refused}
            reasons = {**refused, **reasons}
    return assigned, {name: reasons[name] for name in methods if name not in assigned}


def is_costly(method: str) -> bool:
    """Return whether a method declares so many passes that it is measured on fewer images.

    >>> is_costly("memo"), is_costly("cotta")
    (True, False)
    """
    card = get_method(method).card
    n_passes = card.forwards + card.backwards
    return n_passes * (PASSES_BATCH if card.per_image else 1) > MOST_PASSES


def make_groups(task: Task, settings: DemoSettings) -> tuple[Group, ...]:
    """Return the methods in groups; the one that nothing sets apart comes first."""
    assigned, refused = assign_models(task, settings.methods)
    if refused:
        raise refuse_methods(refused)
    n_all = settings.images
    few = min(n_all, settings.costly_images or n_all)
    groups = []
    for model in task.models:
        for n in dict.fromkeys((n_all, few)):
            own = tuple(
                name
                for name in settings.methods
                if assigned[name] == model and n == (few if is_costly(name) else n_all)
            )
            marks = [model.name] if model != task.models[0] else []
            marks += [f"{n} images"] if n < n_all else []
            if own:
                methods = (BASELINE, *own) if marks else own
                groups.append(Group(", ".join(marks), model, methods, n, n < n_all))
    return tuple(groups)
