"""Settings of the paper (data and backbone), and what stands in for them at each scale.

- *full*: the paper's own data, backbones and protocol, as far as they are public;
- *small*: real images on two cores: the public ResNet-20 on CIFAR-10-C, ResNet-32 on CIFAR-100-C,
  EfficientNet-Lite0 on a sample of ImageNet, DeepLabV3+ over it on CamVid, and for most experiments
  a stated subset;
- *smoke*: the built-in task, a few small batches, seconds; its numbers mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acclimate.corruptions import BENCHMARK
from acclimate.errors import BadInput, did_you_mean
from acclimate.paper.imagenet_sample import check_corrupted
from acclimate.paper.settings import (
    PAPER,
    SEGMENTATION,
    SMALL,
    SMALL_CORRUPTIONS,
    SMALL_WHOLE,
    SMOKE,
    SMOKE_PIXELS,
    STANDS_FOR,
)

SCALES = ("smoke", "small", "full")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user may change of a scale.

    Attributes:
        weights: Files by name of the model, such as `resnet20-cifar10`.
        models: Other models by name of the setting, such as `ImageNet-C, WRN-40-2`.
        data: Folders by name of the data, such as `imagenetc`.
        sources: Folders of labelled source images by name of the data.
        heads: Files with the projection heads of jointly trained models, by name of the model.
        corruptions: Instead of those of the scale.
        images: Of each corruption, instead of those of the scale.
        only: Leave out settings whose name does not contain this.
        rows: Run these rows only; empty for all.
        trials: Draws of training's hyper-parameters, instead of those of the scale; for several
            domains.
        selection: Rule that hyper-parameters are chosen by, instead of the paper's; for several
            domains.
    """

    weights: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    heads: Mapping[str, str] = field(default_factory=dict)
    corruptions: tuple[str, ...] | None = None
    images: int | None = None
    only: str = ""
    rows: tuple[str, ...] = ()
    trials: int | None = None
    selection: str = ""

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise BadInput(
                "out_of_range",
                f"Expected --trials to be at least 1, found {self.trials}.",
                option="trials",
                found=self.trials,
            )
        models = [*_list("model"), *self.models.values()]
        for what, given, known in (
            ("weights", self.weights, models),
            ("head", self.heads, models),
            ("data", self.data, _list("data")),
            ("source", self.sources, _list("data")),
            ("model", self.models, [*PAPER, *(name for name, _ in SMALL.values())]),
        ):
            for name in given:
                if name not in known:
                    hint = did_you_mean(name, known)
                    raise BadInput(
                        "unknown_name",
                        f'Unknown name "{name}" for --{what}. {hint}',
                        kind=what,
                        name=name,
                        known=tuple(known),
                    )


@dataclass(frozen=True)
class Setup:
    """A model and the data it meets: what rows that are compared with each other have in common.

    Attributes:
        name: As our tables call it.
        paper: The setting of the paper that it is, or stands in for.
        job: Fields of a `JobSpec`; `prepare` as plain values.
        head: File with the projection head of a jointly trained model, if there is one.
    """

    name: str
    paper: str
    job: Mapping[str, Any]
    head: str | None = None

    @property
    def is_the_papers(self) -> bool:
        """Whether it is the setting itself, so that the numbers can be compared."""
        return self.name == self.paper


def check_scale(scale: str) -> str:
    """Return the scale, if there is one of that name."""
    if scale not in SCALES:
        raise BadInput(
            "unknown_name",
            f'Unknown scale "{scale}". {did_you_mean(scale, SCALES)}',
            kind="scale",
            name=scale,
            known=tuple(SCALES),
        )
    return scale


