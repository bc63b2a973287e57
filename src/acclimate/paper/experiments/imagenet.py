"""Table s6: ImageNet-C at severity 5 and at all severities."""

from __future__ import annotations

from acclimate.paper.cells import MEAN
from acclimate.paper.claims import below
from acclimate.paper.experiment import Experiment, Variant
from acclimate.paper.experiments.comparison import ROWS, compare
from acclimate.paper.scales import Setup
from acclimate.paper.settings import IMAGENET

_LEVELS = (5, 4, 3, 2, 1)
_NOTES = (
    "λ_r 3000, batches of 64, learning rate 2.5e-4 with SGD, as TENT has it on ImageNet.",
    "At the small scale: EfficientNet-Lite0 on a sample of one image a class, of which one half "
    "gives the penalties and the other is adapted to; prototypes are the classifier's weights. "
    "The images are probably training images: only before and after may be compared, and with "
    "nobody else's numbers.",
)


def _table_s6a(scale: str, setup: Setup) -> list[Variant]:
    rows = ("Source", "TENT", "Ours")
    return compare(rows if setup.is_the_papers else (*rows, "BN-1"), scale, setup)


def _table_s6b(scale: str, setup: Setup) -> list[Variant]:
    return [
        Variant(
            row,
            {"method": ROWS[row], "severities": (level,)},
            column=str(level),
            axes={"severity": level},
        )
        for row in ("TENT", "Ours")
        for level in _LEVELS
    ]


EXPERIMENTS = (
    Experiment(
        id="table-s6a",
        shows="ImageNet-C, severity 5",
        settings=IMAGENET,
        variants=_table_s6a,
        kind="corruptions",
        claims=(
            below(("Ours", MEAN), ("TENT", MEAN), "ours has a lower error than TENT"),
            below(("TENT", MEAN), ("Source", MEAN), "TENT has a lower error than the source"),
        ),
        whole=True,
        notes=_NOTES,
    ),
    Experiment(
        id="table-s6b",
        shows="ImageNet-C at severities 1 to 5",
        settings=IMAGENET,
        variants=_table_s6b,
        kind="severities",
        claims=(
            below(
                ("Ours", MEAN),
                ("TENT", MEAN),
                "ours has a lower error than TENT over all severities",
            ),
            *(
                below(
                    ("Ours", str(level)),
                    ("TENT", str(level)),
                    f"ours has a lower error than TENT at severity {level}",
                )
                for level in _LEVELS
            ),
        ),
        notes=_NOTES,
    ),
)
