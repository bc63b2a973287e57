"""What a reader must know of groups and models to read the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acclimate.artifact import Artifact
from acclimate.demo.groups import Group
from acclimate.demo.tasks import SourceModel, Task
from acclimate.report.stats import margin


@dataclass(frozen=True)
class UsedModel:
    """A source model that methods stood on.

    Attributes:
        source: Which one.
        artifacts: One a seed.
        clean_error: Its error on the same images without a shift, as a share.
    """

    source: SourceModel
    artifacts: tuple[Artifact, ...]
    clean_error: float

    @property
    def sha256(self) -> str:
        """Of the weights."""
        return str(self.artifacts[0].card["model"]["weights_sha256"])


def make_notes(task: Task, groups: Sequence[Group], models: Sequence[UsedModel]) -> tuple[str, ...]:
    """Return what sets groups apart: a sentence on each other model, one on each stream that is
    cut, and what follows from both.
    """
    notes = []
    for group in groups:
        guests = " and ".join(group.guests)
        is_one = len(group.guests) == 1
        if group.model != task.models[0]:
            used = next(model for model in models if model.source == group.model)
            notes.append(
                f"({group.name}): {guests} {'needs' if is_one else 'need'} another source model: "
                f"{group.model.text}. Without a shift it errs on {100 * used.clean_error:.1f} %."
            )
        if group.is_cut:
            notes.append(
                f"({group.name}): {guests} {'was' if is_one else 'were'} measured on the first "
                f"{group.n_images} images of each shift only, for the time it takes; an error "
                f"there is uncertain by up to ±{margin(group.n_images):.1f} points (95 %)."
            )
    if notes:
        notes.append(
            "Rows of such a group are compared with the source row of the same group only."
        )
    return tuple(notes)
