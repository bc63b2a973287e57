"""The experiments of the paper: what each varies, and what the paper claims of it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from acclimate.errors import check_name
from acclimate.methods.infomax import CITYSCAPES
from acclimate.paper.claims import read_claim
from acclimate.paper.domains import plan_domains
from acclimate.paper.experiment import Experiment, Variant
from acclimate.paper.figures import (
    AFTER,
    BEFORE,
    MOST_POINTS,
    N_STREETS,
    check_tsne,
    draw_against,
    draw_embedding,
    draw_penalties,
    draw_streets,
)
from acclimate.paper.published import Published, load_published
from acclimate.paper.settings import IMAGENET, PAPER, Setup

Variants = Callable[[str, Setup], list[Variant]]

_LEVELS = (5, 4, 3, 2, 1)


def _variants(jobs: Mapping[str, Mapping[str, Any]], column: str = "error") -> Variants:
    """Return a row for each job."""
    return lambda scale, setup: [Variant(row, job, column) for row, job in jobs.items()]


def _rows(rows: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Variants:
    """Return a row for each method with its options."""
    return lambda scale, setup: [
        Variant(row, {"method": method, "options": dict(options)}, axes=options)
        for row, (method, options) in rows.items()
    ]


def _rates(rows: Mapping[str, str], rates: Mapping[str, Sequence[str]] | Sequence[str]) -> Variants:
    """Return every method at every learning rate; `rates` may be by scale, else those of full."""

    def make(scale: str, setup: Setup) -> list[Variant]:
        own = rates.get(scale, rates["full"]) if isinstance(rates, Mapping) else rates
        return [
            Variant(row, {"method": name, "options": axes, **labels}, column=rate, axes=axes)
            for row, name in rows.items()
            for labels in [{"reveal_labels": True} if name == "supervised" else {}]
            for rate in own
            for axes in [{"lr": float(rate)}]
        ]

    return make


def _sweep(
    name: str,
    values: Mapping[str, Any],
    part: str = "",
    projector: bool = False,
    smoke: Sequence[Any] = (),
) -> Variants:
    """Return ours in columns that differ in one option.

    Args:
        name: Of the option.
        values: By column.
        part: Of the artifact whose option it is; else the method's.
        projector: Whether there is one, whatever the method chooses itself.
        smoke: Other values for that scale.
    """

    def make(scale: str, setup: Setup) -> list[Variant]:
        # What the method chooses itself is not stated, so that the job is the same as in other
        # experiments and need not be run twice.
        usual = 2 if scale != "smoke" and setup.paper.startswith("CIFAR-100-C") else 0
        own = smoke if smoke and scale == "smoke" else values.values()
        made = []
        for column, value in zip(values, own, strict=True):
            parts: dict[str, dict[str, Any]] = {"prototypes": {"depth": 2} if projector else {}}
            given = parts.setdefault(part, {}) if part else {}
            given[name] = value
            if parts["prototypes"].get("depth") == usual:
                del parts["prototypes"]["depth"]
            job = {"method": "swr_nsp", "parts": {key: own for key, own in parts.items() if own}}
            job |= {} if part else {"options": given}
            made.append(Variant("Ours", job, column, {name: value}))
        return made

    return make


def _severities(scale: str, setup: Setup) -> list[Variant]:
    return [
        Variant(row, {"method": METHODS[row], "severities": (n,)}, str(n), {"severity": n})
        for row in ("TENT", "Ours")
        for n in _LEVELS
    ]


# Table 1 and s6: methods side by side

_PAPERS = {
    "Source": "source",
    "TENT": "tent",
    "Core": "core",
    "SHOT": "shot",
    "TFA": "tfa",
    "TTT++": "ttt_pp",
    "Ours": "swr_nsp",
}
#: Methods by row: the paper's, then rows that its table lacks: plain batch statistics, a method of
#: its table 6, and later ones.
METHODS = {
    **_PAPERS,
    "BN-1": "norm",
    "α-BN": "alpha_bn",
    "BN-EMA": "bn_ema",
    "T3A": "t3a",
    "ETA": "eta",
    "EATA": "eata",
    "SAR": "sar",
    "DeYO": "deyo",
    "RPL": "rpl",
    "RDumb": "rdumb",
    "CoTTA": "cotta",
    "RoTTA": "rotta",
    "ROID": "roid",
    "LAME": "lame",
    "MEMO": "memo",
}
# The rows of a backbone in the paper.
_ALL = ("Source", "SHOT", "TFA", "TTT++", "TENT", "Ours")
_IN_PAPER: dict[str, tuple[str, ...]] = {
    "CIFAR-100-C, WRN-40-2": ("Source", "TENT", "Core", "Ours"),
    "CIFAR-100-C, ResNet-50": _ALL,
    "CIFAR-10-C, WRN-40-2": ("Source", "TENT", "Ours"),
    "CIFAR-10-C, WRN-28-10": ("Source", "TENT", "Core", "Ours"),
    "CIFAR-10-C, ResNet-50": _ALL,
    **dict.fromkeys(IMAGENET, ("Source", "TENT", "Ours")),
}
# The costliest methods see fewer images on two cores: those take 10 to 30 times as long as others.
_FEWER = {"small": {"cotta": 2000, "memo": 200}, "smoke": {"memo": 4}}
_SMOKE_OPTIONS = {"cotta": {"n_augmentations": 2}, "memo": {"n_copies": 2}, "tfa": {"window": 4}}


def _compare(others: Sequence[str], small: Sequence[str] | None = None) -> Variants:
    """Return the paper's rows, or of a stand-in these; where a method is slow, on fewer images."""

    def make(scale: str, setup: Setup) -> list[Variant]:
        labels = small if small is not None and scale == "small" else others
        labels = _IN_PAPER[setup.paper] if setup.is_the_papers else labels
        return [
            _method(own, METHODS[own], scale, setup)
            for own in labels
            if own != "TTT++" or setup.head is not None
        ]

    return make


