"""Which methods can be compared: those on the same source model that meet the same images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acclimate.bench.load import find_unsuitable, refuse_methods
from acclimate.demo.settings import DemoSettings
from acclimate.demo.tasks import SourceModel, Task
from acclimate.methods import get_method
from acclimate.report import BASELINE

#: A method is costly if it declares more passes than this for a batch of so many images.
MOST_PASSES, PASSES_BATCH = 100, 200


@dataclass(frozen=True)
class Group:
    """Methods that are compared with each other and with no others.

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
    """Return the model that each method stands on: the first of the task that it does not refuse.

    Returns:
        The model by method, and the reason by method that refuses all: that for the first.
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
    kind = get_method(method)
    n_passes = kind.card.forwards + kind.card.backwards
    return n_passes * (PASSES_BATCH if kind.card.per_image else 1) > MOST_PASSES


def make_groups(task: Task, settings: DemoSettings) -> tuple[Group, ...]:
    """Return the methods in groups; the one that nothing sets apart comes first.

    Raises:
        UnsuitableModel: A method refuses every source model of the task.
    """
    assigned, refused = assign_models(task, settings.methods)
    if refused:
        raise refuse_methods(refused)
    few = min(settings.images, settings.costly_images or settings.images)
    groups = []
    for model in task.models:
        for n in dict.fromkeys((settings.images, few)):
            own = tuple(
                name
                for name in settings.methods
                if assigned[name] == model and n == (few if is_costly(name) else settings.images)
            )
            if own:
                groups.append(_make_group(task, model, own, n, settings.images))
    return tuple(groups)


def _make_group(
    task: Task, model: SourceModel, methods: tuple[str, ...], n: int, n_all: int
) -> Group:
    marks = [model.name] if model != task.models[0] else []
    marks += [f"{n} images"] if n < n_all else []
    joined = (BASELINE, *methods) if marks else methods
    return Group(", ".join(marks), model, joined, n, n < n_all)
