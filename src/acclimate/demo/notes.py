"""What a reader must know of methods and models to read the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acclimate.artifact import Artifact
from acclimate.demo.groups import Group
from acclimate.demo.tasks import SourceModel, Task
from acclimate.methods import get_method
from acclimate.report import MethodNote, margin


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


def describe_method(name: str) -> MethodNote:
    """Return a method's first sentence, its paper and what a batch costs."""
    method = get_method(name)
    sentence = (method.__doc__ or name).partition("\n")[0].strip()
    if method.card.reconstruction:
        sentence += f" A reconstruction: {method.card.reconstruction}."
    passes = {"forward": method.card.forwards, "backward": method.card.backwards}
    cost = " and ".join(f"{n} {word}{'s' * (n > 1)}" for word, n in passes.items() if n)
    what = "An image" if method.card.per_image else "A batch"
    return MethodNote(name, sentence, method.card.paper, f"{what} costs {cost}.")


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
            "Rows with such a mark are compared with the source row of the same mark only, not "
            "with the others."
        )
    return tuple(notes)