def _method(label: str, method: str, scale: str, setup: Setup) -> Variant:
    job: dict[str, Any] = {"method": method}
    options: dict[str, Any] = dict(_SMOKE_OPTIONS.get(method, {})) if scale == "smoke" else {}
    mark = ""
    if method in ("tfa", "ttt_pp"):
        if setup.head is not None:
            job["contrast_head"] = setup.head
        else:
            options["head_scale"] = 0.0
            mark = "encoder only"
        if setup.job.get("preset") == "cifar100":
            job["parts"] = {"contrast": {"batch_size": 2048}}  # as many as moments are taken over
    if options:
        job["options"] = options
    fewer = _FEWER.get(scale, {}).get(method)
    if fewer is not None and fewer < (setup.job.get("images") or 10_000):
        job["images"] = fewer
        mark = f"first {fewer} images"
    return Variant(label, job, mark=mark)


# Figure 1, tables 2, 5 and s1: the parts of the method

_CURVES = {
    "Ours": "swr_nsp",
    "Entropy, all parameters": "entropy",
    "TENT": "tent",
    "Supervised": "supervised",
    "Main + SWR": "swr",
}
_RATES = {
    "full": ("1e-5", "3e-5", "1e-4", "3e-4", "1e-3", "3e-3", "1e-2"),
    # Every second one, and the one below where the curves turn; then those that claims are about.
    "small": ("1e-5", "1e-4", "3e-4", "1e-3", "1e-2"),
    "smoke": ("1e-4", "1e-3"),
}


_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Main, lr 1e-3": ("infomax", {"lr": 1e-3}),
    "Main, lr 1e-4": ("infomax", {"lr": 1e-4}),
    "Main + NSP, lr 1e-4": ("nsp", {"lr": 1e-4}),
    "Main + SWR, lr 1e-3": ("swr", {"lr": 1e-3}),
    "Main + SWR + NSP (entropy only), lr 1e-3": ("swr_nsp", {"lr": 1e-3, "consistency": 0.0}),
    "Main + SWR + NSP, lr 1e-3": ("swr_nsp", {"lr": 1e-3}),
}

