"""An opt-in guard against collapse, which restores the last good state.

A method that minimises entropy can collapse: it predicts one class for every sample with high
confidence. The symptom is always the same: the entropy of single predictions falls while the number
of predicted classes shrinks. The guard compares the predictions with those of the model on source
data, which are stored in the artifact.

If the restored state collapses again before another good one was reached, the guard restores the
source model.

The guard cannot repair wrong hyper-parameters: if the learning rate is so high that one batch ruins
the model, it restores, collapses and restores again. Lower the learning rate when `restored` grows.

A stream that contains few classes for a long time, for example one sorted by label, looks the same.
The guard then keeps the model near its last good state, which is safe.
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
    from acclimate.methods.method import Method


class Guard:
    """Monitors the predictions and restores the last good state when they collapse.

    Args:
        artifact: An artifact with the part `features`, which describes predictions on source data.
        narrow: Collapse is suspected when the effective number of predicted classes is below this
            share of the source's, and the entropy below that of the last good state.
        healthy: A state is good when the number of predicted classes is above this share.
        decay: Decay of the moving averages per batch. It is slower if batches are small compared
            with the number of classes.
        patience: Number of consecutive suspicious batches before the state is restored.
        every: Number of batches between two stored states.
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
                "Expected 0 < narrow < healthy <= 1, 0 <= decay < 1, patience >= 1 and every >= 1, "
                f"found narrow={narrow}, healthy={healthy}, decay={decay}, patience={patience}, "
                f"every={every}.",
                problems=problems,
            )
        self.n_classes = len(mean)
        self.narrow, self.healthy, self.decay = narrow, healthy, decay
        self.patience, self.every = patience, every
        self._state: Tree = self._fresh()

    def watch(self, method: Method, logits: Tensor) -> None:
        """Process one batch of predictions; restore the method's last good state if necessary."""
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
        # The averages must contain several samples per class; otherwise they always show few.
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
            if state["relapsing"]:  # the stored state was already collapsing: use the source model
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
        """Load a state."""
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
    """Return the number of classes of a uniform prediction with the same entropy."""
    return float(entropy(mean.clamp_min(1e-12).log()).exp())
