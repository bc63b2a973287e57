"""Tiny networks of all kinds that methods must support: 3×8×8 images in, 4 classes out."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.functional.iabn import InstanceAwareBatchNorm2d
from acclimate.introspect import ModelInfo
from acclimate.testing.dense_models import DENSE_MODELS, INPUT_SHAPE, N_CLASSES


class _Residual(nn.Module):
    def __init__(self, width: int, norm: Callable[[int], nn.Module], groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False, groups=groups)
        self.norm1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = norm(width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu_(x + self.norm2(self.conv2(hidden)))


class ConvNet(nn.Module):
    """A small residual network with the given normalisation."""

    def __init__(self, norm: Callable[[int], nn.Module], groups: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = norm(8)
        self.block = _Residual(8, norm, groups)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.block(F.relu(self.norm(self.stem(x))))
        logits: Tensor = self.head(self.dropout(hidden.mean(dim=(2, 3))))
        return logits


class Vit(nn.Module):
    """A vision transformer of one block, with free parameters and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 16) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, 5, 16) * 0.1)
        self.norm1 = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.norm2 = nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.norm3 = nn.LayerNorm(16)
        self.head = nn.Linear(16, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1) + self.positions
        normed = self.norm1(tokens)
        tokens = tokens + self.attention(normed, normed, normed, need_weights=False)[0]
        tokens = tokens + self.mlp(self.norm2(tokens))
        logits: Tensor = self.head(self.norm3(tokens)[:, 0])
        return logits


class Tied(nn.Module):
    """A network whose two inner layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.LayerNorm(16))
        self.inner1 = nn.Linear(16, 16, bias=False)
        self.inner2 = nn.Linear(16, 16, bias=False)
        self.inner2.weight = self.inner1.weight
        self.head = nn.Linear(16, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner2(F.relu(self.inner1(self.stem(x))))
        logits: Tensor = self.head(F.relu(hidden))
        return logits


class TwoHeads(nn.Module):
    """A network that returns the logits of two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = ConvNet(nn.BatchNorm2d)
        self.body.head = nn.Linear(8, 8)
        self.coarse = nn.Linear(8, 2)
        self.fine = nn.Linear(8, N_CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return self.coarse(features), self.fine(features)


class Returning(nn.Module):
    """A network that returns its logits inside another object."""

    def __init__(self, wrap: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.net = ConvNet(nn.BatchNorm2d)
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.net(x), x.mean())


def _as_dict(logits: Tensor, mean: Tensor) -> dict[str, Tensor]:
    return {"logits": logits, "mean": mean}


def _as_object(logits: Tensor, mean: Tensor) -> SimpleNamespace:
    return SimpleNamespace(logits=logits, mean=mean)


def _frozen_stem() -> nn.Module:
    model = ConvNet(nn.BatchNorm2d)
    model.stem.requires_grad_(False)
    return model


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 16), nn.ReLU(inplace=True), nn.Linear(16, N_CLASSES)
    )


def _group_norm(width: int) -> nn.Module:
    return nn.GroupNorm(2, width)


#: Models by name; `MODEL_INFO` has the facts that cannot be inferred.
TINY_MODELS: dict[str, Callable[[], nn.Module]] = {
    "batch_norm": lambda: ConvNet(nn.BatchNorm2d),
    "group_norm": lambda: ConvNet(_group_norm),
    "instance_aware": lambda: ConvNet(InstanceAwareBatchNorm2d),
    "depthwise": lambda: ConvNet(nn.BatchNorm2d, groups=8),
    "vit": Vit,
    "mlp": _mlp,
    "tied": Tied,
    "two_heads": TwoHeads,
    "returns_dict": lambda: Returning(_as_dict),
    "returns_object": lambda: Returning(_as_object),
    "frozen_stem": _frozen_stem,
}

#: Facts about a model that cannot be inferred.
MODEL_INFO = {"two_heads": ModelInfo(head="fine")}


def tiny_model(name: str, seed: int = 0) -> nn.Module:
    """Build a tiny model with running statistics; its weights depend on the seed only.

    Names are those of `TINY_MODELS` and `DENSE_MODELS`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = {**TINY_MODELS, **DENSE_MODELS}[name]()
        model.train()
        with torch.no_grad():
            for _ in range(3):
                model(torch.rand(16, *INPUT_SHAPE))
    return model.eval()


def tiny_batches(
    n_batches: int, batch_size: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32
) -> list[tuple[Tensor, Tensor]]:
    """Return labelled batches of images whose colour depends on their class."""
    generator = torch.Generator().manual_seed(seed)
    palette = torch.rand(N_CLASSES, 3, 1, 1, generator=torch.Generator().manual_seed(1))
    batches = []
    for _ in range(n_batches):
        y = torch.randint(N_CLASSES, (batch_size,), generator=generator)
        noise = torch.rand(batch_size, *INPUT_SHAPE, generator=generator)
        batches.append(((0.5 * palette[y] + 0.5 * noise).to(dtype), y))
    return batches
