"""State of an adapted model: declared once, then copied, saved, reset and moved as one tree."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from acclimate.errors import ArtifactMismatch, NotAdapted
from acclimate.methods.guard import Guard
from acclimate.snapshot import (
    Tree,
    copy_tree,
    flatten_tree,
    load_tensors,
    map_tree,
    model_tensors,
    unflatten_tree,
)
from acclimate.storage import read_file, write_file


@dataclass
class Counts:
    """What happened since the last reset."""

    batches: int = 0
    samples: int = 0
    updates: int = 0
    forwards: int = 0
    backwards: int = 0
    restored: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Count a batch that was predicted without an update."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    @property
    def n_skipped(self) -> int:
        """Batches that were predicted without an update, for whatever reason."""
        return sum(self.skipped.values())


@dataclass(frozen=True)
class Snapshot:
    """A copy of everything an adapted model has learned; see `Method.snapshot`."""

    tree: Tree


class Stateful(nn.Module):
    """A module around a borrowed model, whose whole state is one tree.

    The tree has the tensors of all modules inside (the model's among them), what was declared with
    `add_state`, the optimiser's state, the random generator, the counts and the guard's state.
    """

    model: nn.Module
    guard: Guard | None

    def __init__(self, model: nn.Module, seed: int, guard: Guard | None) -> None:
        super().__init__()
        self.model = model
        self.guard = guard
        self.counts = Counts()
        self.generator = torch.Generator().manual_seed(seed)
        self._declared: list[str] = []
        self._initial = Snapshot({})

    def add_state(self, name: str, default: Tree) -> None:
        """Declare an attribute that reset, save, load, snapshot and `.to()` take care of."""
        self._declared.append(name)
        setattr(self, name, default)

    @final
    def reset(self) -> Self:
        """Become exactly the source model again, with all state as at the start."""
        self.restore(self._initial)
        return self

    @final
    def snapshot(self) -> Snapshot:
        """Return a copy of all that was learned, to `restore` later."""
        self._check_usable()
        return Snapshot(copy_tree(self._tree()))

    @final
    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, bit for bit."""
        self._check_usable()
        self._load_tree(copy_tree(snapshot.tree))

    @final
    def save(self, path: str | Path) -> None:
        """Write all that was learned to one file, atomically."""
        self._check_usable()
        tensors, skeleton = flatten_tree(self._tree())
        write_file(path, "state", tensors, {**self._identity(), "tree": skeleton})

    @final
    def load(self, path: str | Path) -> Self:
        """Go on where a saved stream stopped: the next logits are those of the uncut stream.

        Raises:
            ArtifactMismatch: Saved by another method, configuration, model or artifact.
        """
        self._check_usable()
        tensors, card = read_file(path, "state")
        self._check_identity(str(path), card)
        self._load_tree(unflatten_tree(tensors, card["tree"]))
        return self

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Take what `state_dict()` returned; values are copied into the model's own tensors."""
        if assign:
            raise NotAdapted(
                "assign_refused",
                "load_state_dict(assign=True) would exchange the borrowed model's parameters. "
                "Leave assign out.",
            )
        if "_extra_state" in state_dict:  # before any tensor is copied
            saved = json.loads(state_dict["_extra_state"]["identity"])
            self._check_identity("the state_dict", saved)
        return super().load_state_dict(state_dict, strict)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what `state_dict()` carries besides the model's own tensors."""
        tree = {key: value for key, value in self._tree().items() if key != "modules"}
        tensors, skeleton = flatten_tree(tree)
        identity = json.dumps(self._identity())
        return {"tensors": copy_tree(tensors), "tree": json.dumps(skeleton), "identity": identity}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take what `get_extra_state` returned."""
        tree = unflatten_tree(state["tensors"], json.loads(state["tree"]))
        self._load_tree(copy_tree({**tree, "modules": {}}))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        tree = self._tree()
        tree["method"] = map_tree(tree["method"], fn)
        self._load_tree(tree)  # which puts the optimiser's state beside its parameters
        return self

    # Inside -------------------------------------------------------------------------------------

    def _check_identity(self, origin: str, saved: Mapping[str, Any]) -> None:
        differences = {
            key: (saved.get(key), value)
            for key, value in self._identity().items()
            if saved.get(key) != value
        }
        if differences:
            lines = "".join(
                f"\n  {key}: saved {before!r}, here {now!r}"
                for key, (before, now) in differences.items()
            )
            raise ArtifactMismatch(
                "other_settings",
                f"{origin} was saved by something else:{lines}\n"
                "Adapt the same source model with the same method, options and artifact.",
                differences=differences,
            )

    def _identity(self) -> dict[str, Any]:
        """Return what a saved state must agree with to be loaded."""
        return {}

    def _check_usable(self) -> None:
        if "model" not in self._modules:
            raise NotAdapted(
                "unwrapped", "this adapted model was unwrapped. Adapt again: acclimate.adapt(...)."
            )

    def _optimizer_tree(self) -> Tree:
        return {}

    def _load_optimizer_tree(self, tree: Tree) -> None:
        pass

    def learned(self) -> Tree:
        """Return what learning has changed: weights, buffers, declared state, optimiser."""
        return {
            "modules": model_tensors(self),
            "method": {name: getattr(self, name) for name in self._declared},
            "optimizer": self._optimizer_tree(),
        }

    def initial(self) -> Tree:
        """Return what `learned` returned before the first batch."""
        return {key: self._initial.tree[key] for key in ("modules", "method", "optimizer")}

    def load_learned(self, tree: Tree) -> None:
        """Take back what `learned` returned; the tree is given away."""
        load_tensors(self, tree["modules"])
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        for name in self._declared:
            setattr(self, name, map_tree(tree["method"][name], lambda t: t.to(device)))
        self._load_optimizer_tree(tree["optimizer"])

    def _tree(self) -> Tree:
        return {
            **self.learned(),
            "generator": self.generator.get_state(),
            "counts": asdict(self.counts),
            "guard": self.guard.tree() if self.guard is not None else None,
        }

    def _load_tree(self, tree: Tree) -> None:
        self.load_learned(tree)
        self.generator.set_state(tree["generator"].cpu())
        self.counts = Counts(**tree["counts"])
        if self.guard is not None:
            self.guard.load_tree(tree["guard"])
