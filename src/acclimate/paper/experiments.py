"""The experiments of the paper, which `experiments.toml` describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from acclimate.errors import check_name
from acclimate.paper.claims import read_claim
from acclimate.paper.domains import plan_domains
from acclimate.paper.experiment import Experiment, Variant
from acclimate.paper.figures import (
    check_tsne,
    draw_against,
    draw_embedding,
    draw_penalties,
    draw_streets,
)
from acclimate.paper.published import Published, load_published, read_toml
from acclimate.paper.settings import DECLARED, PAPER, Setup

Variants = Callable[[str, Setup], list[Variant]]

#: Methods by row.
METHODS: dict[str, str] = DECLARED["methods"]


def _rows(about: Mapping[str, Any], column: str) -> Variants:
    def make(scale: str, setup: Setup) -> list[Variant]:
        return [
            Variant(row, job, column, job.get("options", {}) if about.get("plot") else {})
            for row, job in about["rows"].items()
        ]

    return make


def _columns(about: Mapping[str, Any], column: str) -> Variants:
    return lambda scale, setup: [
        Variant("Ours", {"method": "swr_nsp", **job}, name, {"variant": name})
        for name, job in about["columns"].items()
    ]


def _rates(about: Mapping[str, Any], column: str) -> Variants:
    def make(scale: str, setup: Setup) -> list[Variant]:
        made = []
        for row, name in about["methods"].items():
            for rate in about["rates"].get(scale, about["rates"]["full"]):
                axes = {"lr": float(rate)}
                labels = {"reveal_labels": True} if name == "supervised" else {}
                made.append(Variant(row, {"method": name, "options": axes, **labels}, rate, axes))
        return made

    return make


def _levels(about: Mapping[str, Any], column: str) -> Variants:
    return lambda scale, setup: [
        Variant(row, {"method": METHODS[row], "severities": (n,)}, str(n), {"severity": n})
        for row in ("TENT", "Ours")
        for n in about["levels"]
    ]


def _sweep(about: Mapping[str, Any], column: str) -> Variants:
    part, _, name = about["sweep"].rpartition(".")

    def make(scale: str, setup: Setup) -> list[Variant]:
        # What the method chooses itself is not stated, so that the job is the same as in other
        # experiments and need not be run twice.
        usual = 2 if scale != "smoke" and setup.paper.startswith("CIFAR-100-C") else 0
        values = about["smoke"] if "smoke" in about and scale == "smoke" else None
        made = []
        for column, value in zip(about["values"], values or about["values"].values(), strict=True):
            given = {name: value}
            parts: dict[str, Any] = {"prototypes": {"depth": 2} if "projector" in about else {}}
            if part:
                parts[part] = {**parts.get(part, {}), **given}
            if parts["prototypes"].get("depth") == usual:
                del parts["prototypes"]["depth"]
            job = {"method": "swr_nsp", "parts": {key: own for key, own in parts.items() if own}}
            job |= {} if part else {"options": given}
            made.append(Variant("Ours", job, column, given))
        return made + (_sweep(about["also"], "")(scale, setup) if "also" in about else [])

    return make


def _compare(about: Mapping[str, Any], column: str) -> Variants:
    def make(scale: str, setup: Setup) -> list[Variant]:
        labels = about["small"] if scale == "small" and "small" in about else about["compare"]
        if setup.is_the_papers:
            labels = about["published"].rows[setup.paper]
        return [
            _method(own, METHODS[own], scale, setup)
            for own in labels
            if own != "TTT++" or setup.head is not None
        ]

    return make


def _method(label: str, method: str, scale: str, setup: Setup) -> Variant:
    job: dict[str, Any] = {"method": method}
    options: dict[str, Any] = (
        dict(DECLARED["smoke_options"].get(method, {})) if scale == "smoke" else {}
    )
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
    fewer = DECLARED["fewer_images"].get(scale, {}).get(method)
    if fewer is not None and fewer < (setup.job.get("images") or 10_000):
        job["images"] = fewer
        mark = f"first {fewer} images"
    return Variant(label, job, mark=mark)


def _only_ours(variants: Variants, row: str) -> Variants:
    """Return them without a row that the paper does not have, where the setting is the paper's."""
    return lambda scale, setup: [
        replace(own, mark="ours") if own.row == row else own
        for own in variants(scale, setup)
        if own.row != row or not setup.is_the_papers
    ]


_KINDS = {
    "rows": _rows,
    "columns": _columns,
    "rates": _rates,
    "levels": _levels,
    "sweep": _sweep,
    "compare": _compare,
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
    own = described[published.id]
    base = described[own["like"]] if "like" in own else {}
    about = {**base, **own}
    column = published.columns[0] if about.get("measured") == "miou" else "error"
    kinds = [name for name in _KINDS if name in own]
    made = [_KINDS[name]({**own, "published": published}, column) for name in kinds]
    if published.id == "table-s7":
        made = [_only_ours(made[0], "Main + SWR + NSP on pixels")]
    settings = [
        name
        for start in about.get("settings", ())
        for name in ([start] if start in PAPER else PAPER)
        if name.startswith(start)
    ]
    kept = {name: about[name] for name in ("shows", "kind", "measured", "whole") if name in about}
    kept |= {"variants": made[0]} if made else {}
    return Experiment(
        id=published.id,
        settings=tuple(settings),
        claims=tuple(read_claim(claim, published.columns) for claim in about["claims"]),
        notes=(*base.get("notes", ()), *own.get("notes", ())),
        **kept,
        **_MORE.get(published.id, {}),
    )


_described = read_toml("experiments.toml")
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
