"""Reports of guarded jobs: the estimate beside the truth, and who answered."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from acclimate.bench.suite import Outcome
from acclimate.functional.signals import Estimate, Interval
from acclimate.metrics import Result
from acclimate.report import error_table, make_document, render_csv, render_suite, summarize
from acclimate.report.facts import settings_facts
from acclimate.report.tables import caption
from tests.report.outcomes import exact

HEADS = ("estimated error, %", "by source, %")


def watch(outcome: Outcome, *accuracies: float, by_source: int = 0) -> Outcome:
    """The outcome with estimates of the adapted model; the source answers the first batches."""
    records = []
    for place, (record, value) in enumerate(zip(outcome.result.records, accuracies, strict=True)):
        ends = [Interval(v, v - 0.1, v + 0.1) for v in (value, value, 0.0)]
        estimate = Estimate(*ends, correlation=0.1, n_samples=100, is_familiar=True)
        more = {"estimate": estimate, "by_source": place < by_source, "rested": False}
        records.append(replace(record, **more))
    return replace(outcome, result=Result(tuple(records)))


def make():
    return summarize(
        [
            exact("source", 50, 60, method="source"),
            watch(exact("tent", 30, 50, method="tent", guard=True), 0.8, 0.5, by_source=1),
            watch(exact("tent", 30, 52, method="tent", guard=True, seed=1), 0.6, 0.5),
        ]
    )


def test_the_table_has_both_errors_and_the_share_of_the_source():
    (group,) = make().groups
    table = error_table(group)
    places = [[column.name for column in table.columns].index(head) for head in HEADS]
    shown = {cells[0].text: [cells[p].text for p in places] for cells in table.rows}
    assert shown == {"source": ["–", "–"], "tent": ["40.0 ± 7.1", "25"]}
    assert not any(cells[p].best for cells in table.rows for p in places)
    assert "estimates it without labels" in caption(group)


def test_tables_without_a_guard_are_as_they_were():
    (group,) = summarize([exact("source", 50, method="source"), exact("tent", 40)]).groups
    assert not set(HEADS) & {column.name for column in error_table(group).columns}
    assert "estimate" not in caption(group)


def test_all_formats_have_the_estimate():
    summary = make()
    page, text = render_suite(summary).replace("\u00a0", " "), make_document(summary).to_markdown()
    for head in HEADS:
        assert f">{head}</th>" in page
        assert head in text.replace("\\", "").replace("\u00a0", " ")
    lines = list(csv.DictReader(io.StringIO(render_csv(summary))))
    own = [line for line in lines if line["label"] == "tent" and line["seed"] == "0"]
    assert [float(line["estimated_error_percent"]) for line in own] == [
        100 * (1 - 0.8),
        50.0,
    ]
    assert {line["by_source_percent"] for line in own} == {"50.0"}
    assert lines[0]["estimated_error_percent"] == lines[0]["by_source_percent"] == ""


def test_settings_say_which_guard():
    found = [exact("tent", 3, method="tent", guard=guard) for guard in (False, True, "watch")]
    told = [settings_facts(outcome).get("guard") for outcome in found]
    assert told == [None, "on", "watch"]
