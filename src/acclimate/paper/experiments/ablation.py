"""What the parts of the method do: figure 1, tables 2 and 5, loss weights, and FixMatch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acclimate.paper.cells import Cell
from acclimate.paper.claims import below, best_below, larger_gain, lowest
from acclimate.paper.experiment import Experiment, Variant
from acclimate.paper.figures import draw_against_lr
from acclimate.paper.scales import Setup
from acclimate.paper.settings import CIFAR10, CIFAR100

_ABLATION = ("CIFAR-100-C, ResNet-50",)

# Figure 1 --------------------------------------------------------------------------------------

OURS, SWR, ENTROPY = "Ours", "Main + SWR", "Entropy, all parameters"
TENT, SUPERVISED = "TENT", "Supervised"
_CURVES = {
    OURS: "swr_nsp",
    ENTROPY: "entropy",
    TENT: "tent",
    SUPERVISED: "supervised",
    SWR: "swr",
}
_RATES = ("1e-5", "3e-5", "1e-4", "3e-4", "1e-3", "3e-3", "1e-2")
# Of the small scale every second one, and the one below where the curves turn; in the smoke run
# those that claims are about.
_FEWER = {"small": ("1e-5", "1e-4", "3e-4", "1e-3", "1e-2"), "smoke": ("1e-4", "1e-3")}


def _fig_1(scale: str, setup: Setup) -> list[Variant]:
    return [
        Variant(
            row,
            {
                "method": method,
                "options": {"lr": float(rate)},
                "reveal_labels": method == "supervised",
            },
            column=rate,
            axes={"lr": float(rate)},
        )
        for row, method in _CURVES.items()
        for rate in _FEWER.get(scale, _RATES)
    ]


def _curve(row: str) -> list[Cell]:
    return [(row, rate) for rate in _RATES]


# Table 2 ---------------------------------------------------------------------------------------

_MAIN_HIGH, _MAIN_LOW = "Main, lr 1e-3", "Main, lr 1e-4"
_NSP, _SWR = "Main + NSP, lr 1e-4", "Main + SWR, lr 1e-3"
_ENTROPY_ONLY = "Main + SWR + NSP (entropy only), lr 1e-3"
_BOTH = "Main + SWR + NSP, lr 1e-3"
_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    _MAIN_HIGH: ("infomax", {"lr": 1e-3}),
    _MAIN_LOW: ("infomax", {"lr": 1e-4}),
    _NSP: ("nsp", {"lr": 1e-4}),
    _SWR: ("swr", {"lr": 1e-3}),
    _ENTROPY_ONLY: ("swr_nsp", {"lr": 1e-3, "consistency": 0.0}),
    _BOTH: ("swr_nsp", {"lr": 1e-3}),
}

# Table 5 ---------------------------------------------------------------------------------------

_QUICK: dict[str, dict[str, Any]] = {
    "Entropy minimization, lr 1e-4": {"method": "entropy", "options": {"lr": 1e-4}},
    "Supervised (oracle), lr 2e-4": {
        "method": "supervised",
        "options": {"lr": 2e-4},
        "reveal_labels": True,
    },
    "Ours, lr 1e-3": {"method": "swr_nsp", "options": {"lr": 1e-3}},
}
_BY_ENTROPY, _BY_LABELS, _BY_US = _QUICK

# Table s1 --------------------------------------------------------------------------------------

_WEIGHTS: dict[str, dict[str, float]] = {
    "default": {},
    "λ_m1 0.5, λ_a1 0.5": {"main_confidence": 0.5, "aux_confidence": 0.5},
    "λ_m1 0.8, λ_a1 0.2": {"main_confidence": 0.8, "aux_confidence": 0.2},
    "λ_m2 0.1, λ_a2 0.1": {"main_diversity": 0.1, "aux_diversity": 0.1},
    "λ_m2 0.5, λ_a2 0.5": {"main_diversity": 0.5, "aux_diversity": 0.5},
    "λ_s 0.01": {"consistency": 0.01},
    "λ_s 0.5": {"consistency": 0.5},
    "λ_r 10": {"strength": 10.0},
    "λ_r 100": {"strength": 100.0},
    "λ_r 500": {"strength": 500.0},
    "λ_r 1000": {"strength": 1000.0},
}
_BLOCKS = {
    "minimised entropy (λ_m1, λ_a1)": ("λ_m1",),
    "maximised mean entropy (λ_m2, λ_a2)": ("λ_m2",),
    "self-supervision (λ_s)": ("λ_s",),
    "regulariser (λ_r)": ("λ_r",),
}


def _cell(row: str) -> Cell:
    return row, "error"


def _table(rows: Mapping[str, tuple[str, Mapping[str, Any]]]) -> list[Variant]:
    return [
        Variant(row, {"method": method, "options": dict(options)}, axes=dict(options))
        for row, (method, options) in rows.items()
    ]


EXPERIMENTS = (
    Experiment(
        id="fig-1",
        shows="error against learning rate, 1e-5 to 1e-2",
        settings=_ABLATION,
        variants=_fig_1,
        claims=(
            *(
                best_below(
                    _curve(OURS),
                    _curve(other),
                    f"ours at its best learning rate has a lower error than {name} at its best",
                )
                for other, name in (
                    (ENTROPY, "entropy minimisation on all parameters"),
                    (TENT, "TENT"),
                    (SUPERVISED, "learning from labels"),
                )
            ),
            below(
                (SWR, "1e-3"),
                (ENTROPY, "1e-3"),
                "SWR lowers the error of adapting all parameters at 1e-3",
            ),
            larger_gain(
                ((ENTROPY, "1e-3"), (ENTROPY, "1e-4")),
                ((SWR, "1e-3"), (SWR, "1e-4")),
                "between 1e-4 and 1e-3 the error grows less with SWR than with entropy alone",
            ),
        ),
        figure=draw_against_lr,
    ),
    Experiment(
        id="table-2",
        shows="ablation: main loss at two rates, + NSP, + SWR, + both",
        settings=_ABLATION,
        variants=lambda scale, setup: _table(_PARTS),
        claims=(
            below(_cell(_MAIN_LOW), _cell(_MAIN_HIGH), "the main loss alone fails at a high rate"),
            below(_cell(_NSP), _cell(_MAIN_LOW), "NSP lowers the error of the main loss"),
            below(_cell(_SWR), _cell(_MAIN_LOW), "SWR lowers it, even at a high learning rate"),
            lowest(
                _cell(_BOTH), [_cell(_NSP), _cell(_SWR)], "both together are better than either"
            ),
            below(_cell(_BOTH), _cell(_ENTROPY_ONLY), "the self-supervised term lowers the error"),
            larger_gain(
                (_cell(_SWR), _cell(_ENTROPY_ONLY)),
                (_cell(_ENTROPY_ONLY), _cell(_BOTH)),
                "the entropy term of NSP matters more than the self-supervised one",
            ),
        ),
    ),
    Experiment(
        id="table-5",
        shows="quick adaptation: entropy, supervised, ours at passes 1, 2, 3",
        settings=_ABLATION,
        variants=lambda scale, setup: [
            Variant(row, {**job, "protocol": {"epochs": 3}}) for row, job in _QUICK.items()
        ],
        kind="passes",
        claims=(
            below((_BY_US, "1"), (_BY_LABELS, "1"), "online, ours is better than with labels"),
            below((_BY_US, "1"), (_BY_ENTROPY, "1"), "online, ours is better than entropy"),
            below((_BY_LABELS, "2"), (_BY_US, "2"), "in a second pass, labels win"),
            below((_BY_LABELS, "3"), (_BY_US, "3"), "in a third pass, labels win"),
        ),
    ),
    Experiment(
        id="table-s1",
        shows="weights of the loss terms",
        settings=_ABLATION,
        variants=lambda scale, setup: _table(
            {row: ("swr_nsp", options) for row, options in _WEIGHTS.items()}
        ),
        claims=tuple(
            lowest(
                _cell("default"),
                [_cell(row) for row in _WEIGHTS if row.startswith(names)],
                f"the default is best among the weights of the {term}",
            )
            for term, names in _BLOCKS.items()
        ),
    ),
    Experiment(
        id="text-fixmatch",
        shows="FixMatch in place of NSP",
        settings=(*CIFAR100, *CIFAR10),
        variants=lambda scale, setup: _table(
            {
                "SWR": ("swr", {}),
                "SWR + FixMatch": ("swr_fixmatch", {}),
                "SWR + NSP": ("swr_nsp", {}),
            }
        ),
        claims=(
            below(_cell("SWR + NSP"), _cell("SWR"), "NSP lowers the error of SWR alone"),
            larger_gain(
                (_cell("SWR"), _cell("SWR + NSP")),
                (_cell("SWR"), _cell("SWR + FixMatch")),
                "NSP lowers the error of SWR more than FixMatch does",
            ),
        ),
        notes=("The settings of FixMatch are not given: threshold and weight are FixMatch's own.",),
    ),
)
