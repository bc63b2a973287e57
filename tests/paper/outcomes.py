"""Outcomes made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from acclimate.bench import Entry, JobSpec, Outcome
from acclimate.evaluation import Record, Result
from acclimate.paper import Experiment, Settings

N = 1000


def make_record(domain: str, error: float, index: int = 0, epoch: int = 1) -> Record:
    """One batch of a thousand images with an error in percent."""
    n_errors = round(N * error / 100)
    return Record(
        domain=domain,
        index=index,
        n=N,
        n_errors=n_errors,
        entropy=1.0,
        nll=1.0,
        ms=10.0,
        n_skipped=0,
        n_restored=0,
        predictions=None,
        by_domain={domain: (N, n_errors)},
        epoch=epoch,
    )


def make_outcome(entry: Entry, errors: Mapping[str, float]) -> Outcome:
    """An outcome with these errors in percent by domain."""
    records = tuple(make_record(name, error, i) for i, (name, error) in enumerate(errors.items()))
    return Outcome(entry, Result(records), {"n_images": N})


def fill(
    experiment: Experiment,
    scale: str,
    error: Callable[[Entry, str], float],
    seeds: tuple[int, ...] = (0,),
    settings: Settings | None = None,
) -> list[Outcome]:
    """Outcomes of all jobs of an experiment, whose errors a function gives by entry and domain."""
    made = []
    for entry in experiment.suite(scale, seeds, settings).entries:
        domains = domains_of(entry.spec)
        if experiment.kind == "passes":
            records = tuple(
                make_record(name, error(entry, f"{name} {epoch}"), 3 * i + epoch, epoch)
                for i, name in enumerate(domains)
                for epoch in (1, 2, 3)
            )
            made.append(Outcome(entry, Result(records), {"n_images": N}))
        else:
            made.append(make_outcome(entry, {name: error(entry, name) for name in domains}))
    return made


def domains_of(spec: JobSpec) -> tuple[str, ...]:
    """The corruptions of a job."""
    from acclimate.corruptions import BENCHMARK

    return spec.corruptions or BENCHMARK
