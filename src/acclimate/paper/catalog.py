"""All experiments by id, with the other names that they go by."""

from __future__ import annotations

from acclimate.errors import BadInput, did_you_mean
from acclimate.paper.experiment import Experiment
from acclimate.paper.experiments import (
    ablation,
    comparison,
    domains,
    features,
    imagenet,
    projector,
    regulariser,
    segmentation,
)
from acclimate.paper.published import load_published

_MODULES = (
    *(ablation, comparison, domains, features, imagenet),
    *(projector, regulariser, segmentation),
)
_MADE = {own.id: own for module in _MODULES for own in module.EXPERIMENTS}

#: The experiments in the order of the paper.
EXPERIMENTS: dict[str, Experiment] = {name: _MADE[name] for name in load_published()}

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
        known = (*EXPERIMENTS, *WHOLES, *ALIASES)
        raise BadInput(
            "unknown_name",
            f'Unknown experiment "{name}". {did_you_mean(asked, known)}',
            kind="experiment",
            name=name,
            known=known,
        )
    return (EXPERIMENTS[asked],)


def list_aliases(name: str) -> tuple[str, ...]:
    """Return the other names of an experiment."""
    return tuple(other for other, own in ALIASES.items() if own == name)
