"""Settings of training runs: everything that the weights depend on, besides data and machine.

Each task has a class of settings and one of results. They import no torch, because the command line
makes its options from them.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from acclimate.errors import BadInput, InvalidConfig, check_name, refuse_value
from acclimate.options import Values, hp, options

Result = TypeVar("Result")

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
ALGORITHMS = ("erm", "coral")


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of a training run of any task.

    Attributes:
        path: File of the weights.
        minutes: Time spent, over all calls.
        was_done: Whether the run had finished in an earlier call.
    """

    path: Path
    minutes: float
    was_done: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainResult(RunResult):
    """Result of the training of a classifier.

    Attributes:
        error: Error on the test split in percent; None if there is no such split.
        losses: Mean training loss of each epoch.
    """

    error: float | None
    losses: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class DomainResult(RunResult):
    """Result of a run on several domains: the weights of the step with the best validation.

    Attributes:
        step: The step of these weights.
        validation: Accuracy by training domain, on 20 % of each, in percent.
        checks: The values of every check: `step`, `loss`, `penalty`, `validation` and its `mean`.
        unreadable: Images that were left out, by path, with the reason.
    """

    step: int
    validation: dict[str, float]
    checks: tuple[dict[str, Any], ...]
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Mean accuracy over the training domains; the checkpoint with the highest is kept."""
        return sum(self.validation.values()) / len(self.validation)


@dataclass(frozen=True, kw_only=True)
class SegmentationResult(RunResult):
    """Result of a training run for segmentation.

    Attributes:
        sha256: SHA-256 of the file of weights.
        miou: Mean intersection over union on the validation images, in percent.
        ious: By class, in percent; None for a class that is in no validation image.
        losses: Mean training loss of each epoch.
    """

    sha256: str
    miou: float
    ious: dict[str, float | None]
    losses: tuple[float, ...]


_BATCH = "images per step, on all devices together"


@options
class Settings(Values, Generic[Result]):
    """Settings that all tasks have."""

    task: ClassVar[str]

    model: str = hp(
        help="architecture: a name of `acclimate zoo list`, `timm:NAME`, `torchvision:NAME` or a "
        "function `package.module:function`"
    )
    data: str = hp(help="data set or folder to train on")
    precision: str = hp(
        "32-true",
        choices=PRECISIONS,
        help="full, or most products in 16 bits: bf16-mixed, 16-mixed",
    )
    images: int | None = hp(None, low=1, help="number of training images; default: all")
    devices: int = hp(1, low=1, help="number of devices that train together")
    seed: int = hp(0, help="seed of the first weights, the order of images and all other draws")

    @property
    def n_images_per_step(self) -> int:
        """Images per step, on all devices; of each domain if there are several."""
        return int(vars(self)["batch_size"])

    @property
    def command(self) -> str:
        """The command line of the run, without `--out`.

        >>> TrainSettings(model="resnet20-cifar10", data="cifar10", epochs=20, lr=0.2).command
        'acclimate train --model resnet20-cifar10 --data cifar10 --epochs 20 --lr 0.2'
        """
        task = () if self.task == "classification" else ("--task", self.task)
        return self.to_command("train", *task)

    def _check_data(self, layout: str, need: str | None = None) -> None:
        """Refuse data that is neither a folder nor a set, of those with an attribute if need be."""
        from acclimate.data import SETS

        if not Path(self.data).is_dir():
            known = [name for name, entry in SETS.items() if need is None or getattr(entry, need)]
            advice = f" Or pass a folder; it has {layout}."
            check_name(self.data, known, "data set", advice=advice)

    def _check_batch_size(self, least: int = 1) -> None:
        found = self.n_images_per_step
        if found % self.devices or found < least * self.devices:
            expected = f"the same number of images for each of {self.devices} device(s), at least "
            refuse_value("batch_size", found, f"{expected}{least}", InvalidConfig)

    def _check_warmup(self, name: str, epochs: int) -> None:
        found = getattr(self, name)
        if found >= epochs:
            refuse_value(name, found, f"less than the {epochs} epochs", InvalidConfig)


@options
class TrainSettings(Settings[TrainResult]):
    """Settings of a classifier, trained from fresh weights by SGD with a cosine schedule."""

    task = "classification"

    epochs: int = hp(100, low=1, stated=True, help="passes over the training images")
    batch_size: int = hp(128, low=1, help=_BATCH)
    lr: float = hp(0.1, above=0, help="largest learning rate; it follows half a cosine to zero")
    momentum: float = hp(
        0.9, low=0, below=1, help="momentum of SGD, in Nesterov's form; 0 is plain SGD"
    )
    weight_decay: float = hp(
        5e-4, low=0, help="weight decay: factor of the weights in their gradient"
    )
    warmup_epochs: float = hp(0.0, low=0, help="epochs in which the learning rate grows from zero")
    label_smoothing: float = hp(
        0.0,
        low=0,
        below=1,
        help="label smoothing: the part of the target that is spread over all classes",
    )
    objective: str = hp(
        "cross_entropy",
        choices=("cross_entropy", "augmix", "simclr", "augmix+simclr"),
        help="augmix adds AugMix with its Jensen-Shannon term, simclr a contrastive task with a "
        "head of its own, which TTT++ continues at test time",
    )
    augmentation: str = hp(
        "standard", choices=("standard", "none"), help="standard (shifts and flips) or none"
    )
    contrast_weight: float = hp(1.0, above=0, help="weight of the contrastive task")
    size: int | None = hp(None, low=1, help="height and width that image files are resized to")

    def __post_init__(self) -> None:
        from acclimate.zoo import get_spec

        if ":" not in self.model:
            get_spec(self.model)
        self._check_data("one subfolder of images per class")
        super().__post_init__()
        self._check_batch_size()
        self._check_warmup("warmup_epochs", self.epochs)
        if self.augmentation == "none" and "augmix" in self.objective:
            raise InvalidConfig(
                "conflicting_options",
                "The objective augmix includes shifts and flips. Remove --augmentation none.",
                options=("objective", "augmentation"),
            )


def learning_rate(settings: TrainSettings, step: int, steps_per_epoch: int) -> float:
    """Return the rate after so many steps: a linear rise, then half a cosine that ends at zero."""
    n_warmup = round(settings.warmup_epochs * steps_per_epoch)
    if step < n_warmup:
        return settings.lr * (step + 1) / n_warmup
    n_rest = settings.epochs * steps_per_epoch - n_warmup
    return settings.lr * 0.5 * (1 + math.cos(math.pi * (step - n_warmup) / n_rest))


@dataclass(frozen=True)
class Hyperparameters:
    """Hyper-parameters of DomainBed's random search; `gamma` is the weight of CORAL's penalty."""

    lr: float = 5e-5
    batch_size: int = 32
    weight_decay: float = 0.0
    dropout: float = 0.0
    gamma: float = 1.0


def get_hparams(hparams_seed: int, trial_seed: int) -> Hyperparameters:
    """Return DomainBed's hyper-parameters of a trial: the defaults for seed 0, else a random draw.

    Each has a generator of its own, so that ERM and CORAL share what they have in common.

    >>> get_hparams(0, 0).lr, get_hparams(1, 0) == get_hparams(1, 0) != get_hparams(1, 1)
    (5e-05, True)
    """
    for name, seed in (("hparams_seed", hparams_seed), ("trial_seed", trial_seed)):
        if seed < 0:
            refuse_value(name, seed, "at least 0", InvalidConfig)
    if hparams_seed == 0:
        return Hyperparameters()
    from acclimate.data.domain_choice import seed_hash

    return draw_hparams(seed_hash(hparams_seed, trial_seed))


def draw_hparams(seed: int) -> Hyperparameters:
    """Return the draw for what DomainBed calls `seed_hash(hparams_seed, trial_seed)`."""
    import numpy as np

    from acclimate.data.domain_choice import seed_hash

    def draws(name: str) -> np.random.RandomState:
        return np.random.RandomState(seed_hash(seed, name))

    return Hyperparameters(
        lr=10 ** draws("lr").uniform(-5, -3.5),
        batch_size=int(2 ** draws("batch_size").uniform(3, 5.5)),
        weight_decay=10 ** draws("weight_decay").uniform(-6, -2),
        dropout=float(draws("resnet_dropout").choice([0.0, 0.1, 0.5])),
        gamma=10 ** draws("mmd_gamma").uniform(-1, 1),
    )


@options
class DomainSettings(Settings[DomainResult]):
    """Settings of a run on several domains: DomainBed's ERM and CORAL, trained by Adam.

    A hyper-parameter that is None is that of the trial: DomainBed's default for `hparams_seed` 0,
    else a draw of its random search. The model may also be `resnet50` or `resnet18`, those of
    DomainBed, or `builtin`.
    """

    task = "domains"

    objective: str = hp(choices=ALGORITHMS, help="cross entropy; or with CORAL's penalty")
    test_domain: str | tuple[str, ...] = hp(help="domain to hold out; may be repeated", repeat=True)
    pretrained: bool = hp(False, help="start from the published weights, with a new head")
    weights: str | None = hp(
        None, help="start from these weights instead; their classes may differ"
    )
    steps: int = hp(5000, low=1, help="number of steps")
    check_every: int = hp(300, low=1, help="steps between two measurements on held-out images")
    lr: float | None = hp(None, above=0, help="of Adam; default: the trial's")
    batch_size: int | None = hp(None, low=1, help="images of each domain; default: the trial's")
    weight_decay: float | None = hp(None, low=0, help="of Adam; default: the trial's")
    dropout: float | None = hp(None, low=0, below=1, help="dropout rate of the features")
    gamma: float | None = hp(None, above=0, help="weight of CORAL's penalty")
    hparams_seed: int = hp(0, help="draw of DomainBed's random search; 0 is its defaults")
    trial_seed: int = hp(0, help="seed of the splits and of the draw")
    size: int | None = hp(None, low=1, help="height and width of images; default: 224")

    def __post_init__(self) -> None:
        given = self.test_domain
        names = (given,) if isinstance(given, str) else tuple(sorted(given))
        object.__setattr__(self, "test_domain", names)
        layout = "one subfolder per domain, which has one subfolder of images per class"
        self._check_data(layout, "has_domains")
        super().__post_init__()
        text = (
            f"Expected one or more different test domains, found {', '.join(names) or 'none'}. "
            "Pass --test-domain for each of them."
        )
        if not names:
            raise BadInput("missing_option", text, option="test_domain")
        if len(set(names)) < len(names):
            raise BadInput("duplicate", text, name=max(names, key=names.count))
        if self.pretrained and self.weights is not None:
            raise InvalidConfig(
                "conflicting_options",
                "Expected either --pretrained or --weights FILE, found both. Remove one of them.",
                options=("pretrained", "weights"),
            )
        if self.gamma is not None and self.objective != "coral":
            raise InvalidConfig(
                "not_applicable",
                "The option gamma is the weight of the CORAL penalty; the objective "
                f"{self.objective} has none. Remove it.",
                option="gamma",
            )
        self._check_batch_size(2 if self.objective == "coral" else 1)

    @property
    def n_images_per_step(self) -> int:
        return self.hparams.batch_size

    @property
    def held_out(self) -> tuple[str, ...]:
        """The names of the domains that are not trained on, as they were given, sorted."""
        return tuple(self.test_domain)

    @property
    def hparams(self) -> Hyperparameters:
        """The hyper-parameters of the run: as given, otherwise those of the trial."""
        trial = get_hparams(self.hparams_seed, self.trial_seed)
        names = [spec.name for spec in dataclasses.fields(trial)]
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return dataclasses.replace(trial, **given)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain values, the hyper-parameters as they are used."""
        hparams = dataclasses.asdict(self.hparams)
        return {**super().to_dict(), "test_domain": list(self.held_out), **hparams}


