"""What the demonstration runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields

from acclimate.corruptions import CORRUPTIONS
from acclimate.demo.tasks import get_task
from acclimate.errors import BadInput, did_you_mean
from acclimate.methods import get_method

ORDERS = ("shuffled", "sorted")


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What to run. The default shifts were fixed in advance, one or two of each family.

    Attributes:
        data: What the images are: a key of `TASKS`.
        methods: Names, in the order of the table.
        corruptions: Names of the shifts.
        images: Test images of each shift.
        costly_images: Only so many of them, the first, for methods that take an image at a time;
            0 for all.
        batch_size: Batch size.
        severity: Of the corruptions, from 1 to 5.
        order: Of the images of a shift, one of `ORDERS`: shuffled by the seed, or sorted by class,
            one class after the other.
        reveal_labels: Whether oracles are shown the labels.
        seeds: How many; each changes order, corruptions, and the draws of methods and artifact.
        n_source: Training images the artifact is prepared from.
        n_penalty: How many of these the penalty is measured on.
    """

    data: str = "builtin"
    methods: tuple[str, ...] = ("source", "norm", "tent", "swr_nsp")
    corruptions: tuple[str, ...] = (
        "gaussian_noise",
        "defocus_blur",
        "fog",
        "contrast",
        "pixelate",
        "jpeg_compression",
    )
    images: int = 1400
    costly_images: int = 100
    batch_size: int = 200
    severity: int = 5
    order: str = "shuffled"
    seeds: int = 1
    reveal_labels: bool = False
    n_source: int = 4096
    n_penalty: int = 1024

    def __post_init__(self) -> None:
        get_task(self.data)
        for name in self.methods:
            get_method(name)
        for name in self.corruptions:
            if name not in CORRUPTIONS:
                raise BadInput(
                    "unknown_name",
                    f'Unknown corruption "{name}". {did_you_mean(name, CORRUPTIONS)}',
                    kind="corruption",
                    name=name,
                    known=tuple(CORRUPTIONS),
                )
        if self.order not in ORDERS:
            raise BadInput(
                "unknown_name",
                f'Unknown order "{self.order}". {did_you_mean(self.order, ORDERS)}',
                kind="order",
                name=self.order,
                known=ORDERS,
            )
        for what in ("methods", "corruptions"):
            names = getattr(self, what)
            text = (
                f"Expected one or more {what}, each listed once, found: "
                f"{', '.join(names) or 'none'}."
            )
            if not names:
                raise BadInput("missing_option", text, option=what)
            for name in names:
                if names.count(name) > 1:
                    raise BadInput("duplicate", text, name=name)
        for what in ("images", "batch_size", "seeds", "n_source", "n_penalty"):
            if (found := getattr(self, what)) < 1:
                raise BadInput(
                    "out_of_range",
                    f"Expected {what} to be at least 1, found {found}.",
                    option=what,
                    found=found,
                )
        if self.costly_images < 0:
            raise BadInput(
                "out_of_range",
                f"Expected costly_images to be at least 0, found {self.costly_images}.",
                option="costly_images",
                found=self.costly_images,
            )
        if self.severity not in range(1, 6):
            raise BadInput(
                "out_of_range",
                f"Expected a severity from 1 to 5, found {self.severity}.",
                option="severity",
                found=self.severity,
            )

    @property
    def command(self) -> str:
        """The command line that runs this, without the files it writes.

        >>> DemoSettings(seeds=3, methods=("source", "tent")).command
        'acclimate demo --methods source,tent --seeds 3'
        """
        words = ["acclimate", "demo"]
        for option in fields(self):
            value = getattr(self, option.name)
            # What starts with n_ is for programs and has no option.
            if value != option.default and not option.name.startswith("n_"):
                text = ",".join(value) if isinstance(value, tuple) else str(value)
                name = f"--{option.name.replace('_', '-')}"
                words += [name] if value is True else [name, text]
        return shlex.join(words)
