"""Table 1: the paper's method beside those of others, on CIFAR-10-C and CIFAR-100-C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acclimate.paper.cells import MEAN
from acclimate.paper.claims import Claim, below
from acclimate.paper.experiment import Experiment, Variant
from acclimate.paper.scales import Setup
from acclimate.paper.settings import CIFAR10, CIFAR100

#: The paper's rows.
ROWS = {
    "Source": "source",
    "TENT": "tent",
    "Core": "core",
    "SHOT": "shot",
    "TFA": "tfa",
    "TTT++": "ttt_pp",
    "Ours": "swr_nsp",
}
#: Rows that its table lacks: plain batch statistics, a method of its table 6, and later ones.
OTHERS = {
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

# Which rows a backbone has in the paper.
_IN_PAPER = {
    "CIFAR-100-C, WRN-40-2": ("Source", "TENT", "Core", "Ours"),
    "CIFAR-100-C, ResNet-50": ("Source", "SHOT", "TFA", "TTT++", "TENT", "Ours"),
    "CIFAR-10-C, WRN-40-2": ("Source", "TENT", "Ours"),
    "CIFAR-10-C, WRN-28-10": ("Source", "TENT", "Core", "Ours"),
    "CIFAR-10-C, ResNet-50": ("Source", "SHOT", "TFA", "TTT++", "TENT", "Ours"),
}
# The costliest methods see fewer images on two cores: those take 10 to 30 times as long as others.
_FEWER = {"cotta": 2000, "memo": 200}
_SMOKE_OPTIONS: dict[str, dict[str, Any]] = {
    "cotta": {"n_augmentations": 2},
    "memo": {"n_copies": 2},
    "tfa": {"window": 4},
}
_SMOKE_IMAGES = {"memo": 4}

_NOTES = (
    "TTT++ needs the projection head that its model was trained with, and is left out where none "
    "is given (--head MODEL=FILE). TFA then aligns the encoder's features alone.",
    "Core and SHOT are reconstructions: no code of the first is public, and of the second none of "
    "the form that learns online.",
)


def compare(labels: Sequence[str], scale: str, setup: Setup) -> list[Variant]:
    """Return a row for each label that can be had; where a method is slow, on fewer images."""
    methods = {**ROWS, **OTHERS}
    had = [label for label in labels if setup.head is not None or label != "TTT++"]
    return [_row(label, methods[label], scale, setup) for label in had]


def _row(label: str, method: str, scale: str, setup: Setup) -> Variant:
    job: dict[str, Any] = {"method": method}
    options = dict(_SMOKE_OPTIONS.get(method, {})) if scale == "smoke" else {}
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
    fewer = {"smoke": _SMOKE_IMAGES, "small": _FEWER}.get(scale, {}).get(method)
    if fewer is not None and fewer < (setup.job.get("images") or 10_000):
        job["images"] = fewer
        mark = f"first {fewer} images"
    return Variant(label, job, mark=mark)


def _table_1a(scale: str, setup: Setup) -> list[Variant]:
    few = ("Source", "BN-1", "TENT", "Ours") if scale == "small" else (*ROWS, "BN-1")
    return compare(_IN_PAPER[setup.paper] if setup.is_the_papers else few, scale, setup)


def _table_1b(scale: str, setup: Setup) -> list[Variant]:
    labels = _IN_PAPER[setup.paper] if setup.is_the_papers else (*ROWS, *OTHERS)
    return compare(labels, scale, setup)


def _table_1c(scale: str, setup: Setup) -> list[Variant]:
    return [
        Variant(
            row,
            {"method": ROWS[row], "severities": (severity,)},
            column=str(severity),
            axes={"severity": severity},
        )
        for row in ("TENT", "Ours")
        for severity in (5, 4, 3, 2, 1)
    ]


_CLAIMS: tuple[Claim, ...] = (
    *(
        below(("Ours", MEAN), (rival, MEAN), f"ours has a lower error than {rival}")
        for rival in ("TENT", "Core", "SHOT", "TFA", "TTT++")
    ),
    below(("TENT", MEAN), ("Source", MEAN), "TENT has a lower error than the source"),
)

EXPERIMENTS = (
    Experiment(
        id="table-1a",
        shows="CIFAR-100-C, severity 5: all methods and backbones",
        settings=CIFAR100,
        variants=_table_1a,
        kind="corruptions",
        claims=_CLAIMS,
        whole=True,
        notes=_NOTES,
    ),
    Experiment(
        id="table-1b",
        shows="CIFAR-10-C, severity 5: all methods and backbones",
        settings=CIFAR10,
        variants=_table_1b,
        kind="corruptions",
        claims=_CLAIMS,
        whole=True,
        notes=(
            *_NOTES,
            "NOTE is left out: it needs a model trained with instance-aware BatchNorm.",
        ),
    ),
    Experiment(
        id="table-1c",
        shows="CIFAR-100-C at severities 1 to 5: TENT and ours",
        settings=tuple(reversed(CIFAR100)),
        variants=_table_1c,
        kind="severities",
        claims=tuple(
            below(
                ("Ours", level),
                ("TENT", level),
                f"ours has a lower error than TENT at severity {level}",
            )
            for level in ("5", "4", "3", "2", "1")
        ),
    ),
)