_QUICK: dict[str, dict[str, Any]] = {
    "Entropy minimization, lr 1e-4": {"method": "entropy", "options": {"lr": 1e-4}},
    "Supervised (oracle), lr 2e-4": {
        "method": "supervised",
        "options": {"lr": 2e-4},
        "reveal_labels": True,
    },
    "Ours, lr 1e-3": {"method": "swr_nsp", "options": {"lr": 1e-3}},
}
_WEIGHTS: dict[str, dict[str, float]] = {
    "default": {},
    "λ_m1 0.5, λ_a1 0.5": {"main_confidence": 0.5, "aux_confidence": 0.5},
    "λ_m1 0.8, λ_a1 0.2": {"main_confidence": 0.8, "aux_confidence": 0.2},
    "λ_m2 0.1, λ_a2 0.1": {"main_diversity": 0.1, "aux_diversity": 0.1},
    "λ_m2 0.5, λ_a2 0.5": {"main_diversity": 0.5, "aux_diversity": 0.5},
    "λ_s 0.01": {"consistency": 0.01},
    "λ_s 0.5": {"consistency": 0.5},
    **{f"λ_r {n}": {"strength": float(n)} for n in (10, 100, 500, 1000)},
}
# Figures s1 and s2, table s2: penalties

_WIDTHS = {str(n): n for n in (128, 256, 512, 1024)}
_PROJECTOR_VIEWS = {
    "no transform": "none",
    "color distortion": "color",
    "+ crop and blur": "projector",
}
_SAMPLES = {str(2**n): 2**n for n in range(3, 13)}
_VIEWS = {
    "color": "color",
    "+ gray": "color+gray",
    "+ invert": "color+gray+invert",
    "+ blur": "swr",
    "+ flip": "color+gray+invert+blur+flip",
    "+ crop": "color+gray+invert+blur+flip+crop",
}
_SHAPES: dict[str, dict[str, Any]] = {
    "a": {},
    "b": {"parts": {"penalty": {"views": _VIEWS["+ crop"]}}},
    "c": {"options": {"exponent": 1.0}},
    "d": {"options": {"exponent": 3.0}},
    **{
        name: {"options": {"shape": shape}}
        for name, shape in (
            ("e", "vertical_flip"),
            ("f", "horizontal_flip"),
            ("g", "constant"),
            ("h", "linear"),
            ("i", "square"),
            ("j", "step"),
        )
    },
}

# Tables s7 and s8, figure s3: every pixel

_SEGMENTED: dict[str, dict[str, Any]] = {
    "Source": {"method": "source"},
    "BN-1": {"method": "norm"},
    # At the paper's rate and with its statistics, so that only what is minimised differs.
    "TENT": {"method": "tent", "options": CITYSCAPES},
    "Main": {"method": "infomax"},
    "Main + SWR": {"method": "swr"},
    "Main + SWR + NSP on pixels": {"method": "swr_nsp"},
}
_KEEP = {"keep": {"features": MOST_POINTS}}
_SNOW = {"corruptions": ("snow",), "keep": {"predictions": N_STREETS}}
#: How the rows and columns of each are run.
_VARIANTS: dict[str, Variants] = {
    "fig-1": _rates(_CURVES, _RATES),
    "table-1a": _compare((*_PAPERS, "BN-1"), small=("Source", "BN-1", "TENT", "Ours")),
    "table-1b": _compare(tuple(METHODS)),
    "table-1c": _severities,
    "table-2": _rows(_PARTS),
    "table-3": _sweep("depth", {"none": 0, "1": 1, "2": 2, "3": 3}, "prototypes"),
    "table-4a": _sweep("width", _WIDTHS, "prototypes", projector=True),
    "table-4b": _sweep("views", _PROJECTOR_VIEWS, "prototypes", projector=True),
    "table-4c": _sweep("train_projector", {"frozen": False, "fine-tuned": True}, projector=True),
    "table-5": _variants({row: {**job, "protocol": {"epochs": 3}} for row, job in _QUICK.items()}),
    "fig-6": _variants(
        {BEFORE: {"method": "source", **_KEEP}, AFTER: {"method": "swr_nsp", **_KEEP}}
    ),
    "table-s1": _rows({row: ("swr_nsp", options) for row, options in _WEIGHTS.items()}),
    # The built-in task is prepared from a handful of images: as many steps, but small ones.
    "fig-s1": _sweep("n_samples", _SAMPLES, "penalty", smoke=range(2, 12)),
    "table-s2": _sweep("views", _VIEWS, "penalty"),
    "fig-s2": lambda scale, setup: [
        Variant("Ours", {"method": "swr_nsp", **job}, name, {"variant": name})
        for name, job in _SHAPES.items()
    ],
    "table-s3": _sweep("predictor", {"main": "head", "NSP": "prototypes"}),
    "table-s4": lambda scale, setup: [
        *_sweep("depth", {"z": 2, "h": 0}, "prototypes")(scale, setup),
        *_sweep("source", {"θ_c": "classifier"}, "prototypes")(scale, setup),
    ],
    "table-s5": _sweep("anchor", {"updated": "previous", "frozen": "source"}),
    "table-s6a": _compare(("Source", "TENT", "Ours", "BN-1")),
    "table-s6b": _severities,
    "table-s7": lambda scale, setup: [
        Variant(row, job, "mIoU", mark="ours" if row.endswith("pixels") else "")
        for row, job in _SEGMENTED.items()
        if not (row.endswith("pixels") and setup.is_the_papers)
    ],
    "table-s8": _rates({"Main": "infomax", "Main + SWR": "swr"}, ("1e-4", "1e-5", "1e-6")),
    "fig-s3": _variants(
        {row: {**_SEGMENTED[row], **_SNOW} for row in ("Source", "Main + SWR")}, "mIoU"
    ),
    "text-fixmatch": _rows(
        {"SWR": ("swr", {}), "SWR + FixMatch": ("swr_fixmatch", {}), "SWR + NSP": ("swr_nsp", {})}
    ),
}
_MORE: dict[str, dict[str, Any]] = {
    "fig-1": {"figure": lambda context: draw_against(context, "learning rate")},
    "fig-6": {"figure": draw_embedding, "check": check_tsne},
    "fig-s1": {"figure": lambda context: draw_against(context, "source samples")},
    "fig-s2": {"figure": draw_penalties},
    "fig-s3": {"figure": draw_streets},
    "table-6": {"plan": plan_domains},
}


