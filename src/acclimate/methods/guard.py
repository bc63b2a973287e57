"""An opt-in guard against collapse: notice it, and go back to the last good state.

A method that minimises entropy can end in predicting one class for everything, with great
certainty. The sign is the same for all of them: the entropy of single predictions falls while the
predicted classes narrow to a few. The guard compares with how the model predicted on its own
source data, which is in the artifact.

If the restored state collapses again before another good one was reached, the source model itself
is restored.

It does not mend a method that is set up to collapse: with a learning rate so high that one batch
ruins the model, it restores, collapses and restores again. Lower the rate when `restored` grows.

A stream that really shows few classes for a long time (sorted by label, say) looks alike; the guard
then keeps the model near its last good state, which is the safe side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from acclimate.artifact import Artifact
from acclimate.errors import InvalidConfig
from acclimate.functional.across import batch_mean, batch_size, everywhere
from acclimate.functional.entropy import entropy, log_probs
from acclimate.snapshot import Tree, copy_tree

if TYPE_CHECKING:
    from acclimate.methods.base import Method


class Guard:
    """Watches the predictions and restores the last good state when they collapse.

    Args:
        artifact: Must have the part `predictions`: how the model predicts on source data.
        narrow: Collapse is suspected when the effective number of predicted classes is under this
            share of the source's, and the entropy under that of the last good state.
        healthy: The state is worth keeping when it is over this share.
        decay: Of the moving averages, per batch; slower where batches are small for the number of
            classes.
        patience: Suspicious batches in a row before the state is restored.
        every: Batches between two kept states.
    """

    def __init__(
        self,
        artifact: Artifact,
        narrow: float = 0.5,
        healthy: float = 0.7,
        decay: float = 0.5,
        patience: int = 2,
        every: int = 5,
    ) -> None:
        mean = artifact.part("predictions")["mean"].double()
        self.source_classes = _effective_classes(mean)
        self.source_entropy = float(artifact.part("predictions")["entropy"])
        rules = {
            "narrow": (0 < narrow < healthy, "0 < narrow < healthy"),
            "healthy": (narrow < healthy <= 1, "narrow < healthy <= 1"),
            "decay": (0 <= decay < 1, "0 <= decay < 1"),
            "patience": (patience >= 1, "patience >= 1"),
            "every": (every >= 1, "every >= 1"),
        }
        problems = {name: f"expected {rule}" for name, (holds, rule) in rules.items() if not holds}
        if problems:
            raise InvalidConfig(
                "invalid_options",
                "expected 0 < narrow < healthy <= 1, 0 <= decay < 1, patience and every of at "
                f"least 1; found narrow={narrow}, healthy={healthy}, decay={decay}, "
                f"patience={patience}, every={every}.",
                problems=problems,
            )
        self.n_classes = len(mean)
        self.narrow, self.healthy, self.decay = narrow, healthy, decay
        self.patience, self.every = patience, every
        self._state: Tree = self._fresh()

    def watch(self, method: Method, logits: Tensor) -> None:
        """Take in one batch of predictions; restore the method's last good state if it must be."""
        state = self._state
        if state["good"] is None:  # the first batch: the source model itself is good
            state["good"] = copy_tree(method.initial())
        if not everywhere(logits.isfinite().all()):
            return
        mean = batch_mean(log_probs(logits).exp()).cpu().double()
        certain = batch_mean(entropy(logits)).cpu().double()
        if state["good_entropy"] is None:
            state["good_entropy"] = certain
        if state["mean"] is None:
            state.update(mean=mean, entropy=certain, n_averaged=0.0)
        # The averages must hold several samples a class, or few classes is all they can show.
        n = batch_size(logits)
        decay = max(self.decay, 1 - n / (4 * self.n_classes))
        state["n_averaged"] = decay * state["n_averaged"] + n
        share = n / state["n_averaged"]
        state["mean"] = torch.lerp(state["mean"], mean, share)
        state["entropy"] = torch.lerp(state["entropy"], certain, share)
        if state["n_averaged"] < 2 * self.n_classes:
            return
        classes = _effective_classes(state["mean"])
        falling = float(state["entropy"]) < max(float(state["good_entropy"]), self.source_entropy)
        suspicious = classes < self.narrow * self.source_classes and falling
        state["strikes"] = state["strikes"] + 1 if suspicious else 0
        state["since"] += 1
        if state["strikes"] >= self.patience:
            if state["relapsing"]:  # the kept state was on its way down already: begin anew
                state["good"] = copy_tree(method.initial())
            method.load_learned(copy_tree(state["good"]))
            method.counts.restored += 1
            state.update(mean=None, entropy=None, strikes=0, since=0, relapsing=True)
        elif classes > self.healthy * self.source_classes and state["since"] >= self.every:
            state.update(good=copy_tree(method.learned()), good_entropy=state["entropy"])
            state.update(since=0, relapsing=False)

    def tree(self) -> Tree:
        """Return the guard's state."""
        return self._state

    def load_tree(self, tree: Tree) -> None:
        """Take a state back."""
        self._state = dict(tree)

    @staticmethod
    def _fresh() -> Tree:
        return {
            "mean": None,
            "entropy": None,
            "n_averaged": 0.0,
            "good": None,
            "good_entropy": None,
            "strikes": 0,
            "since": 0,
            "relapsing": False,
        }


def _effective_classes(mean: Tensor) -> float:
    """Return the number of classes that an even prediction of the same entropy would have."""
    return float(entropy(mean.clamp_min(1e-12).log()).exp())
