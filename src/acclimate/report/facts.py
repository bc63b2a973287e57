"""Facts about the jobs behind a report: protocol, settings, origin, and what the seed changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from acclimate.bench.job import JobSpec
from acclimate.bench.provenance import describe_order, describe_resets
from acclimate.bench.suite import Outcome
from acclimate.corruptions import BENCHMARK
from acclimate.functional.pixels import IGNORE_LABEL
from acclimate.methods import get_method

#: The method that never adapts, with which all others are compared.
BASELINE = "source"

#: Characters of a checksum that are shown.
SHORT = 10

#: Facts by name; those of the protocol decide which rows may be compared.
Facts = dict[str, str]

# Facts of the origin that are part of the protocol or the settings, or too long for a line.
_OMITTED = (
    *("spec", "protocol_line", "order", "reset", "predicts", "n_images", "data", "settings"),
    *("method", "artifact", "seconds", "n_batches", "model: name", "model: weights sha256"),
)
# Streams that show every image once, in whatever order.
_WHOLE = (
    *("reset_each", "continual", "gradual", "mixed", "label_sorted"),
    *("single_images", "foreign"),
)


def is_source(spec: JobSpec) -> bool:
    """Whether a job runs the source model as it is."""
    return spec.method == BASELINE


def ignores_seed(outcomes: Sequence[Outcome]) -> bool:
    """Whether the seed changes no error of a method, given by an outcome for each seed.

    Several seeds show it: they agree exactly. With one seed it is known for the source model only,
    which neither learns nor draws, so that the order of the images does not matter.
    """
    first = outcomes[0]
    if len(outcomes) == 1:
        protocol = first.entry.spec.get_protocol()
        return is_source(first.entry.spec) and protocol.stream in _WHOLE and not protocol.window
    return all(
        domain_counts(other) == domain_counts(first) and other.miou == first.miou
        for other in outcomes[1:]
    )


def domain_errors(outcome: Outcome) -> dict[str, float]:
    """Return the error of each domain in percent; probes, which are not learned from, left out."""
    return {name: 100 * (wrong / n) for name, (n, wrong) in domain_counts(outcome).items() if n}


def domain_counts(outcome: Outcome) -> dict[str, tuple[int, int]]:
    """Return how many samples of each domain were predicted, and how many of them wrongly."""
    found: dict[str, tuple[int, int]] = {}
    for record in outcome.result.counted:
        for name, (n, n_errors) in record.by_domain.items():
            n_before, errors_before = found.get(name, (0, 0))
            found[name] = (n_before + n, errors_before + n_errors)
    return found


def split_domain(name: str, spec: JobSpec) -> tuple[str, int | None]:
    """Return the corruption and the severity that a domain's name tells; no severity if none.

    >>> split_domain("fog_3", JobSpec(severities=(3, 5))), split_domain("fog", JobSpec())
    (('fog', 3), ('fog', None))
    """
    corruption, _, last = name.rpartition("_")
    if len(spec.severities) > 1 and last.isdecimal() and int(last) in spec.severities:
        return corruption, int(last)
    return name, None


def protocol_facts(outcome: Outcome) -> Facts:
    """Return all that must be equal for errors to be compared, as short texts by name.

    What is "none" is as usual.
    """
    spec, described = outcome.entry.spec, outcome.provenance["data"]
    protocol, choice = spec.get_protocol(), spec.domains
    normal: Any = spec.get_info().normalization
    counts = {name: n for name, (n, _) in domain_counts(outcome).items()}
    sizes = list(counts.values())
    if outcome.miou is not None:  # every pixel is a sample; clean images are not described
        sizes = [int(described[name]["n"]) for name in counts if name in described]
    options = ", ".join(f"{name} {value:g}" for name, value in protocol.own_options.items())
    if isinstance(spec.normalization, str):
        normal = spec.normalization
    elif normal is not None:
        normal = _to_json(normal.to_dict())
    usual_label = spec.ignore_label == IGNORE_LABEL
    logits = [str(own) for own in (spec.head, spec.logits_at) if own is not None]
    facts: dict[str, Any] = {
        "model": spec.model_name,
        "weights": str(outcome.provenance["model"]["weights_sha256"])[:SHORT],
        "data": Path(spec.data).name,
        "data checksum": data_hash(outcome),
        "domains": _list_domains(counts, spec),
        "severity": ", ".join(map(str, sorted(spec.severities))) if has_severity(outcome) else None,
        "images": _list_sizes(sizes),
        "stream": f"{protocol.stream} ({options})" if options else protocol.stream,
        "reset": describe_resets(protocol),
        "order": describe_order(protocol),
        "batch size": protocol.batch_size,
        "passes": protocol.epochs,
        "window": protocol.window or None,
        "clean probe": "after each domain" if protocol.clean_probe else None,
        "predictions": f"from {get_method(spec.method).card.predicts} the update",
        "size": spec.size,
        "normalization": normal,
        "ignored label": None if usual_label else spec.ignore_label,
        "logits": " at ".join(logits) or None,
        "part": None if choice is None or choice.part == "all" else choice.part,
        "size of domains": None if choice is None else choice.size,
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def has_severity(outcome: Outcome) -> bool:
    """Return whether the data is corrupted so much and no more, rather than as it was found."""
    described = outcome.provenance["data"].values()
    return any("severity" in about for about in described)


def merge_facts(several: Sequence[Facts]) -> Facts:
    """Return the facts of jobs that share a row; where they differ, the text says all values."""
    names = dict.fromkeys(name for facts in several for name in facts)
    merged = {}
    for name in names:
        values = list(dict.fromkeys(facts.get(name, "none") for facts in several))
        merged[name] = values[0] if len(values) == 1 else f"{' / '.join(values)} (by seed)"
    return merged


def find_differences(found: Mapping[str, str], expected: Mapping[str, str]) -> tuple[str, ...]:
    """Return a phrase for each fact that differs.

    >>> find_differences({"batch size": "64", "order": "file"}, {"batch size": "200"})
    ('batch size 64 instead of 200', 'order file instead of none')
    """
    names = dict.fromkeys([*expected, *found])
    return tuple(
        f"{name} {found.get(name, 'none')} instead of {expected.get(name, 'none')}"
        for name in names
        if found.get(name) != expected.get(name)
    )


def describe_protocol(facts: Mapping[str, str]) -> str:
    """Return the protocol as one line, in the words of the facts."""
    severity = " at severity {severity}" if "severity" in facts else ""
    line = (
        "model {model} (weights {weights}); data {data} (checksum {data checksum})"
        f"{severity}; {{domains}}, {{images}} images each; stream {{stream}}, reset {{reset}}; "
        "order {order}; batches of {batch size}; passes {passes}"
    )
    more = [f"{name} {text}" for name, text in facts.items() if f"{{{name}}}" not in line]
    return "; ".join([line.format_map(facts), *more])


def settings_facts(outcome: Outcome) -> Facts:
    """Return the hyper-parameters of a job and how its artifact is prepared, by name."""
    spec = outcome.entry.spec
    facts = {f"{spec.method}.{name}": str(v) for name, v in spec.get_config().to_dict().items()}
    facts["method"] = spec.method
    facts["speed"] = spec.speed
    if spec.guard:
        facts["guard"] = "on" if spec.guard is True else str(spec.guard)
    terms = {name: dict(given) for name, given in spec.terms.items()}
    facts["terms"] = _to_json(terms) if terms else "none"
    if spec.get_needs():
        how = spec.to_dict().get("prepare")
        facts["artifact"] = f"prepared with {_to_json(how) if how else 'defaults'}"
        made = outcome.provenance.get("artifact") or {"sha256": "unknown"}
        facts["artifact checksum"] = str(made["sha256"])[:SHORT]
    return facts


def list_own_settings(spec: JobSpec) -> dict[str, Any]:
    """Return what a job sets that is neither published nor a default, by name.

    >>> terms = {"swr": {"strength": 3}}
    >>> list_own_settings(JobSpec(method="tent", options={"lr": 0.5}, terms=terms))
    {'lr': 0.5, 'SWR strength': 3}
    """
    usual = replace(spec, options={}).get_config().to_dict()
    config = spec.get_config().to_dict()
    found = {name: config[name] for name in spec.options if config[name] != usual[name]}
    for term, given in spec.terms.items():
        found |= {f"{term.upper()} {name}": value for name, value in given.items()}
    if spec.get_needs():
        parts = spec.prepare.parts.items()
        found |= {f"{part} {name}": value for part, own in parts for name, value in own.items()}
    if spec.speed != "exact":
        found["speed"] = spec.speed
    return found


def origin_facts(outcomes: Iterable[Outcome]) -> Facts:
    """Return where the numbers come from: versions, machine, command and the like, by name.

    Of what is not the same for all jobs, the first few values are listed.
    """
    found: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        for name, text in flatten(outcome.provenance):
            found.setdefault(name, {})[text] = None
    dates = sorted(found.pop("date", {}))
    facts = {name: _list_few(list(texts)) for name, texts in found.items()}
    return facts | ({"date": " to ".join(dict.fromkeys([dates[0], dates[-1]]))} if dates else {})


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and texts of plain values in nested mappings, without those shown elsewhere."""
    for key, value in values.items():
        name = f"{prefix}{str(key).replace('_', ' ')}"
        if (key in _OMITTED and not prefix) or name in _OMITTED:
            continue
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}: ")
        elif isinstance(value, list | tuple):
            if value:
                yield name, ", ".join(map(str, value))
        elif value is not None:
            text, is_sum = str(value), "sha256" in name
            yield name, f"{text[:SHORT]}…" if is_sum and len(text) > SHORT else text


