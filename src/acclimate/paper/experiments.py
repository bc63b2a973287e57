"""The experiments of the paper, which `experiments.toml` describes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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

#: Methods by row.
METHODS: dict[str, str] = DECLARED["methods"]

About = Mapping[str, Any]


def _rows(about: About, scale: str, setup: Setup) -> list[Variant]:
    ours = about.get("ours", ())
    return [
        Variant(
            *(row, job, about["column"], job.get("options", {}) if about.get("plot") else {}),
            mark="ours" if row in ours else "",
        )
        for row, job in about["rows"].items()
        if row not in ours or not setup.is_the_papers
    ]


def _columns(about: About, scale: str, setup: Setup) -> list[Variant]:
    return [
        Variant("Ours", {"method": "swr_nsp", **job}, name, {"variant": name})
        for name, job in about["columns"].items()
    ]


def _sweep(about: About, scale: str, setup: Setup) -> list[Variant]:
    part, _, name = about["sweep"].rpartition(".")
    values = dict(about["values"])
    if scale == "smoke" and "smoke" in about:
        values = dict(zip(values, about["smoke"], strict=True))
    # What the method chooses itself is not stated, so that the job is the same as in other
    # experiments and need not be run twice.
    usual = 2 if scale != "smoke" and setup.paper.startswith("CIFAR-100-C") else 0
    made = []
    for row, job in about.get("methods", {"Ours": {"method": "swr_nsp"}}).items():
        for column in about.get("at", {}).get(scale, values):
            given = {name: values[column]}
            parts: dict[str, Any] = {"prototypes": {"depth": 2} if "projector" in about else {}}
            if part:
                parts[part] = {**parts.get(part, {}), **given}
            if parts["prototypes"].get("depth") == usual:
                del parts["prototypes"]["depth"]
            own = {**job, "parts": {key: options for key, options in parts.items() if options}}
            if name == "severity":
                own["severities"] = (values[column],)
            elif not part:
                own["options"] = given
            made.append(Variant(row, own, column, given))
    return made + (_sweep(about["also"], scale, setup) if "also" in about else [])


def _compare(about: About, scale: str, setup: Setup) -> list[Variant]:
    labels = about["small"] if scale == "small" and "small" in about else about["compare"]
    if setup.is_the_papers:
        labels = about["published"].rows[setup.paper]
    return [
        _method(own, METHODS[own], scale, setup)
        for own in labels
        if own != "TTT++" or setup.head is not None
    ]


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


_KINDS = {"rows": _rows, "columns": _columns, "sweep": _sweep, "compare": _compare}
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
    given = {**own, "published": published, "column": column}
    made = [partial(make, given) for name, make in _KINDS.items() if name in own]
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
    """Return the experiment of an id, such as `table-1b`, or the parts of a table that has several.

    The numbers in the supplement are other names: `table-7` is `table-s1`.

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
