"""The report as a CSV file: one line for each job and domain, with all digits."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from acclimate.bench.outcome import Outcome
from acclimate.bench.reports.facts import (
    describe_protocol,
    domain_counts,
    domain_errors,
    has_severity,
    protocol_facts,
    split_domain,
)
from acclimate.bench.reports.notes import name_selection
from acclimate.bench.reports.tabulate import Row, Summary, median_ms, name_mark

COLUMNS = (
    *("group", "label", "method", "seed", "domain", "corruption", "severity"),
    *("n", "n_errors", "error_percent", "miou_percent", "ms_per_image", "peak_memory_bytes"),
    *("estimated_error_percent", "by_source_percent"),
    *("is_oracle", "is_complete", "protocol_mark", "folder", "selection", "protocol"),
)


def render_csv(summary: Summary) -> str:
    """Return the long table of a report; lines end as RFC 4180 has it."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    for group, row in summary.rows:
        for outcome in row.outcomes:
            shared = {
                "group": group.name,
                "label": row.label,
                "method": row.method,
                "seed": outcome.entry.spec.seed,
                "is_oracle": str(row.is_oracle).lower(),
                "is_complete": str(row.is_complete).lower(),
                "protocol_mark": name_mark(row.protocol),
                "folder": outcome.folder,
                "selection": name_selection(summary, row),
                "protocol": describe_protocol(protocol_facts(outcome)),
            }
            for line in _lines(row, outcome):
                writer.writerow({**shared, **line})
    return file.getvalue()


def _lines(row: Row, outcome: Outcome) -> Iterator[dict[str, Any]]:
    errors = domain_errors(outcome)
    overlaps = outcome.result.miou_by_domain
    memory = outcome.result.peak_memory
    estimates, by_source = outcome.result.estimated_error_by_domain, outcome.result.by_source
    for domain, (n, n_errors) in domain_counts(outcome).items():
        corruption, severity = split_domain(domain, outcome.entry.spec)
        severities = outcome.entry.spec.severities if has_severity(outcome) else ("",)
        time = _ms_per_image(outcome, domain)
        yield {
            "domain": domain,
            "corruption": corruption,
            "severity": severity if len(severities) > 1 else severities[0],
            "n": n,
            "n_errors": n_errors,
            "error_percent": repr(errors[domain]),
            "miou_percent": repr(100 * overlaps[domain]) if domain in overlaps else "",
            "ms_per_image": "" if time is None else repr(time),
            "peak_memory_bytes": "" if memory is None else memory,
            "estimated_error_percent": repr(100 * estimates[domain]) if domain in estimates else "",
            "by_source_percent": "" if by_source is None else repr(100 * by_source),
        }


def _ms_per_image(outcome: Outcome, domain: str) -> float | None:
    """Return the median over the domain's batches; None if it shares its batches with others."""
    records = [record for record in outcome.result.counted if domain in record.by_domain]
    if any(len(record.by_domain) > 1 for record in records):
        return None
    return median_ms(records)
