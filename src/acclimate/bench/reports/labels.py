"""Which jobs stand in one row: those that share a label and differ in the seed only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from acclimate.bench.job import JobSpec
from acclimate.bench.outcome import Entry, Outcome
from acclimate.errors import BadInput


def label_outcomes(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Return the outcomes of each row, seeds ascending; labels are told apart if need be."""
    variants: dict[str, dict[str, dict[int, Outcome]]] = {}
    for outcome in outcomes:
        entry = outcome.entry
        kinds = variants.setdefault(entry.label, {})
        # A job that two rows of a suite share may come twice: the same numbers count once.
        kinds.setdefault(identify(entry, with_seed=False), {}).setdefault(entry.spec.seed, outcome)
    found: dict[str, list[Outcome]] = {}
    for label, kinds in variants.items():
        for own in kinds.values():
            first = next(iter(own.values())).entry
            others = [next(iter(o.values())).entry for o in kinds.values() if o is not own]
            name = ", ".join(filter(None, [label, _tell(first, others)]))
            if name in found:
                raise BadInput(
                    "duplicate",
                    f'Two different jobs in the group "{first.group}" have the name "{name}", so '
                    "their results would be mixed. Give them different labels.",
                    name=name,
                )
            found[name] = [own[seed] for seed in sorted(own)]
    return found


def _tell(entry: Entry, others: Iterable[Entry]) -> str:
    """Return what sets a job apart from others of its label: the axes that differ."""
    rivals = list(others)
    apart = {
        name: value
        for name, value in entry.axes.items()
        if name != "seed" and any(rival.axes.get(name) != value for rival in rivals)
    }
    return ", ".join(f"{name} {value}" for name, value in apart.items())


def find_unfinished(outcomes: Sequence[Outcome], entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the jobs that have no outcome."""
    done = {_name(outcome.entry) for outcome in outcomes}
    return tuple(entry for entry in entries if _name(entry) not in done)


def identify(entry: Entry, with_seed: bool = True) -> str:
    """Return a text that two jobs share if they are the same, or differ in the seed only."""
    spec = entry.spec.to_dict()
    if not with_seed:
        spec.pop("seed", None)
    return json.dumps(spec, sort_keys=True)


def name_kind(spec: JobSpec) -> str:
    """Return the method with the terms that are added to it.

    >>> name_kind(JobSpec(method="tent", terms={"swr": {}}))
    'tent + SWR'
    """
    return " + ".join([spec.method, *map(str.upper, spec.terms)])


def describe_settings(spec: JobSpec) -> str:
    """Return a text that two jobs of a kind share if they have the same hyper-parameters."""
    terms = {name: dict(given) for name, given in spec.terms.items()}
    plain = [spec.get_config().to_dict(), terms]
    return json.dumps(plain, sort_keys=True, default=str)


def _name(entry: Entry) -> tuple[str, str, str]:
    return entry.group, entry.label, identify(entry)
