"""Settings of the paper (data and backbone) as jobs, and what stands in for them at each scale.

- *full*: the paper's own data, backbones and protocol, as far as they are public;
- *small*: real images on two cores: the public ResNet-20 on CIFAR-10-C, ResNet-32 on CIFAR-100-C,
  EfficientNet-Lite0 on a sample of ImageNet, DeepLabV3+ over it on CamVid, and for most experiments
  a stated subset;
- *smoke*: the built-in task, a few small batches, seconds; its numbers mean nothing.

What they are is in `settings.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acclimate.corruptions import BENCHMARK
from acclimate.errors import BadInput, check_name
from acclimate.paper.imagenet_sample import check_corrupted
from acclimate.paper.published import read_toml

SCALES = ("smoke", "small", "full")


DECLARED = read_toml("settings.toml")
#: The settings of the paper as jobs.
PAPER: dict[str, dict[str, Any]] = DECLARED["paper"]
#: What stands in for them at the small scale, by data or model.
SMALL: dict[str, dict[str, Any]] = DECLARED["small"]


def _has_pixels(setting: str) -> bool:
    return bool(PAPER[setting]["preset"] == "cityscapes")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user may change of a scale; see the options of `acclimate reproduce`.

    `weights` and `heads` are files by name of the model, `data` and `sources` folders by name of
    the data, `models` are by name of the setting. `only` is part of the names of settings.
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
        small = SMALL.values()
        jobs = [*PAPER.values(), *(own["job"] for own in small), *DECLARED["smoke"].values()]
        models = [*(job["model"] for job in jobs if "model" in job), *self.models.values()]
        data = [job["data"] for job in jobs]
        settings = [*PAPER, *(own["name"] for own in small)]
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
        if images is not None and _has_pixels(self.paper):
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

    `names` are settings of the paper; with `whole`, the small scale runs all corruptions and
    images.

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
        job = DECLARED["smoke"]["pixels" if _has_pixels(names[0]) else "images"]
        made = [Setup("built-in task", _reference(next(iter(kinds)), names), job)]
    kept = settings.keep([setup.name for setup in made])
    wanted = [setup for setup, is_kept in zip(made, kept, strict=True) if is_kept]
    changed = [_change(setup, settings) for setup in wanted]
    left = tuple(setup for setup in changed if "model" in setup.job)
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
    most_alike = SMALL[kind]["stands_for"]
    return most_alike if most_alike in of_kind else of_kind[0]


def _small_setup(kind: str, names: Sequence[str], whole: bool) -> Setup:
    own = SMALL[kind]
    other = (
        {"images": None, **own.get("whole", {})}
        if whole
        else {"corruptions": DECLARED["small_corruptions"]}
    )
    return Setup(own["name"], _reference(kind, names), {**own["job"], **other})


def _change(setup: Setup, settings: Settings) -> Setup:
    job = dict(setup.job)
    data = job["data"]
    if job.get("corruptions") == "benchmark":
        job["corruptions"] = BENCHMARK
    if setup.name in settings.models:
        job["model"] = settings.models[setup.name]
    if job.get("model") in settings.weights:
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
    return Setup(setup.name, setup.paper, job, settings.heads.get(job.get("model", "")))
