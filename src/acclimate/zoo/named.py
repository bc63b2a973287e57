"""Models and devices by the names that commands and suites give them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from acclimate import builtin, zoo
from acclimate.builtin.scene_model import load_scene_model
from acclimate.errors import ArtifactMismatch, BadInput, UnsuitableModel, check_name
from acclimate.introspect import get_head
from acclimate.storage import read_file
from acclimate.zoo.external import unwrap
from acclimate.zoo.segmentation import WHITENED, is_dense_name, load_dense

DEVICES = ("auto", "cpu", "cuda", "mps")


def load_named(
    spec: str, weights: str | Path | None = None, n_classes: int | None = None
) -> nn.Module:
    """Return the model of a name, with its weights, on the processor.

    Args:
        spec: `package.module:function`, a name of the zoo, `timm:NAME`, `torchvision:NAME`,
            `builtin`, or a dense model, with `+isw` at the end if it whitens instances. Modules are
            also looked for in the current folder.
        weights: A safetensors file or a PyTorch state dict; None keeps those of the function.
        n_classes: Of the data, if known: chooses the entry of the zoo that an architecture alone,
            such as `resnet20`, stands for.

    Weights that `acclimate train --task domains` wrote have the head they were trained with,
    whatever that of the model was before.
    """
    file = None if weights is None else Path(weights)
    if file is not None and _find_trained(file) == spec:
        return load_trained(file)
    if spec == "builtin":
        model: nn.Module = builtin.load_model()
        if file is not None:
            zoo.fit(model, zoo.read_tensors(file), None, file)
        return model
    if is_dense_name(spec):
        return _load_dense(spec, file)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if ":" not in spec and spec not in zoo.list_models():
        known = zoo.get_spec(spec, n_classes).n_classes
        n_classes = known if known == n_classes else None
        return zoo.load(spec, file, n_classes)
    return zoo.load(spec, file)


def _load_dense(name: str, file: Path | None) -> nn.Module:
    if file is not None:
        return load_dense(file, name)
    if name == "builtin-scenes":
        return load_scene_model()
    raise BadInput(
        "no_weights",
        f"No weights of {name} are published. Pass your own file, or train the model: "
        f"{how_to_train(name)}",
        name=name,
    )


def how_to_train(name: str) -> str:
    """Return the command that trains a dense model of that name."""
    whitened = " --objective isw" if name.endswith(WHITENED) else ""
    return (
        f"acclimate train --task segmentation --model {name.removesuffix(WHITENED)}{whitened} "
        "--data camvid --out FILE"
    )


def get_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is the fastest one there is."""
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(device for device, is_there in there.items() if is_there))
    check_name(name, DEVICES, "device")
    if not there[name]:
        raise BadInput(
            "device_unavailable",
            f'The device "{name}" is not available on this machine. Use --device auto or --device '
            "cpu.",
            device=name,
        )
    return torch.device(name)


def is_own(name: str) -> bool:
    """Return whether the number of classes of a model cannot be chosen.

    >>> is_own("builtin"), is_own("package.module:function"), is_own("timm:resnet18")
    (True, True, False)
    """
    is_function = ":" in name and not name.startswith(("timm:", "torchvision:"))
    return name == "builtin" or is_function


def replace_head(model: nn.Module, name: str, n_classes: int) -> None:
    """Replace the head of that name by a fresh linear layer with that many logits."""
    head = get_head(model, name)
    if not isinstance(head, nn.Linear):
        raise UnsuitableModel(
            "wrong_head",
            f'Expected the head "{name}" to be a linear layer, found {type(head).__name__}. Pass '
            f"a model with {n_classes} classes, or one with a linear head.",
            head=name,
        )
    parent, _, own = name.rpartition(".")
    fresh = nn.Linear(head.in_features, n_classes, head.bias is not None)
    setattr(model.get_submodule(parent), own, fresh.to(head.weight))


def load_trained(path: str | Path) -> nn.Module:
    """Return a model that `acclimate train --task domains` wrote, in evaluation mode."""
    path = Path(path)
    tensors, card = read_file(path, "zoo")
    training = card.get("training", {})
    if "head" not in training:
        raise ArtifactMismatch(
            "other_kind",
            f"{path} was not written by acclimate train --task domains. Load it like other "
            f'weights: zoo.load("{card.get("name", "NAME")}", "{path}").',
            path=path,
            found=training.get("task", "classification"),
            expected="domains",
        )
    name, n_classes = str(card["name"]), int(card["n_classes"])
    with torch.random.fork_rng(devices=[]):  # all that is drawn is overwritten
        model = load_named(name) if is_own(name) else zoo.build(name, n_classes)
        head = get_head(model, training["head"])
        if getattr(head, "out_features", n_classes) != n_classes:
            replace_head(model, training["head"], n_classes)
    zoo.fit(unwrap(model), tensors, None, path)
    return model.eval()


def find_classes(path: str | Path) -> tuple[str, ...] | None:
    """Return the names of the classes that weights were trained for; None if the file has none."""
    names = _read_card(Path(path)).get("training", {}).get("classes")
    return None if names is None else tuple(map(str, names))


def _find_trained(path: Path) -> str:
    """Return the name of the model that was trained on several domains; empty if none was."""
    card = _read_card(path)
    return str(card["name"]) if "head" in card.get("training", {}) else ""


def _read_card(path: Path) -> dict[str, Any]:
    """Return the card of weights that were trained here; empty of any others."""
    if not zoo.is_ours(path):
        return {}
    with safe_open(path, framework="pt") as file:
        text = file.metadata()["acclimate"]
    try:
        card = json.loads(text)
    except (ValueError, RecursionError):
        return {}  # whoever reads the file says what is wrong with it
    return card if isinstance(card, dict) else {}