def _make(published: Published, described: Mapping[str, Any]) -> Experiment:
    """Return an experiment of `experiments.toml`."""
    about = dict(described[published.id])
    if "like" in about:
        base = described[about.pop("like")]
        about = {**base, **about, "notes": (*base["notes"], *about.get("notes", ()))}
    about["claims"] = tuple(read_claim(own, published.columns) for own in about["claims"])
    about["settings"] = tuple(
        setting
        for name in about.get("settings", ())
        for setting in ([name] if name in PAPER else [own for own in PAPER if own.startswith(name)])
    )
    about["notes"] = tuple(about.get("notes", ()))
    about |= _MORE.get(published.id, {})
    if published.id in _VARIANTS:
        about["variants"] = _VARIANTS[published.id]
    return Experiment(id=published.id, **about)


_described = tomllib.loads(
    (files("acclimate.paper") / "experiments.toml").read_text(encoding="utf-8")
)
#: The experiments in the order of the paper.
EXPERIMENTS = {name: _make(own, _described) for name, own in load_published().items()}

#: Tables of several parts.
WHOLES: dict[str, tuple[str, ...]] = {
    "table-1": ("table-1a", "table-1b", "table-1c"),
    "table-4": ("table-4a", "table-4b", "table-4c"),
    "table-s6": ("table-s6a", "table-s6b"),
}

#: The supplement goes on counting: its tables are 7 to 14, its figures 7 to 9.
ALIASES: dict[str, str] = {
    **{f"table-{6 + n}": f"table-s{n}" for n in range(1, 9)},
    **{f"table-12{part}": f"table-s6{part}" for part in "ab"},
    **{f"fig-{6 + n}": f"fig-s{n}" for n in range(1, 4)},
}


def find_experiments(name: str) -> tuple[Experiment, ...]:
    """Return the experiment of a name, or the parts of a table that has several.

    Args:
        name: An id such as `table-1b`; the number in the supplement, as `table-7` for `table-s1`;
            or a whole table, as `table-4`.

    Raises:
        BadInput: There is none, with the nearest name.

    >>> [experiment.id for experiment in find_experiments("table-12")]
    ['table-s6a', 'table-s6b']
    """
    asked = name.strip().lower().replace("_", "-").replace("figure", "fig")
    asked = ALIASES.get(asked, asked)
    if asked in WHOLES:
        return tuple(EXPERIMENTS[part] for part in WHOLES[asked])
    if asked not in EXPERIMENTS:
        check_name(name, (*EXPERIMENTS, *WHOLES, *ALIASES), "experiment")
    return (EXPERIMENTS[asked],)


def list_aliases(name: str) -> tuple[str, ...]:
    """Return the other names of an experiment."""
    return tuple(other for other, own in ALIASES.items() if own == name)
