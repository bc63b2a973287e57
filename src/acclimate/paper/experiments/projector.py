"""The projector and the prototypes behind it: tables 3, 4, s3 and s4."""

from __future__ import annotations

from typing import Any

from acclimate.paper.cells import Cell
from acclimate.paper.claims import below, lowest
from acclimate.paper.experiment import Experiment, Variant
from acclimate.paper.scales import Setup
from acclimate.paper.settings import CIFAR10, CIFAR100

_ABLATION = ("CIFAR-100-C, ResNet-50",)
_MANY, _FEW = "CIFAR-100-C", "CIFAR-10-C"

_DEPTHS = {"none": 0, "1": 1, "2": 2, "3": 3}
_WIDTHS = (128, 256, 512, 1024)
_VIEWS = {"no transform": "none", "color distortion": "color", "+ crop and blur": "projector"}
_SOURCES = {"z": 2, "h": 0}


def _cell(column: str) -> Cell:
    return "Ours", column


def _ours(column: str, job: dict[str, Any], **axes: Any) -> Variant:
    return Variant("Ours", {"method": "swr_nsp", **job}, column=column, axes=axes)


def _prototypes(**options: Any) -> dict[str, Any]:
    return {"parts": {"prototypes": options}} if options else {}


def at_depth(scale: str, setup: Setup, depth: int) -> dict[str, Any]:
    """Return a job with so many projector layers.

    Where that is what the method chooses itself, nothing is said, so that the job is the same as
    in other experiments and need not be run twice.
    """
    chosen = 2 if scale != "smoke" and setup.paper.startswith(_MANY) else 0
    return {} if depth == chosen else _prototypes(depth=depth)


def _with_projector(scale: str, setup: Setup, **options: Any) -> dict[str, Any]:
    depth = at_depth(scale, setup, 2).get("parts", {}).get("prototypes", {})
    return _prototypes(**depth, **options)


def _table_3(scale: str, setup: Setup) -> list[Variant]:
    return [
        _ours(name, at_depth(scale, setup, depth), depth=depth) for name, depth in _DEPTHS.items()
    ]


def _table_4a(scale: str, setup: Setup) -> list[Variant]:
    return [
        _ours(str(width), _with_projector(scale, setup, width=width), width=width)
        for width in _WIDTHS
    ]


def _table_4b(scale: str, setup: Setup) -> list[Variant]:
    return [
        _ours(name, _with_projector(scale, setup, views=views), views=views)
        for name, views in _VIEWS.items()
    ]


def _table_4c(scale: str, setup: Setup) -> list[Variant]:
    return [
        _ours(
            name,
            {**_with_projector(scale, setup), "options": {"train_projector": trained}},
            train_projector=trained,
        )
        for name, trained in (("frozen", False), ("fine-tuned", True))
    ]


def _table_s3(scale: str, setup: Setup) -> list[Variant]:
    return [
        _ours(name, {"options": {"predictor": predictor}}, predictor=predictor)
        for name, predictor in (("main", "head"), ("NSP", "prototypes"))
    ]


def _table_s4(scale: str, setup: Setup) -> list[Variant]:
    made = [
        _ours(name, at_depth(scale, setup, depth), depth=depth) for name, depth in _SOURCES.items()
    ]
    return [*made, _ours("θ_c", _prototypes(source="classifier"), source="classifier")]


EXPERIMENTS = (
    Experiment(
        id="table-3",
        shows="projector depth: none, 1, 2, 3",
        settings=(*CIFAR100, *CIFAR10),
        variants=_table_3,
        claims=(
            below(_cell("2"), _cell("none"), "with 100 classes the projector helps", where=_MANY),
            lowest(
                _cell("none"),
                [_cell("1"), _cell("2"), _cell("3")],
                "with 10 classes no projector is best",
                where=_FEW,
            ),
        ),
    ),
    Experiment(
        id="table-4a",
        shows="projector width",
        settings=_ABLATION,
        variants=_table_4a,
        claims=(
            lowest(
                _cell("512"),
                [_cell("128"), _cell("256"), _cell("1024")],
                "a width of 512 is best",
            ),
        ),
    ),
    Experiment(
        id="table-4b",
        shows="transforms for training the projector",
        settings=_ABLATION,
        variants=_table_4b,
        claims=(
            below(
                _cell("color distortion"),
                _cell("no transform"),
                "training the projector with changed colours lowers the error",
            ),
            below(
                _cell("+ crop and blur"),
                _cell("color distortion"),
                "crops and blur lower it further",
            ),
        ),
    ),
    Experiment(
        id="table-4c",
        shows="projector frozen or fine-tuned",
        settings=CIFAR100,
        variants=_table_4c,
        claims=(below(_cell("frozen"), _cell("fine-tuned"), "freezing the projector is better"),),
    ),
    Experiment(
        id="table-s3",
        shows="NSP as classifier",
        settings=(*CIFAR100, *CIFAR10),
        variants=_table_s3,
        claims=(
            below(
                _cell("main"),
                _cell("NSP"),
                "the main classifier is better than the nearest-prototype classifier",
            ),
        ),
    ),
    Experiment(
        id="table-s4",
        shows="prototype sources: z, h, θ_c",
        settings=(*CIFAR100, *CIFAR10),
        variants=_table_s4,
        claims=(
            below(_cell("z"), _cell("h"), "with 100 classes projections are better", where=_MANY),
            below(_cell("h"), _cell("z"), "with 10 classes features are better", where=_FEW),
            below(
                _cell("h"), _cell("θ_c"), "prototypes from samples are better than the classifier's"
            ),
        ),
    ),
)
