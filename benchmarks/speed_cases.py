"""What `speed.py` runs: nets, what is prepared for them, batches, and the contenders by name.

Random weights do for a time, but not for penalties: an untrained net has others than a trained one,
and they decide which tensors are pinned at the levels fast and fastest. So a net with random
weights gets the penalties of a trained ResNet-20, by relative place (`PROFILE`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import acclimate
import plain_loops
from acclimate import Artifact, Speed, data, zoo
from acclimate.builtin.model import WideResNet
from acclimate.functional.norm import batch_norm_layers
from acclimate.functional.precision import has_fast_bfloat16
from acclimate.introspect import ModelInfo, inspect_model
from acclimate.methods.compute import SPEEDS
from acclimate.parts import Prototypes
from acclimate.parts.prototypes import build_projector
from acclimate.snapshot import fingerprint
from acclimate.storage import versions
from acclimate.terms.nsp import load_projector
from acclimate.zoo.external import NormalizedModel
from acclimate.zoo.torchvision_compat import import_torchvision

Step = Callable[[Tensor], Tensor]
Batch = tuple[Tensor, Tensor | None]

SEED = 0
#: Penalties of the trained ResNet-20 of the zoo for CIFAR-10, in the order of its parameters,
#: measured on the first 1024 training images. A ResNet-56 has much the same ones.
# fmt: off
PROFILE = (
    0.0, 0.0, 0.001, 0.0, 0.001, 0.0, 0.004, 0.004, 0.009, 0.011, 0.014, 0.02, 0.014, 0.017,
    0.029, 0.033, 0.048, 0.047, 0.037, 0.034, 0.056, 0.047, 0.053, 0.079, 0.044, 0.063, 0.102,
    0.051, 0.082, 0.082, 0.055, 0.081, 0.137, 0.068, 0.116, 0.11, 0.067, 0.099, 0.166, 0.078,
    0.129, 0.128, 0.089, 0.226, 0.23, 0.102, 0.225, 0.208, 0.161, 0.316, 0.418, 0.342, 0.565,
    0.578, 0.386, 0.49, 0.743, 0.659, 1.0,
)
# fmt: on


@dataclass(frozen=True)
class Net:
    """A model to be timed, and how much of it is affordable."""

    build: Callable[[], nn.Module]
    size: int
    batch_size: int
    repeats: int
    agree: int
    zoo_name: str = ""


def _from_zoo(name: str, repeats: int, agree: int) -> Net:
    return Net(partial(zoo.build, name), 32, 200, repeats, agree, name)


def _vit_small() -> nn.Module:
    kind = import_torchvision().models.VisionTransformer
    model = kind(224, 16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536)
    nn.init.normal_(model.heads.head.weight, std=0.02)  # zero otherwise: no gradient would flow
    return NormalizedModel(model, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


NETS = {
    "resnet20": _from_zoo("resnet20-cifar10", repeats=15, agree=20),
    "wrn-40-2": _from_zoo("wrn40-2-cifar10", repeats=7, agree=20),
    "wrn-28-10": _from_zoo("wrn28-10-cifar10", repeats=2, agree=0),
    "resnet50": Net(partial(zoo.build, "torchvision:resnet50"), 224, 64, 3, 0),
    "vit_small": Net(_vit_small, 224, 64, 3, 0),
    # To try the script with, and to compare in double precision.
    "tiny": Net(partial(WideResNet, 10, 1, n_classes=10), 16, 16, 3, 20),
}


@dataclass(frozen=True)
class Case:
    """A model, what is prepared for it, and a description for the record."""

    model: nn.Module
    artifact: Artifact
    description: dict[str, Any]

    @property
    def prepared(self) -> plain_loops.Prepared:
        """What the loops by hand take of the artifact."""
        like = next(self.model.parameters())
        return plain_loops.Prepared(
            self.artifact.info.known_head,
            {name: float(value) for name, value in self.artifact.part("penalty").items()},
            self.artifact.part("prototypes")["embedding"].to(like),
            load_projector(self.artifact).to(like),
        )


def make_case(
    net: str,
    weights: Path | None = None,
    artifact: Path | None = None,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Return a net with random weights, or with those of a file and its artifact."""
    if weights is not None and artifact is not None:
        model, prepared = zoo.load(NETS[net].zoo_name, weights), Artifact.load(artifact)
        origin = {"weights": "trained", "penalties": "measured", "prototypes": "measured"}
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            model = NETS[net].build().to(dtype).eval()
        [(x, _)] = make_noise(net, 16, 1, dtype)
        info = inspect_model(model, x[:2])
        with torch.no_grad():  # or one class would be named for nearly all images
            model.get_submodule(info.known_head).bias -= plain_loops.Norm(model)(x).mean(0)
        prepared = _invent_artifact(model, info, NETS[net].size)
        origin = {
            "weights": f"random, seed {SEED}, with the bias of the head shifted so that noise "
            "images are given many classes",
            "penalties": "those of a trained ResNet-20, by relative place",
            "prototypes": "random",
        }
    description = {
        **origin,
        "weights_sha256": fingerprint(model)["weights_sha256"],
        "n_parameters": sum(p.numel() for p in model.parameters()),
        "n_tensors": len(list(model.parameters())),
        "n_classes": prepared.info.n_classes,
        "projector_depth": prepared.parts["prototypes"]["projector_depth"],
        "input_shape": [3, NETS[net].size, NETS[net].size],
    }
    return Case(model, prepared, description)


