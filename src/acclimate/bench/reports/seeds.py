"""What the seed changes: nothing for some rows, which then are the same for every seed."""

from __future__ import annotations

from collections.abc import Sequence

from acclimate.bench.job import JobSpec
from acclimate.bench.outcome import Outcome
from acclimate.bench.reports.facts import domain_counts
from acclimate.report.table import BASELINE

# Streams that show every image once, in whatever order.
_WHOLE = (
    *("reset_each", "continual", "gradual", "mixed", "label_sorted"),
    *("single_images", "foreign"),
)


def ignores_seed(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether the seed changes no error of a row.

    Several seeds show it: they agree exactly. Of one seed it is known for the source model only,
    which neither learns nor draws, so that the order of the images does not matter.

    Args:
        outcomes: Of one row, one a seed.
    """
    if len(outcomes) == 1:
        return is_source(outcomes[0].entry.spec) and _shows_all(outcomes[0].entry.spec)
    first = outcomes[0]
    return all(
        domain_counts(other) == domain_counts(first) and other.miou == first.miou
        for other in outcomes[1:]
    )


def is_source(spec: JobSpec) -> bool:
    """Tell whether a job runs the source model as it is."""
    return spec.method == BASELINE


def _shows_all(spec: JobSpec) -> bool:
    protocol = spec.get_protocol()
    return protocol.stream in _WHOLE and not protocol.window
