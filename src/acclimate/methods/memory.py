"""A memory of test images that is balanced over predicted classes, and lets go the old and unsure.

The one of RoTTA (Yuan et al. 2023, https://arxiv.org/abs/2303.13899, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from acclimate.snapshot import Tree

_EMPTY = -1  # in place of a label


@dataclass
class Item:
    """One image, its predicted class, the entropy of that prediction, and samples seen since."""

    image: Tensor
    label: int
    uncertainty: float
    age: int = 0


class BalancedMemory:
    """At most `capacity` images; a class that has its share makes room for itself.

    A newcomer takes a free place while its class is under its share of the capacity. Otherwise it
    replaces the item with the highest score, of its own class or, if that is under its share, of
    the most frequent classes; unless its own score is as high. The score of an item grows with its
    age and with its uncertainty.

    Args:
        capacity: Most images.
        n_classes: Of the model; each has an equal share of the capacity.
        age_weight: Of age in the score; λ_t in the paper.
        uncertainty_weight: Of uncertainty in the score; λ_u in the paper.
        items: What is in it, in the order in which it came.
    """

    def __init__(
        self,
        capacity: int,
        n_classes: int,
        age_weight: float = 1.0,
        uncertainty_weight: float = 1.0,
        items: Iterable[Item] = (),
    ) -> None:
        self.capacity, self.n_classes = capacity, n_classes
        self.age_weight, self.uncertainty_weight = age_weight, uncertainty_weight
        self.items = list(items)

    def add(self, image: Tensor, label: int, uncertainty: float) -> None:
        """Offer an image to the memory; everything in it is one sample older then."""
        item = Item(image, label, uncertainty)
        if self._make_room(item):
            self.items.append(item)
        for kept in self.items:
            kept.age += 1

    def ordered(self) -> list[Item]:
        """Return the items class by class, the oldest of each first."""
        return sorted(self.items, key=lambda item: item.label)

    def to_tree(self) -> Tree:
        """Return the items as tensors whose size does not depend on how many there are."""
        n_free = self.capacity - len(self.items)
        if not self.items:
            return None
        images = torch.stack([item.image for item in self.items])
        free = images.new_zeros(n_free, *images.shape[1:])
        return {
            "images": torch.cat([images, free]),
            "labels": torch.tensor([i.label for i in self.items] + [_EMPTY] * n_free),
            "ages": torch.tensor([i.age for i in self.items] + [0] * n_free),
            "uncertainties": torch.tensor(
                [i.uncertainty for i in self.items] + [0.0] * n_free, dtype=torch.float64
            ),
        }

    @staticmethod
    def read_tree(tree: Tree) -> list[Item]:
        """Return the items that `to_tree` was called on."""
        if tree is None:
            return []
        columns = (tree[name].tolist() for name in ("labels", "uncertainties", "ages"))
        found = zip(tree["images"], *columns, strict=True)
        return [Item(*values) for values in found if values[1] != _EMPTY]

    def _make_room(self, newcomer: Item) -> bool:
        counts = [0] * self.n_classes
        for item in self.items:
            counts[item.label] += 1
        if counts[newcomer.label] >= self.capacity / self.n_classes:
            crowded = {newcomer.label}
        elif len(self.items) < self.capacity:
            return True
        else:
            crowded = {label for label, count in enumerate(counts) if count == max(counts)}
        # Of equals the one that came last goes; ages differ, so that there hardly are any.
        scored = [
            (self._score(item), position)
            for position, item in enumerate(self.items)
            if item.label in crowded
        ]
        highest, position = max(scored)
        if highest <= self._score(newcomer):
            return False
        del self.items[position]
        return True

    def _score(self, item: Item) -> float:
        age = self.age_weight / (1 + math.exp(-item.age / self.capacity))
        # One class leaves nothing to be unsure about, but must not divide by zero.
        most = math.log(max(self.n_classes, 2))
        return age + self.uncertainty_weight * item.uncertainty / most
