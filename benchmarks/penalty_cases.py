"""Nets, samples and contenders of `penalty.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate import zoo
from acclimate.functional.per_sample import GradientCosines
from acclimate.parts.penalty import BLOCK
from acclimate.zoo.torchvision_compat import import_torchvision

Samples = tuple[Tensor, Tensor, Tensor]
Cosines = dict[str, Tensor]

#: By name: where in the zoo; None is a net of torchvision.
NETS = {"resnet20": "resnet20-cifar10", "wrn-40-2": "wrn40-2-cifar10", "resnet50": None}
#: Side of the images, where it is not 32.
SIZES = {"resnet50": 224}


def make_case(net: str, n_samples: int) -> tuple[nn.Module, Samples]:
    """Return a net in evaluation mode, and samples with a grey, blurred view of each."""
    torch.manual_seed(0)
    name, size = NETS[net], SIZES.get(net, 32)
    model = zoo.build(name) if name else import_torchvision().models.resnet50(num_classes=10)
    coarse = torch.rand(n_samples, 3, 8, 8)
    noise = 0.1 * torch.randn(n_samples, 3, size, size)
    x = (F.interpolate(coarse, size=size, mode="bilinear") + noise).clamp(0, 1)
    grey = 0.7 * x.mean(1, keepdim=True) + 0.3 * x
    x_transformed = F.avg_pool2d(grey, 3, 1, 1)
    with torch.no_grad():
        model.train()
        for part in x[:64].split(8):
            model(part)
    return model.eval(), (x, x_transformed, torch.randint(0, 10, (n_samples,)))


def run_loop(model: nn.Module, x: Tensor, x_transformed: Tensor, y: Tensor) -> Cosines:
    """Return mean cosines by two passes of batch size 1 a sample."""
    named = dict(model.named_parameters())
    sums = {name: torch.zeros((), dtype=torch.float64) for name in named}
    for sample, view, label in zip(x, x_transformed, y, strict=True):
        first, second = (
            torch.autograd.grad(
                F.cross_entropy(model(image[None]), label[None]), list(named.values())
            )
            for image in (sample, view)
        )
        for name, a, b in zip(named, first, second, strict=True):
            sums[name] += F.cosine_similarity(a.flatten(), b.flatten(), dim=0)
    return {name: total / len(x) for name, total in sums.items()}


def run_batched(speed: Any, model: nn.Module, *samples: Tensor) -> Cosines:
    """Return mean cosines by the library, in blocks as `prepare` takes them."""
    cosines = GradientCosines(model, model, speed=speed)
    for block in zip(*(tensor.split(BLOCK) for tensor in samples), strict=True):
        cosines.add(*block)
    n_samples = len(samples[0])
    return {name: found.total / n_samples for name, found in cosines.result().items()}


def run_exact(model: nn.Module, *samples: Tensor) -> Cosines:
    """Return mean cosines in the model's precision."""
    return run_batched("exact", model, *samples)


def run_fast(model: nn.Module, *samples: Tensor) -> Cosines:
    """Return mean cosines in bfloat16 where the processor has it."""
    return run_batched("fast", model, *samples)


CONTENDERS: dict[str, Callable[..., Cosines]] = {
    "loop": run_loop,
    "exact": run_exact,
    "fast": run_fast,
}
