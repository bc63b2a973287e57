"""What a training run is: everything its weights depend on, besides data and machine."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from acclimate.data.catalog import SETS
from acclimate.errors import BadInput, InvalidConfig, did_you_mean
from acclimate.zoo import get_spec

AUGMENTATIONS = ("standard", "augmix", "none")
JOINTS = ("none", "simclr")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """What a training run is.

    Attributes:
        model: A name of the zoo, `timm:NAME`, `torchvision:NAME` or `package.module:function`.
        data: A set with a split `train`, such as `cifar10`; or a folder, one sub-folder a class.
        epochs: Passes over the training images.
        batch_size: Images a step, on all devices together.
        lr: The largest learning rate; it follows half a cosine down to zero.
        momentum: Of SGD, in Nesterov's form; 0 is plain SGD.
        weight_decay: Factor of the weights that is added to their gradient.
        warmup_epochs: Passes, or parts of one, in which the rate grows from zero, linearly.
        label_smoothing: Part of the target that is spread over all classes.
        augmentation: `standard` (shifts and flips), `augmix` (these and AugMix, with its
            Jensen-Shannon term) or `none`.
        joint: A second task that is trained with the first: `simclr`, a contrastive one with a head
            of its own, which TTT++ goes on with at test time; or `none`.
        joint_weight: Weight of the second task's loss.
        precision: `32-true`, or `bf16-mixed` or `16-mixed` to compute most products in 16 bits.
        images: How many training images, the first; None is all.
        size: Height and width image files are brought to; None if all have one size.
        devices: How many compute together; each normalises by the statistics of its own images.
        seed: Of the first weights, the order of the images and all other draws.
    """

    model: str
    data: str
    epochs: int = 100
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: float = 0.0
    label_smoothing: float = 0.0
    augmentation: str = "standard"
    joint: str = "none"
    joint_weight: float = 1.0
    precision: str = "32-true"
    images: int | None = None
    size: int | None = None
    devices: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_names()
        for name in ("epochs", "batch_size", "images", "size", "devices"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(
                    "out_of_range",
                    f"Expected {name} to be at least 1, found {value}.",
                    option=name,
                    found=value,
                )
        if self.batch_size % self.devices:
            raise InvalidConfig(
                "out_of_range",
                f"Expected a batch size that is a multiple of the {self.devices} devices, found "
                f"{self.batch_size}.",
                option="batch_size",
                found=self.batch_size,
            )
        for name, usual in (("lr", 0.1), ("joint_weight", 1)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidConfig(
                    "out_of_range",
                    f"Expected {name} to be greater than 0, found {value}. A typical value is "
                    f"{usual}.",
                    option=name,
                    found=value,
                )
        for name, end in (("momentum", 1), ("label_smoothing", 1), ("weight_decay", math.inf)):
            value = getattr(self, name)
            if not 0 <= value < end:
                until = "" if end == math.inf else f" and below {end}"
                raise InvalidConfig(
                    "out_of_range",
                    f"Expected {name} to be at least 0{until}, found {value}.",
                    option=name,
                    found=value,
                )
        if not 0 <= self.warmup_epochs < self.epochs:
            raise InvalidConfig(
                "out_of_range",
                f"Expected warmup_epochs to be at least 0 and less than the {self.epochs} epochs, "
                f"found {self.warmup_epochs}. Use more epochs or a shorter warm-up.",
                option="warmup_epochs",
                found=self.warmup_epochs,
            )

    def _check_names(self) -> None:
        if ":" not in self.model:
            get_spec(self.model)
        if self.data not in SETS and not Path(self.data).is_dir():
            raise BadInput(
                "unknown_name",
                f'"{self.data}" is neither a data set nor a folder. '
                f"{did_you_mean(self.data, SETS)} A folder has one subfolder of images per class.",
                kind="data set",
                name=self.data,
                known=tuple(SETS),
            )
        for name, known in (
            ("augmentation", AUGMENTATIONS),
            ("joint", JOINTS),
            ("precision", PRECISIONS),
        ):
            value = getattr(self, name)
            if value not in known:
                raise InvalidConfig(
                    "unknown_name",
                    f'Unknown {name} "{value}". {did_you_mean(value, known)}',
                    kind=name,
                    name=value,
                    known=tuple(known),
                )

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain values."""
        return asdict(self)

    @property
    def command(self) -> str:
        """The command line that trains this, without the file it writes.

        >>> TrainSettings(model="resnet20-cifar10", data="cifar10", epochs=20, lr=0.2).command
        'acclimate train --model resnet20-cifar10 --data cifar10 --epochs 20 --lr 0.2'
        """
        words = ["acclimate", "train"]
        for option in fields(self):
            value = getattr(self, option.name)
            # The number of epochs is what one looks for: it is always said.
            if value != option.default or option.name == "epochs":
                words += [f"--{option.name.replace('_', '-')}", str(value)]
        return shlex.join(words)


def learning_rate(settings: TrainSettings, step: int, steps_per_epoch: int) -> float:
    """Return the rate of a step: a linear rise, then half a cosine that ends at zero.

    Args:
        settings: Of the run.
        step: Number of steps done before, over all epochs.
        steps_per_epoch: Steps of one pass.
    """
    n_warmup = round(settings.warmup_epochs * steps_per_epoch)
    if step < n_warmup:
        return settings.lr * (step + 1) / n_warmup
    n_rest = settings.epochs * steps_per_epoch - n_warmup
    return settings.lr * 0.5 * (1 + math.cos(math.pi * (step - n_warmup) / n_rest))
