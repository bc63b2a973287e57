"""Test-time adaptation by hand: what `speed.py` measures the library against.

Each loop is what a person writes who needs this one method for one net: no checks, no state to
save, nothing to undo. Nothing is taken from the library but the transforms of the second view, and
what was prepared from source data. A loop copies the model it is given; calling it with a batch
returns the logits before the update.

`Norm`, `Tent` and `Paper` follow their authors' code or, where there is none, their formulas, in
PyTorch's plain layout. `SameArithmetic` is the paper's method in the order of operations that the
library has at level exact: what the library takes longer than this is its overhead.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.functional.views import VIEW_SETS, apply_views


@dataclass(frozen=True)
class Prepared:
    """What the paper's method needs of the source.

    Attributes:
        head: Name of the last layer, whose input are the features.
        penalty: One number a parameter, by name; w in the paper.
        prototypes: (K, d); q in the paper.
        projector: From features to the space of the prototypes; h_ψ in the paper.
    """

    head: str
    penalty: dict[str, float]
    prototypes: Tensor
    projector: nn.Module


class Norm:
    """Statistics of the test batch, and nothing else (Nado et al. 2020; norm.py of TENT)."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).eval()
        use_batch_statistics(self.model)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        return self.model(x)


class Tent:
    """Entropy over scale and shift of BatchNorm (Wang et al. 2021; tent.py of the authors).

    A model without BatchNorm, on which the authors' code stops, has its LayerNorm trained instead,
    as the authors' followers do.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).train()
        use_batch_statistics(self.model)
        self.model.requires_grad_(False)
        layers = [m for m in self.model.modules() if isinstance(m, nn.BatchNorm2d)]
        for layer in layers or [m for m in self.model.modules() if isinstance(m, nn.LayerNorm)]:
            layer.requires_grad_(True)
        moved = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(moved, lr=1e-3)

    def __call__(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean(0)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return logits.detach()


class Paper:
    """SWR and NSP as the equations stand in the paper (Choi et al. 2022).

    Both views in one loss, one backward through both graphs; the regulariser is a term of that
    loss, summed layer by layer. θ* are the parameters before the last update, a second copy of the
    model, and on the first batch the parameters themselves. The target of eq. 9 is detached.
    """

    def __init__(self, model: nn.Module, prepared: Prepared, seed: int = 0) -> None:
        self.model = copy.deepcopy(model).train()
        use_batch_statistics(self.model)
        self.projector = copy.deepcopy(prepared.projector).train().requires_grad_(False)
        use_batch_statistics(self.projector)
        self.taken: list[Tensor] = []
        self.model.get_submodule(prepared.head).register_forward_pre_hook(
            lambda _, inputs: self.taken.append(inputs[0])
        )
        self.penalty = prepared.penalty
        self.directions = F.normalize(prepared.prototypes, dim=1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.previous = self.copy_parameters()
        self.draws = torch.Generator().manual_seed(seed)

    def copy_parameters(self) -> dict[str, Tensor]:
        """Return a copy of all parameters by name."""
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the model, and those of the nearest prototypes (eq. 5)."""
        logits = self.model(x)
        embeddings = self.projector(self.taken.pop())
        return logits, F.normalize(embeddings, dim=1) @ self.directions.T / 0.1

    def transform(self, x: Tensor) -> Tensor:
        """Return the second view."""
        return apply_views(VIEW_SETS["test"], x, None, self.draws)

    def __call__(self, x: Tensor) -> Tensor:
        logits, near = self.forward(x)
        _, near_view = self.forward(self.transform(x))
        main = 0.2 * entropy(logits).mean() - 0.25 * entropy_of_mean(logits)  # eq. 3
        auxiliary = 0.8 * entropy(near).mean() - 0.25 * entropy_of_mean(near)  # eq. 8
        agreement = -(near.softmax(1).detach() * near_view.log_softmax(1)).sum(1).mean()  # eq. 9
        loss = main + auxiliary + 0.1 * agreement
        for name, p in self.model.named_parameters():  # the last term of eq. 1
            loss = loss + 250 * self.penalty[name] * ((p - self.previous[name]) ** 2).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.previous = self.copy_parameters()
        self.optimizer.step()
        return logits.detach()


class SameArithmetic(Paper):
    """The same method, computed in the order the library has at level exact.

    Images with colour as the last axis; the first view is used up by its own backward before the
    second is passed; the regulariser's gradient in closed form, for all layers at once.
    """

    def __init__(self, model: nn.Module, prepared: Prepared, seed: int = 0) -> None:
        super().__init__(model, prepared, seed)
        self.parameters = list(self.model.parameters())
        names = [name for name, _ in self.model.named_parameters()]
        self.coefficients = [2 * 250 * self.penalty[name] for name in names]
        self.anchors = list(self.previous.values())

    def __call__(self, x: Tensor) -> Tensor:
        logits, near = self.forward(x.contiguous(memory_format=torch.channels_last))
        loss = 0.2 * entropy(logits).mean() - 0.25 * entropy_of_mean(logits)
        loss = loss + 0.8 * entropy(near).mean() - 0.25 * entropy_of_mean(near)
        loss.backward()
        logits, target = logits.detach(), near.detach().softmax(1)
        x_view = self.transform(x).contiguous(memory_format=torch.channels_last)
        near_view = self.forward(x_view)[1]
        agreement = -0.1 * (target * near_view.log_softmax(1)).sum(1).mean()
        agreement.backward()
        with torch.no_grad():
            moves = torch._foreach_sub(self.parameters, self.anchors)
            torch._foreach_mul_(moves, self.coefficients)
            torch._foreach_add_([p.grad for p in self.parameters], moves)
            self.anchors = [p.detach().clone() for p in self.parameters]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return logits


def use_batch_statistics(model: nn.Module) -> None:
    """Let BatchNorm normalise with the batch, in training and in evaluation mode alike."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = None


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each prediction."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def entropy_of_mean(logits: Tensor) -> Tensor:
    """Return the entropy of the mean prediction."""
    mean = logits.softmax(1).mean(0)
    return -(mean * mean.log()).sum()
