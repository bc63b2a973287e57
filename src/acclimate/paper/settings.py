"""Settings of the paper (data and backbone) as jobs, and what stands in for them at each scale.

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
from acclimate.errors import BadInput, check_name
from acclimate.paper.imagenet_sample import check_corrupted

SCALES = ("smoke", "small", "full")

#: The subset of the small scale, with corruptions of each kind: noise, blur, weather, digital. With
#: one seed they are the pairs that a claim is judged by: four could not show more than 94 %.
SMALL_CORRUPTIONS = ("gaussian_noise", "defocus_blur", "snow", "fog", "contrast", "pixelate")

CIFAR100 = ("CIFAR-100-C, WRN-40-2", "CIFAR-100-C, ResNet-50")
CIFAR10 = ("CIFAR-10-C, WRN-40-2", "CIFAR-10-C, WRN-28-10", "CIFAR-10-C, ResNet-50")
IMAGENET = ("ImageNet-C, WRN-40-2", "ImageNet-C, ResNet-50")
SEGMENTATION = ("DeepLabV3+ (ResNet-50)", "RobustNet (ResNet-50)")

Job = dict[str, Any]

# The defaults of the two frameworks that the paper ran its experiments in; then its own.
_TENT: Job = {"batch_size": 200}
_TTT: Job = {"batch_size": 256, "order": "shuffled"}
_IMAGENET: Job = {"batch_size": 64, "order": "shuffled"}
# The supplement's, on Cityscapes-C; the order is not stated.
_PIXELS: Job = {"batch_size": 2, "order": "shuffled"}


def _job(model: str | None, data: str, preset: str, protocol: Job, **more: Any) -> Job:
    return {"model": model, "data": data, "preset": preset, "protocol": protocol, **more}


def _streets(model: str) -> Job:
    return _job(model, "cityscapes", "cityscapes", _PIXELS, corruptions=BENCHMARK)


#: The settings of the paper; of one no model is public.
PAPER: dict[str, Job] = {
    "CIFAR-100-C, WRN-40-2": _job("wrn40-2-cifar100", "cifar100c", "cifar100", _TENT),
    "CIFAR-100-C, ResNet-50": _job("resnet50-cifar100", "cifar100c", "cifar100", _TTT),
    "CIFAR-10-C, WRN-40-2": _job("wrn40-2-cifar10", "cifar10c", "cifar10", _TENT),
    "CIFAR-10-C, WRN-28-10": _job("wrn28-10-cifar10", "cifar10c", "cifar10", _TENT),
    "CIFAR-10-C, ResNet-50": _job("resnet50-cifar10", "cifar10c", "cifar10", _TTT),
    "ImageNet-C, WRN-40-2": _job(None, "imagenetc", "imagenet", _IMAGENET),
    "ImageNet-C, ResNet-50": _job("torchvision:resnet50", "imagenetc", "imagenet", _IMAGENET),
    SEGMENTATION[0]: _streets("deeplabv3plus-resnet50"),
    SEGMENTATION[1]: _streets("deeplabv3plus-resnet50+isw"),
}


def _cifar(model: str, n_classes: int) -> Job:
    prepare = {"images": 10_000, "parts": {"prototypes": {"epochs": 5}}}
    data = f"cifar{n_classes}"
    return _job(f"{model}-{data}", f"{data}c", data, _TENT, images=1000, prepare=prepare)


def _camvid(model: str) -> Job:
    # Prototypes without a projector, which eleven classes do not need either.
    prepare = {"images": 96, "parts": {"penalty": {"n_samples": 96}, "prototypes": {"depth": 0}}}
    return _job(model, "camvid", "cityscapes", _PIXELS, images=60, prepare=prepare)


# One image a class: too few for prototypes, so the classifier's own rows are taken.
_SAMPLE = {"parts": {"penalty": {"n_samples": 500}, "prototypes": {"source": "classifier"}}}
_LITE = "acclimate.paper.efficientnet:efficientnet_lite0"
#: By data or model of the paper: name and job of what stands in for it at the small scale.
SMALL: dict[str, tuple[str, Job]] = {
    "CIFAR-100-C": ("CIFAR-100-C, ResNet-32", _cifar("resnet32", 100)),
    "CIFAR-10-C": ("CIFAR-10-C, ResNet-20", _cifar("resnet20", 10)),
    "ImageNet-C": (
        "ImageNet sample, EfficientNet-Lite0",
        _job(_LITE, "imagenetc", "imagenet", _IMAGENET, prepare=_SAMPLE),
    ),
    SEGMENTATION[0]: ("CamVid, DeepLabV3+", _camvid("deeplabv3plus-efficientnet-lite0")),
    SEGMENTATION[1]: ("CamVid, RobustNet", _camvid("deeplabv3plus-efficientnet-lite0+isw")),
}
# What is other where the small scale runs all images: without a projector, which ten classes do
# not need, to prepare from all source images takes minutes, so it is done as in the paper.
_SMALL_WHOLE: dict[str, Job] = {"CIFAR-10-C": {"prepare": {}}}
# What the small scale's own backbone is compared with: the one most alike in the paper.
_STANDS_FOR = {
    "CIFAR-100-C": "CIFAR-100-C, ResNet-50",
    "CIFAR-10-C": "CIFAR-10-C, WRN-28-10",
    "ImageNet-C": "ImageNet-C, ResNet-50",
    **{name: name for name in SEGMENTATION},
}

_SMOKE_PARTS = {
    "penalty": {"n_samples": 6},
    "prototypes": {"epochs": 1},
    "fisher": {"n_samples": 8, "batch_size": 4},
    "contrast": {"n_samples": 24, "batch_size": 12},
}
_SMOKE: Job = {
    "model": "builtin",
    "data": "builtin",
    "corruptions": ("gaussian_noise", "contrast"),
    "images": 8,
    "protocol": {"batch_size": 4},
    "prepare": {"images": 24, "parts": _SMOKE_PARTS},
}
#: The same for predictions of every pixel.
_SMOKE_PIXELS: Job = {
    **_job("builtin-scenes", "builtin-scenes", "cityscapes", _PIXELS, images=4),
    "corruptions": ("gaussian_noise", "contrast"),
    "prepare": {
        "images": 8,
        "parts": {"penalty": {"n_samples": 4}, "prototypes": {"depth": 0, "pixels": 8}},
    },
}


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
        trials: Draws of training's hyper-parameters (several domains).
        selection: Rule that hyper-parameters are chosen by (several domains).
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
        jobs = [*PAPER.values(), *(job for _, job in SMALL.values()), _SMOKE, _SMOKE_PIXELS]
        models = [*(str(j["model"]) for j in jobs if j["model"]), *self.models.values()]
        data = [str(job["data"]) for job in jobs]
        settings = [*PAPER, *(name for name, _ in SMALL.values())]
        for kind, given, known in (
            ("weights", self.weights, models),
            ("head", self.heads, models),
            ("data", self.data, data),
            ("source", self.sources, data),
            ("model", self.models, settings),
        ):
            for name in given:
                check_name(name, dict.fromkeys(known), kind)

    def keep(self, names: Sequence[str]) -> list[bool]:
        """Return which settings are asked for.

        Raises:
            BadInput: None is.
        """
        kept = [self.only.lower() in name.lower() for name in names]
        if not any(kept):
            raise BadInput(
                "unknown_name",
                f'No setting has "{self.only}" in its name. Known: {"; ".join(names)}.',
                kind="setting",
                name=self.only,
                known=tuple(names),
            )
        return kept


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

    def describe(self) -> str:
        """Return one sentence on what it is, for the notes of a table."""
        corruptions, images = self.job.get("corruptions"), self.job.get("images")
        which = ", ".join(corruptions or ())
        if corruptions is None or tuple(corruptions) == BENCHMARK:
            which = "the 15 corruptions"
        many = "all images" if images is None else f"the first {images} images"
        if images is not None and self.paper in SEGMENTATION:
            many = f"{images} images at even distances"
        text = f"{self.name}: {self.job['model']}, {which}; {many} of each"
        source = self.job.get("prepare", {})
        if source.get("images"):
            text += f"; prepared from {source['images']} source images"
        text += describe_projector(source)
        return f"{text}." if self.is_the_papers else f"{text}. {describe_stand_in(self.paper)}"


def describe_projector(prepare: Mapping[str, Any]) -> str:
    """Return how long a projector is trained, if that is stated."""
    n = prepare.get("parts", {}).get("prototypes", {}).get("epochs")
    return f", a projector with {n} epoch{'s' if n > 1 else ''}" if n else ""


def describe_stand_in(paper: str) -> str:
    """Return how numbers may be read that are not of the paper's own setting."""
    return (
        f"It stands in for {paper}, whose published numbers are shown: compare orders and signs, "
        "not levels."
    )


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
    check_name(scale, SCALES, "scale")
    kinds = dict.fromkeys(name.partition(",")[0] for name in names)
    if scale == "full":
        made = [Setup(name, name, PAPER[name]) for name in names]
    elif scale == "small":
        made = [_small_setup(kind, names, whole) for kind in kinds]
    else:
        job = _SMOKE_PIXELS if names[0] in SEGMENTATION else _SMOKE
        made = [Setup("built-in task", _reference(next(iter(kinds)), names), job)]
    kept = settings.keep([setup.name for setup in made])
    wanted = [setup for setup, is_kept in zip(made, kept, strict=True) if is_kept]
    changed = [_change(setup, settings) for setup in wanted]
    left = tuple(setup for setup in changed if setup.job["model"] is not None)
    if not left:
        raise BadInput(
            "missing_option",
            f"No model for {wanted[0].name} is public. Pass your own: --model "
            f'"{wanted[0].name}=package.module:function"',
            option="models",
        )
    return left


