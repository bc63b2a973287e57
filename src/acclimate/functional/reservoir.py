"""Bounded memories of test images that are balanced over predicted classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_EMPTY = -1  # in place of a label


def choose_slot(
    kept: list[int], label: int, n_seen: int, size: int, generator: torch.Generator
) -> int | None:
    """Return the slot of a new sample in a class-balanced memory; None if it is not stored.

    `kept` are the predicted classes of the samples in the memory, `label` is that of the new one,
    and `n_seen` counts the samples of that class so far, including it.
    """
    if len(kept) < size:
        return len(kept)
    members = {k: [place for place, other in enumerate(kept) if other == k] for k in {*kept, label}}
    most = max(map(len, members.values()))
    largest = sorted(k for k, places in members.items() if len(places) == most)
    if label not in largest:
        places = members[largest[_draw(len(largest), generator)]]
    else:
        # Every sample of the class has had the same chance to be in the memory.
        places = members[label]
        if float(torch.rand((), generator=generator)) > len(places) / n_seen:
            return None
    return places[_draw(len(places), generator)]


def _draw(n: int, generator: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=generator))


@dataclass
class Item:
    """One image, its predicted class, the entropy of the prediction, and its age in samples."""

    image: Tensor
    label: int
    uncertainty: float
    age: int = 0


class BalancedMemory:
    """A memory of at most `capacity` images with an equal share per class, as RoTTA has it.

    A new item takes a free slot while its class is below its share of the capacity. Otherwise it
    replaces the item with the highest score of its own class or, if that class is below its share,
    of the most frequent classes, unless its own score is as high. The score of an item grows with
    its age (weight λ_t in the paper) and with its uncertainty (λ_u); see Yuan et al. 2023,
    https://arxiv.org/abs/2303.13899, 3.2. The initial items are given oldest first.
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
        """Offer an image to the memory; all of its items become one sample older."""
        item = Item(image, label, uncertainty)
        if self._make_room(item):
            self.items.append(item)
        for kept in self.items:
            kept.age += 1

    def ordered(self) -> list[Item]:
        """Return the items class by class, the oldest of each first."""
        return sorted(self.items, key=lambda item: item.label)

    def to_tree(self) -> dict[str, Tensor] | None:
        """Return the items as tensors whose size does not depend on the number of items."""
        n_free = self.capacity - len(self.items)
        if not self.items:
            return None
        images = torch.stack([item.image for item in self.items])
        surprises = [item.uncertainty for item in self.items]
        free = images.new_zeros(n_free, *images.shape[1:])
        return {
            "images": torch.cat([images, free]),
            "labels": torch.tensor([i.label for i in self.items] + [_EMPTY] * n_free),
            "ages": torch.tensor([i.age for i in self.items] + [0] * n_free),
            "uncertainties": torch.tensor(surprises + [0.0] * n_free, dtype=torch.float64),
        }

    @staticmethod
    def read_tree(tree: Mapping[str, Tensor] | None) -> list[Item]:
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
        # Ties are broken by position: the last item is dropped. They are rare, since ages differ.
        items = enumerate(self.items)
        highest, position = max((self._score(i), n) for n, i in items if i.label in crowded)
        if highest <= self._score(newcomer):
            return False
        del self.items[position]
        return True

    def _score(self, item: Item) -> float:
        age = self.age_weight / (1 + math.exp(-item.age / self.capacity))
        # Avoid a division by zero with a single class.
        most = math.log(max(self.n_classes, 2))
        return age + self.uncertainty_weight * item.uncertainty / most