@options
class SegmentationSettings(Settings[SegmentationResult]):
    """Settings of a run for segmentation, trained by AdamW with a polynomial schedule.

    The model is a name of `acclimate.zoo.segmentation.DENSE_MODELS`, or a function. A folder of
    data has `train` and `val`, each with `images` and `masks`.
    """

    task = "segmentation"

    objective: str = hp(
        "cross_entropy",
        choices=("cross_entropy", "isw"),
        help="isw trains as RobustNet: instance whitening in the first stages, and a loss on "
        "covariances of features that change with the colours",
    )
    isw_weight: float = hp(0.6, low=0, help="weight of the whitening loss (λ)")
    isw_clusters: int = hp(
        3, low=2, help="clusters of covariances; all but the lowest are whitened"
    )
    isw_warmup_epochs: int = hp(5, low=0, help="passes before the whitening loss begins")
    pretrained: bool = hp(False, help="begin with an encoder trained on ImageNet")
    epochs: int = hp(50, low=1, help="passes over the training images")
    batch_size: int = hp(8, low=1, help=_BATCH)
    lr: float = hp(1e-3, above=0, help="first learning rate of AdamW; it falls as (1 − t)^power")
    power: float = hp(0.9, low=0, help="exponent of the schedule")
    weight_decay: float = hp(1e-2, low=0, help="of AdamW")
    crop_height: int | None = hp(None, low=1, help="height of crops; default: that of the images")
    crop_width: int | None = hp(None, low=1, help="width of crops; default: that of the images")
    smallest_scale: float = hp(0.75, above=0, help="smallest scale factor before cropping")
    largest_scale: float = hp(1.5, above=0, help="largest scale factor before cropping")
    jitter: float = hp(
        0.4,
        low=0,
        help="strength of changes of brightness, contrast and saturation; of hue, a quarter of it",
    )
    size: int | tuple[int, int] | None = hp(
        None, help="height and width of images, such as 48x64", join="x"
    )
    ignore_label: int = hp(255, help="value of pixels without a label, in masks of a folder")
    check_every: int = hp(5, low=1, help="passes between two measurements on validation images")

    def __post_init__(self) -> None:
        from acclimate.streams.images import as_size
        from acclimate.zoo.segmentation import get_dense

        if ":" not in self.model:
            get_dense(self.model)
        layout = "train/images, train/masks, val/images, val/masks and classes.txt"
        self._check_data(layout, "has_masks")
        super().__post_init__()
        if self.size is not None:
            as_size(self.size)
        self._check_batch_size()
        if self.objective == "isw":
            self._check_warmup("isw_warmup_epochs", self.epochs)
        if self.smallest_scale > self.largest_scale:
            least = f"at least {self.smallest_scale}"
            refuse_value("largest_scale", self.largest_scale, least, InvalidConfig)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as JSON types."""
        size = self.size
        return {**super().to_dict(), "size": list(size) if isinstance(size, tuple) else size}


#: The settings of each task, by its name.
TASKS: dict[str, type[Settings[Any]]] = {
    kind.task: kind for kind in (TrainSettings, DomainSettings, SegmentationSettings)
}