def _reference(kind: str, names: Sequence[str]) -> str:
    """Return the setting whose numbers are shown beside those of a stand-in."""
    of_kind = [name for name in names if name.partition(",")[0] == kind]
    return _STANDS_FOR[kind] if _STANDS_FOR[kind] in of_kind else of_kind[0]


def _small_setup(kind: str, names: Sequence[str], whole: bool) -> Setup:
    name, job = SMALL[kind]
    other = {"images": None, **_SMALL_WHOLE.get(kind, {})}
    other = other if whole else {"corruptions": SMALL_CORRUPTIONS}
    return Setup(name, _reference(kind, names), {**job, **other})


def _change(setup: Setup, settings: Settings) -> Setup:
    job = dict(setup.job)
    data = job["data"]
    job["model"] = settings.models.get(setup.name, job["model"])
    if job["model"] in settings.weights:
        job["weights"] = settings.weights[job["model"]]
    job["prepare"] = dict(job.get("prepare", {}))
    if data in settings.sources:
        job["prepare"]["source"] = settings.sources[data]
    elif data == "imagenetc":
        raise BadInput(
            "missing_option",
            f"{setup.name} needs labelled training images, which acclimate does not provide. Pass "
            "--source imagenetc=DIR, with the layout DIR/<wnid>/<image>.",
            option="sources",
        )
    if data == "imagenetc" and data in settings.data:
        check_corrupted(settings.data[data])
    job["data"] = settings.data.get(data, data)
    asked = {"corruptions": settings.corruptions, "images": settings.images}
    job |= {name: value for name, value in asked.items() if value is not None}
    return Setup(setup.name, setup.paper, job, settings.heads.get(job["model"]))
