"""Shift-agnostic weight regularisation, as a term of a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from acclimate.functional.penalty import add_penalty_gradient


class Swr:
    """Damps each parameter's update by its penalty: strength · Σ w ‖θ − θ*‖² (paper, eq. 1).

    The term is applied as its gradient, in closed form.

    Args:
        penalty: w by parameter name: one number, or a tensor that broadcasts to the parameter.
        strength: λ_r in the paper.
        anchor: What θ* is. `"previous"`: the parameters before the last update; they lag by one,
            so the term is zero on the first step and damps the last move from the second on.
            `"source"`: the parameters of the source model.
    """

    def __init__(self, penalty: Mapping[str, Tensor], strength: float, anchor: str) -> None:
        self.anchor = anchor
        self._penalty = dict(penalty)
        self._by_tensor = all(value.numel() == 1 for value in penalty.values())
        self._coefficients = {name: 2 * strength * value for name, value in penalty.items()}
        self._numbers = (
            {name: float(value) for name, value in self._coefficients.items()}
            if self._by_tensor
            else {}
        )

    def holds(self, name: str, limit: float) -> bool:
        """Say whether all penalties of a parameter are at least `limit`, before the strength."""
        return name in self._penalty and bool((self._penalty[name] >= limit).all())

    def add_gradient(
        self,
        names: Sequence[str],
        gradients: Sequence[Tensor],
        parameters: Sequence[Tensor],
        anchors: Mapping[str, Tensor],
    ) -> list[Tensor]:
        """Return the gradients with the term's own added.

        Parameters without an anchor (the first step) or without a penalty are left alone.
        """
        result = list(gradients)
        chosen = [
            index
            for index, name in enumerate(names)
            if name in anchors and name in self._coefficients
        ]
        if not chosen:
            return result
        kept = [names[index] for index in chosen]
        coefficients: list[float] | list[Tensor]
        if self._by_tensor:
            coefficients = [self._numbers[name] for name in kept]
        else:
            coefficients = [self._coefficients[name].to(anchors[name]) for name in kept]
        added = add_penalty_gradient(
            [gradients[index] for index in chosen],
            [parameters[index].detach() for index in chosen],
            [anchors[name].to(parameters[index]) for index, name in zip(chosen, kept, strict=True)],
            coefficients,
        )
        for index, gradient in zip(chosen, added, strict=True):
            result[index] = gradient
        return result