def find_setups(
    names: Sequence[str], scale: str, settings: Settings, whole: bool = False
) -> tuple[Setup, ...]:
    """Return the setups of an experiment at a scale.

    Args:
        names: Settings of the paper.
        scale: One of `SCALES`.
        settings: What is to be changed.
        whole: Whether the small scale runs all corruptions and images, too.

    Raises:
        BadInput: Nothing is left, or something that is not public was not given.
    """
    if check_scale(scale) == "smoke":
        job = SMOKE_PIXELS if names[0] in SEGMENTATION else SMOKE
        made = [Setup("built-in task", _reference(names), job)]
    elif scale == "small":
        made = [_small_setup(kind, names, whole) for kind in _kinds(names)]
    else:
        made = [Setup(name, name, PAPER[name]) for name in names]
    wanted = [setup for setup in made if settings.only.lower() in setup.name.lower()]
    if not wanted:
        known = tuple(setup.name for setup in made)
        raise BadInput(
            "unknown_name",
            f'No setting has "{settings.only}" in its name. Known: {"; ".join(known)}.',
            kind="setting",
            name=settings.only,
            known=known,
        )
    changed = [_change(setup, scale, settings) for setup in wanted]
    left = tuple(setup for setup in changed if setup.job["model"] is not None)
    if not left:
        raise BadInput(
            "missing_option",
            f"No model for {wanted[0].name} is public. Pass your own: --model "
            f'"{wanted[0].name}=package.module:function"',
            option="models",
        )
    return left


def describe_setup(setup: Setup) -> str:
    """Return one sentence on what a setup is, for the notes of a table."""
    job = setup.job
    corruptions = job.get("corruptions")
    which = ", ".join(corruptions or ())
    if corruptions is None or tuple(corruptions) == BENCHMARK:
        which = "the 15 corruptions"
    images = job.get("images")
    many = "all images" if images is None else f"the first {images} images"
    if images is not None and setup.paper in SEGMENTATION:
        many = f"{images} images at even distances"
    text = f"{setup.name}: {job['model']}, {which}; {many} of each"
    source = job.get("prepare", {})
    if source.get("images"):
        text += f"; prepared from {source['images']} source images"
    epochs = source.get("parts", {}).get("prototypes", {}).get("epochs")
    if epochs:
        text += f", a projector with {epochs} epoch{'s' if epochs > 1 else ''}"
    if setup.is_the_papers:
        return f"{text}."
    return (
        f"{text}. It stands in for {setup.paper}, whose published numbers are shown: compare "
        "orders and signs, not levels."
    )


def _kinds(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.partition(",")[0] for name in names))


def _reference(names: Sequence[str]) -> str:
    """Return the setting whose numbers are shown beside those of a stand-in."""
    usual = STANDS_FOR[_kinds(names)[0]]
    return usual if usual in names else names[0]


def _small_setup(kind: str, names: Sequence[str], whole: bool) -> Setup:
    name, job = SMALL[kind]
    if whole:
        job = {**job, "images": None, **SMALL_WHOLE.get(kind, {})}
    else:
        job = {**job, "corruptions": SMALL_CORRUPTIONS}
    return Setup(name, _reference([own for own in names if own.partition(",")[0] == kind]), job)


def _change(setup: Setup, scale: str, settings: Settings) -> Setup:
    job = dict(setup.job)
    job["model"] = settings.models.get(setup.name, job["model"])
    if job["model"] in settings.weights:
        job["weights"] = settings.weights[job["model"]]
    prepare = dict(job.get("prepare", {}))
    if job["data"] in settings.sources:
        prepare["source"] = settings.sources[job["data"]]
    elif job["data"] == "imagenetc":
        raise BadInput(
            "missing_option",
            f"{setup.name} needs labelled training images, which acclimate does not provide. Pass "
            "--source imagenetc=DIR, with the layout DIR/<wnid>/<image>.",
            option="sources",
        )
    job["prepare"] = prepare
    if job["data"] in settings.data:
        folder = settings.data[job["data"]]
        if job["data"] == "imagenetc":
            check_corrupted(folder)
        job["data"] = folder
    if settings.corruptions is not None:
        job["corruptions"] = settings.corruptions
    if settings.images is not None:
        job["images"] = settings.images
    return Setup(setup.name, setup.paper, job, settings.heads.get(job["model"]))


def _list(key: str) -> list[str]:
    """Return the models or data sets of all scales."""
    every = [*PAPER.values(), *(job for _, job in SMALL.values()), SMOKE, SMOKE_PIXELS]
    return list(dict.fromkeys(str(job[key]) for job in every if job[key] is not None))
