"""Terms that can be added to the loss or to the gradients of any gradient method.

A term has two classes. The first is a frozen dataclass of options, which users pass to
`adapt(..., terms=[...])`. The second is the active term inside one adapted model, which `attach`
builds. Custom terms are used like those of the package; CONTRIBUTING.md has an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from acclimate.artifact import Artifact
from acclimate.errors import InvalidConfig
from acclimate.forward import Forward
from acclimate.options import Registry, Values, options
from acclimate.parts.part import Part
from acclimate.schema import Schema, like
from acclimate.snapshot import Tree

if TYPE_CHECKING:
    from acclimate.methods.gradient import GradientMethod


@options
class Term(Values):
    """Base class of all terms: options as fields, and `attach`."""

    name = ""
    #: The parts of an artifact that the term needs.
    needs: ClassVar[tuple[type[Part], ...]] = ()

    def attach(self, method: GradientMethod) -> ActiveTerm:
        """Build the active term for a method; `self.artifact_of(method)` is the artifact."""
        raise TypeError(f"{type(self).__name__} must define attach()")

    def artifact_of(self, method: GradientMethod) -> Artifact:
        """Return the artifact of a method; raise ArtifactMissing if it has none."""
        return method.known_artifact


class ActiveTerm(nn.Module):
    """A term inside one adapted model. Hooks that it does not override have no effect.

    `state` is a tree of tensors that is saved, reset and restored with the method. Replace it,
    never change it in place.
    """

    state: Tree = None

    def schema(self, method: GradientMethod) -> Schema:
        """Return what a saved `state` must look like; by default, like the present one."""
        return like(self.state)

    def trainable(self) -> Mapping[str, nn.Parameter]:
        """Return the term's own parameters that are trained, by name."""
        return {}

    def start(self, method: GradientMethod) -> None:
        """Initialise once the method is complete, before the first batch."""

    def needs_several_samples(self) -> bool:
        """Return whether the term cannot learn from a single sample."""
        return False

    def holds(self, name: str, limit: float) -> bool:
        """Return whether the term keeps a parameter fixed, so that its gradient can be skipped.

        The limit is `Speed.pinned`, above 0.
        """
        return False

    def loss(self, method: GradientMethod, x: Tensor) -> Tensor | None:
        """Return a loss to add, computed from the existing pass `method.first_pass(x)`."""
        return None

    def later_loss(self, method: GradientMethod, x: Tensor) -> Tensor | None:
        """Return a loss to add that shares no graph with the main loss, such as another view.

        It is computed after the graph of the first pass was freed, which saves memory.
        """
        return None

    def answer(self, method: GradientMethod, found: Forward) -> Tensor | None:
        """Return logits to be returned instead of the model's own; None for the model's own."""
        return None

    def add_gradients(
        self, names: Sequence[str], gradients: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Return the gradients of the parameters plus those of the term."""
        return gradients

    def after_update(self, before: Mapping[str, Tensor]) -> None:
        """Run after an update was applied; `before` contains the previous values by name."""


#: The registered terms by name.
TERMS = Registry(Term)
register_term = TERMS.register
get_term_class = TERMS.find


def get_terms(terms: Iterable[str | Term | type[Term]]) -> tuple[Term, ...]:
    """Return terms with their options, given terms, classes of terms or names."""
    if isinstance(terms, str | Term):
        terms = [terms]
    found = tuple(TERMS.build(term) for term in terms)
    names = [term.name for term in found]
    for name in names:
        if names.count(name) > 1:
            text = f'The term "{name}" was given more than once. Pass it once.'
            raise InvalidConfig("duplicate", text, name=name)
    return found
