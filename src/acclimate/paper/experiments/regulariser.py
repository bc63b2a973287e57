"""The penalties of SWR: their samples, transforms, shapes, and what they hold to."""

from __future__ import annotations

from typing import Any

from acclimate.paper.cells import Cell
from acclimate.paper.claims import below, lowest, near
from acclimate.paper.experiment import Experiment, Variant
from acclimate.paper.figures import draw_against_samples, draw_penalties
from acclimate.paper.scales import Setup
from acclimate.paper.settings import CIFAR10, CIFAR100

_SAMPLES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
#: How far errors may lie apart to be called stable; the paper gives no number.
STABLE = 0.5

_VIEWS = {
    "color": "color",
    "+ gray": "color+gray",
    "+ invert": "color+gray+invert",
    "+ blur": "swr",
    "+ flip": "color+gray+invert+blur+flip",
    "+ crop": "color+gray+invert+blur+flip+crop",
}
_ALL_VIEWS = {"parts": {"penalty": {"views": _VIEWS["+ crop"]}}}
_SHAPES: dict[str, dict[str, Any]] = {
    "a": {},
    "b": _ALL_VIEWS,
    "c": {"options": {"exponent": 1.0}},
    "d": {"options": {"exponent": 3.0}},
    "e": {"options": {"shape": "vertical_flip"}},
    "f": {"options": {"shape": "horizontal_flip"}},
    "g": {"options": {"shape": "constant"}},
    "h": {"options": {"shape": "linear"}},
    "i": {"options": {"shape": "square"}},
    "j": {"options": {"shape": "step"}},
}


def _cell(column: str) -> Cell:
    return "Ours", column


def _ours(column: str, job: dict[str, Any], **axes: Any) -> Variant:
    return Variant("Ours", {"method": "swr_nsp", **job}, column=column, axes=axes)


def _fig_s1(scale: str, setup: Setup) -> list[Variant]:
    # The built-in task is prepared from a handful of images: as many steps, but small ones.
    counts = range(2, 2 + len(_SAMPLES)) if scale == "smoke" else _SAMPLES
    return [
        _ours(str(name), {"parts": {"penalty": {"n_samples": n}}}, n_samples=n)
        for name, n in zip(_SAMPLES, counts, strict=True)
    ]


def _table_s2(scale: str, setup: Setup) -> list[Variant]:
    return [
        _ours(name, {"parts": {"penalty": {"views": views}}}, views=views)
        for name, views in _VIEWS.items()
    ]


def _fig_s2(scale: str, setup: Setup) -> list[Variant]:
    return [_ours(name, job, variant=name) for name, job in _SHAPES.items()]


def _table_s5(scale: str, setup: Setup) -> list[Variant]:
    return [
        _ours(name, {"options": {"anchor": anchor}}, anchor=anchor)
        for name, anchor in (("updated", "previous"), ("frozen", "source"))
    ]


EXPERIMENTS = (
    Experiment(
        id="fig-s1",
        shows="source samples for SWR, 8 to 4096",
        settings=CIFAR10,
        variants=_fig_s1,
        claims=(
            below(_cell("1024"), _cell("8"), "few source samples give a higher error"),
            near(
                [_cell(str(n)) for n in _SAMPLES if n >= 256],
                STABLE,
                f"from 256 samples on the error is stable, within {STABLE} points",
            ),
        ),
        notes=(
            f"Stable is taken to mean within {STABLE} points; the paper gives no number.",
            "In the smoke run the columns stand for 2 to 11 samples.",
        ),
        figure=draw_against_samples,
    ),
    Experiment(
        id="table-s2",
        shows="transforms of SWR, added one by one",
        settings=(*CIFAR100, *CIFAR10),
        variants=_table_s2,
        claims=(
            below(_cell("+ blur"), _cell("color"), "the default is better than colour alone"),
            below(_cell("+ blur"), _cell("+ crop"), "too many transforms raise the error"),
            lowest(
                _cell("+ blur"),
                [_cell(name) for name in _VIEWS if name != "+ blur"],
                "the default is best of all",
            ),
        ),
    ),
    Experiment(
        id="fig-s2",
        shows="penalties of SWR variants (a) to (j), by layer",
        settings=("CIFAR-100-C, ResNet-50", "CIFAR-100-C, WRN-40-2", "CIFAR-10-C, WRN-28-10"),
        variants=_fig_s2,
        claims=(
            *(
                below(
                    _cell("a"), _cell(name), f"the penalties as proposed are better than ({name})"
                )
                for name in _SHAPES
                if name != "a"
            ),
        ),
        figure=draw_penalties,
    ),
    Experiment(
        id="table-s5",
        shows="updating or freezing θ*",
        settings=(*CIFAR100, *CIFAR10),
        variants=_table_s5,
        claims=(
            below(_cell("updated"), _cell("frozen"), "updating θ* is better than freezing it"),
        ),
    ),
)
