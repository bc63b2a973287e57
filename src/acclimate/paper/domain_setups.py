"""What table 6 is run on at each scale: sets of domains, models, training, and what is tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from acclimate.errors import BadInput
from acclimate.paper.scales import Settings, check_scale
from acclimate.training.settings import ALGORITHMS

#: Stands for as many supports of T3A as there are images, which is all of them.
ALL = None


@dataclass(frozen=True)
class Candidate:
    """A method with hyper-parameters to be chosen from.

    Attributes:
        row: Of the table.
        label: What it is called in notes.
        method: Its name.
        options: Its hyper-parameters; `n_supports` may be `ALL`.
        parts: Options of the artifact's parts.
    """

    row: str
    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _t3a(*counts: int | None) -> tuple[Candidate, ...]:
    return tuple(
        Candidate("T3A", f"M = {n or 'all'}", "t3a", {"statistics": "source", "n_supports": n})
        for n in counts
    )


def _ours(lr: float, depth: int) -> Candidate:
    projector = "with projector" if depth else "no projector"
    return Candidate(
        "Ours",
        f"lr {lr:g}, {projector}",
        "swr_nsp",
        {"lr": lr, "statistics": "source"},
        {"prototypes": {"depth": depth}},
    )


_SOURCE = (Candidate("Source", "", "source"),)
_TENT = tuple(
    Candidate("TENT", f"{statistics} statistics", "tent", {"statistics": statistics})
    for statistics in ("source", "batch")
)
_OURS = tuple(_ours(lr, depth) for depth in (0, 2) for lr in (5e-5, 1e-6))
_CANDIDATES = (*_SOURCE, *_t3a(1, 5, 20, 50, 100, ALL), *_TENT, *_OURS)


@dataclass(frozen=True, kw_only=True)
class DomainSetup:
    """A set of domains, and all that is done with it.

    Attributes:
        name: As our tables call it; empty for the paper's own setting.
        column: The set of the paper that it is, or stands in for.
        data: A set of domains, or a folder of them.
        model: As `acclimate train --task domains` names it.
        weights: What it begins with, in a few words.
        pretrained: Whether to ask for the published weights.
        size: Height and width of the images; None for that of the set.
        images: Of each domain, before it is split; None for all.
        training: Fields of `DomainSettings`: steps and checks.
        defaults: Hyper-parameters of the first trial other than DomainBed's.
        tests: Domains that are deployed to; empty for all, one after another.
        algorithms: That models are trained with.
        batch_size: Of adaptation.
        tried: Images of each domain that candidates are tried on; None for all.
        tested: Images of each domain that is deployed to; None for all.
        prepare: Fields of `Preparing`: source images and options of the parts.
        candidates: What is chosen from, row by row.
    """

    name: str = ""
    column: str
    data: str
    model: str = "resnet50"
    weights: str = "ImageNet weights"
    pretrained: bool = True
    size: int | None = 224
    images: int | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    tests: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ALGORITHMS
    batch_size: int = 200
    tried: int | None = None
    tested: int | None = None
    prepare: Mapping[str, Any] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = _CANDIDATES

    def get_group(self, algorithm: str) -> str:
        """Return the heading of the rows of an algorithm."""
        setting = algorithm.upper()
        return f"{self.name}, {setting}" if self.name else setting


_FULL = tuple(
    DomainSetup(column=column, data=data)
    for column, data in (
        ("VLCS", "vlcs"),
        ("PACS", "pacs"),
        ("OfficeHome", "office_home"),
        ("TerraIncognita", "terra_incognita"),
    )
)

_SMALL = DomainSetup(
    name="PACS at 96 × 96, EfficientNet-Lite0",
    column="PACS",
    data="pacs",
    model="acclimate.paper.efficientnet:efficientnet_lite0",
    pretrained=False,  # the function gives them
    size=96,
    # A fiftieth of DomainBed's steps; at its rate that would not be enough to learn.
    training={"steps": 100, "check_every": 50},
    defaults={"lr": 3e-4, "batch_size": 16},
    tried=600,
    prepare={
        "images": 1024,
        "parts": {"penalty": {"n_samples": 256}, "prototypes": {"epochs": 3}},
    },
)

_SMOKE = DomainSetup(
    name="built-in domains",
    column="PACS",
    data="builtin-domains",
    model="acclimate.builtin.small:make_small",
    weights="the weights of the demo, on images of half the size",
    pretrained=False,
    size=None,
    images=60,
    training={"steps": 2, "check_every": 2},
    defaults={"lr": 5e-4, "batch_size": 4},
    tests=("sketch",),
    batch_size=10,
    tried=20,
    tested=40,
    prepare={"images": 64, "parts": {"penalty": {"n_samples": 8}, "prototypes": {"epochs": 1}}},
    # One row to choose in: each candidate more is a job for every look, and this is to be quick.
    candidates=(*_SOURCE, *_t3a(1, ALL), _TENT[0], _ours(5e-5, 0)),
)

_SETUPS = {"smoke": (_SMOKE,), "small": (_SMALL,), "full": _FULL}
N_TRIALS = {"smoke": 1, "small": 1, "full": 5}
SEEDS = {"smoke": (0,), "small": (0,), "full": (0, 1, 2)}


def find_domain_setups(scale: str, settings: Settings) -> tuple[DomainSetup, ...]:
    """Return the sets of a scale, changed as asked for.

    Raises:
        BadInput: Nothing is left.
    """
    made = _SETUPS[check_scale(scale)]
    left = []
    for setup in made:
        algorithms = tuple(
            name
            for name in setup.algorithms
            if settings.only.lower() in f"{setup.column}, {setup.get_group(name)}".lower()
        )
        if algorithms:
            changed = replace(
                setup,
                algorithms=algorithms,
                data=settings.data.get(setup.data, setup.data),
                tested=setup.tested if settings.images is None else settings.images,
            )
            left.append(changed)
    if not left:
        known = tuple(f"{own.column}, {own.get_group(a)}" for own in made for a in ALGORITHMS)
        raise BadInput(
            "unknown_name",
            f'No setting has "{settings.only}" in its name. Known: {"; ".join(known)}.',
            kind="setting",
            name=settings.only,
            known=known,
        )
    return tuple(left)