def data_checksums(outcome: Outcome) -> Facts:
    """Return the checksum of each domain's images, as far as it is known."""
    described = outcome.provenance["data"].items()
    return {name: str(about["sha256"]) for name, about in described if about.get("sha256")}


def data_hash(outcome: Outcome) -> str:
    """Return one short checksum of all the domains' checksums; "unknown" if there are none."""
    checksums = data_checksums(outcome)
    digest = hashlib.sha256(_to_json(checksums).encode()).hexdigest()
    return digest[:SHORT] if checksums else "unknown"


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _list_domains(names: Iterable[str], spec: JobSpec) -> str:
    kinds = tuple(dict.fromkeys(split_domain(name, spec)[0] for name in names))
    several = f" at {len(spec.severities)} severities" if len(spec.severities) > 1 else ""
    if kinds == tuple(BENCHMARK):
        return f"the {len(kinds)} corruptions of the benchmark{several}"
    return f"{len(kinds)} domain{'s' * (len(kinds) > 1)}{several} ({', '.join(kinds)})"


def _list_sizes(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"{low} to {high} (of {sum(sizes)} in all)"


def _list_few(texts: Sequence[str], most: int = 3) -> str:
    if len(texts) <= most:
        return "; ".join(texts)
    return f"{len(texts)} values: {'; '.join(texts[:most])}; …"
