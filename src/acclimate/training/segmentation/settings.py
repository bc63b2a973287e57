"""What a training run for segmentation is: everything its weights depend on."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from acclimate.data import SETS
from acclimate.data.mask_files import IGNORE
from acclimate.errors import BadInput, InvalidConfig, did_you_mean
from acclimate.streams.images import Size, as_size
from acclimate.training.settings import PRECISIONS
from acclimate.zoo.segmentation import get_dense


@dataclass(frozen=True, kw_only=True)
class SegmentationSettings:
    """What a training run for segmentation is.

    Attributes:
        model: A name of `acclimate.zoo.segmentation.DENSE_MODELS`, or `package.module:function`.
        data: A set with masks, such as `camvid`; or a folder with `train` and `val`, each with
            `images` and `masks`.
        pretrained: Whether the encoder begins with its weights for ImageNet.
        isw: Whether to train as RobustNet: with instance whitening in the first stages, and the
            loss that whitens selectively.
        isw_weight: Of that loss; λ in the paper.
        isw_clusters: Into which pairs of channels are grouped; all but the lowest are whitened.
        isw_warmup_epochs: Passes before the pairs are chosen and the loss begins.
        epochs: Passes over the training images.
        batch_size: Images a step, on all devices together.
        lr: Of AdamW at the beginning; it falls to zero as (1 − t)^power.
        power: See `lr`.
        weight_decay: Of AdamW.
        crop_height: Of the parts of images that are trained on; None is that of the images.
        crop_width: See `crop_height`.
        smallest_scale: By which images are enlarged before they are cropped, at least.
        largest_scale: At most.
        jitter: How much brightness, contrast and saturation change; the hue by a quarter of it.
        precision: `32-true`, or `bf16-mixed` or `16-mixed` to compute most products in 16 bits.
        images: How many training images, spread over the listing; None is all.
        size: Height and width all images are brought to; None if they have one size.
        ignore_label: The value in masks of a folder that stands for no label.
        check_every: Passes between two looks at the validation images.
        devices: How many compute together; each normalises by the statistics of its own images.
        seed: Of the first weights, the order of the images and all other draws.
    """

    model: str
    data: str
    pretrained: bool = False
    isw: bool = False
    isw_weight: float = 0.6
    isw_clusters: int = 3
    isw_warmup_epochs: int = 5
    epochs: int = 50
    batch_size: int = 8
    lr: float = 1e-3
    power: float = 0.9
    weight_decay: float = 1e-2
    crop_height: int | None = None
    crop_width: int | None = None
    smallest_scale: float = 0.75
    largest_scale: float = 1.5
    jitter: float = 0.4
    precision: str = "32-true"
    images: int | None = None
    size: int | Size | None = None
    ignore_label: int = IGNORE
    check_every: int = 5
    devices: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if ":" not in self.model:
            get_dense(self.model)
        known = tuple(name for name, entry in SETS.items() if entry.has_masks)
        if self.data not in known and not Path(self.data).is_dir():
            raise BadInput(
                "unknown_name",
                f'"{self.data}" is neither a data set with masks nor a folder. '
                f"{did_you_mean(self.data, known)} A folder has train/images, train/masks, "
                "val/images, val/masks and classes.txt.",
                kind="data set",
                name=self.data,
                known=known,
            )
        if self.precision not in PRECISIONS:
            raise InvalidConfig(
                "unknown_name",
                f'Unknown precision "{self.precision}". {did_you_mean(self.precision, PRECISIONS)}',
                kind="precision",
                name=self.precision,
                known=tuple(PRECISIONS),
            )
        if self.size is not None:
            as_size(self.size)
        self._check_counts()
        self._check_numbers()

    def _check_counts(self) -> None:
        least = {"isw_warmup_epochs": 0, "isw_clusters": 2}
        for name in (
            *("isw_clusters", "isw_warmup_epochs", "epochs", "batch_size", "crop_height"),
            *("crop_width", "images", "check_every", "devices"),
        ):
            value = getattr(self, name)
            if value is not None and value < least.get(name, 1):
                raise InvalidConfig(
                    "out_of_range",
                    f"Expected {name} to be at least {least.get(name, 1)}, found {value}.",
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
        if self.isw and self.isw_warmup_epochs >= self.epochs:
            raise InvalidConfig(
                "out_of_range",
                f"Expected isw_warmup_epochs to be less than the {self.epochs} epochs, found "
                f"{self.isw_warmup_epochs}: the whitening loss would never be used.",
                option="isw_warmup_epochs",
                found=self.isw_warmup_epochs,
            )

    def _check_numbers(self) -> None:
        for name in ("lr", "smallest_scale"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidConfig(
                    "out_of_range",
                    f"Expected {name} to be greater than 0, found {value}.",
                    option=name,
                    found=value,
                )
        for name in ("power", "weight_decay", "jitter", "isw_weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidConfig(
                    "out_of_range",
                    f"Expected {name} to be at least 0, found {value}.",
                    option=name,
                    found=value,
                )
        if not self.smallest_scale <= self.largest_scale < math.inf:
            raise InvalidConfig(
                "out_of_range",
                f"Expected largest_scale to be at least {self.smallest_scale}, found "
                f"{self.largest_scale}.",
                option="largest_scale",
                found=self.largest_scale,
            )

    def crop(self, size: Size) -> Size:
        """Return height and width of what is trained on, of images of that size."""
        return self.crop_height or size[0], self.crop_width or size[1]

    def rate(self, step: int, n_steps: int) -> float:
        """Return the learning rate of a step, from 0.

        >>> settings = SegmentationSettings(model="builtin-scenes", data="builtin-scenes", lr=0.1)
        >>> settings.rate(0, 100), round(settings.rate(50, 100), 4)
        (0.1, 0.0536)
        """
        return self.lr * math.pow(1 - step / n_steps, self.power)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain values, as JSON types."""
        values = asdict(self)
        # Runs from before there were these can be gone on with.
        if self.size is None:
            del values["size"]
        else:
            values["size"] = list(as_size(self.size))
        if self.ignore_label == IGNORE:
            del values["ignore_label"]
        return values

    @property
    def command(self) -> str:
        """The command line that trains this, without the file it writes.

        >>> SegmentationSettings(model="builtin-scenes", data="builtin-scenes", isw=True).command
        'acclimate train --task segmentation --model builtin-scenes --data builtin-scenes --isw'
        """
        words = ["acclimate", "train", "--task", "segmentation"]
        for option in fields(self):
            value = getattr(self, option.name)
            flag = f"--{option.name.replace('_', '-')}"
            if isinstance(value, bool):
                words += [flag] if value else []
            elif value != option.default:
                words += [
                    flag,
                    "x".join(map(str, value)) if isinstance(value, tuple) else str(value),
                ]
        return shlex.join(words)