def _invent_artifact(model: nn.Module, info: ModelInfo, size: int) -> Artifact:
    """Return an artifact with the right shapes, made without source data."""
    like, draws = next(model.parameters()), torch.Generator().manual_seed(SEED)
    options = Prototypes()
    depth = options.depth_for(info.known_classes)
    projector = build_projector(depth, info.known_width, options.hidden, options.width).to(like)
    width = options.width if depth else info.known_width
    names = [name for name, _ in model.named_parameters()]
    places = torch.linspace(0, len(PROFILE) - 1, len(names)).round().int().tolist()
    tensors = {
        f"penalty/{name}": torch.tensor(PROFILE[place], dtype=torch.float64)
        for name, place in zip(names, places, strict=True)
    }
    tensors["prototypes/embedding"] = torch.randn(info.known_classes, width, generator=draws)
    tensors |= {f"projector/{name}": value for name, value in projector.state_dict().items()}
    sizes = {"projector_depth": depth, "hidden": options.hidden, "width": options.width}
    card = {
        "model": fingerprint(model),
        "info": info.to_dict(),
        "classes": None,
        "input_shape": [3, size, size],
        "seed": SEED,
        "parts": {"penalty": {}, "prototypes": sizes},
        "versions": versions(),
    }
    return Artifact(tensors, card)


def make_noise(net: str, batch_size: int, n: int, dtype: torch.dtype) -> list[Batch]:
    """Return batches of noise images without labels."""
    draws = torch.Generator().manual_seed(SEED + 1)
    shape = (batch_size, 3, NETS[net].size, NETS[net].size)
    return [(torch.rand(shape, generator=draws).to(dtype), None) for _ in range(n)]


def load_batches(name: str, corruption: str, batch_size: int, n: int) -> list[Batch]:
    """Return the first batches of a corrupted set at severity 5, in file order."""
    found = data.load(name, corruption=corruption, severity=5)
    images = torch.from_numpy(found.images[: n * batch_size].copy())
    x = images.permute(0, 3, 1, 2).float().div_(255).contiguous()
    y = torch.as_tensor(found.labels[: n * batch_size].copy()).long()
    return list(zip(x.split(batch_size), y.split(batch_size), strict=True))


# --- contenders ------------------------------------------------------------------------------

TENT, PAPER, SAME = "hand-tent", "hand-paper", "hand-same"

CONTENDERS: dict[str, str] = {
    "hand-norm": "norm by hand: one forward with the statistics of the batch, plain layout",
    TENT: "TENT by hand, as its authors' code, plain layout",
    PAPER: "SWR and NSP by hand, as the paper's equations: both views in one loss, the regulariser "
    "a term of it, plain layout",
    SAME: "SWR and NSP by hand, with the arithmetic of swr_nsp-exact",
    **{
        f"{method}-{speed}": f'adapt(model, "{method}", speed="{speed}")'
        for method in ("norm", "tent", "swr_nsp")
        for speed in SPEEDS
    },
}


def choose_contenders(
    case: Case, wanted: Sequence[str] = tuple(CONTENDERS)
) -> tuple[list[str], dict[str, str]]:
    """Return which contenders run on a case, and why the others do not."""
    chosen: dict[tuple[Any, ...], str] = {}
    left_out: dict[str, str] = {}
    for name in wanted:
        method, _, speed = name.rpartition("-")
        acts = (name,) if method == "hand" else (method, *_acts(method, SPEEDS[speed]))
        if "norm" in name and not batch_norm_layers(case.model):
            left_out[name] = "the model has no BatchNorm"
        elif acts in chosen:
            left_out[name] = f"acts as {chosen[acts]} on this machine"
        else:
            chosen[acts] = name
    return list(chosen.values()), left_out


def _acts(method: str, speed: Speed) -> tuple[Any, ...]:
    """Return what of the options changes what a method does on this machine."""
    bfloat16 = speed.bfloat16 and has_fast_bfloat16(torch.device("cpu"))
    acts = (speed.channels_last, bfloat16, speed.micro_batch, speed.checkpoint)
    # The others speak of the second view and of SWR.
    return (*acts, speed.view_share, speed.view_every, speed.pinned) if "swr" in method else acts


def make_contender(name: str, case: Case) -> Step:
    """Return a contender on its own copy of the model."""
    if name == "hand-norm":
        return plain_loops.Norm(case.model)
    if name == TENT:
        return plain_loops.Tent(case.model)
    if name in (PAPER, SAME):
        kind = plain_loops.Paper if name == PAPER else plain_loops.SameArithmetic
        return kind(case.model, case.prepared)
    method, _, speed = name.rpartition("-")
    artifact = case.artifact if method == "swr_nsp" else None
    model = copy.deepcopy(case.model)
    adapted: Step = acclimate.adapt(model, method, artifact, speed=speed, seed=0)
    return adapted


def describe_steps(contender: Step) -> dict[str, Any] | None:
    """Return what the library says it did; None of a loop by hand."""
    counts = getattr(contender, "counts", None)
    if counts is None:
        return None
    moved = getattr(contender, "parameters_moved", {})
    every = sum(p.numel() for p in contender.model.parameters())  # type: ignore[attr-defined]
    return {
        "batches": counts.batches,
        "skipped": dict(counts.skipped),
        "tensors_moved": len(moved),
        "share_of_parameters_moved": sum(p.numel() for p in moved.values()) / every,
    }
