"""Seeds: those a suite asks for, those that rows share, and those that change nothing."""

from __future__ import annotations

import dataclasses

import pytest

from acclimate.report import (
    error_table,
    headlines,
    make_document,
    render_csv,
    render_suite,
    summarize,
)
from acclimate.report.tables import caption, group_notes, job_notes
from tests.report.outcomes import exact, make_outcome


def make_uneven(**source):
    """A source row of one seed beside rows of two, as the suite asks for."""
    outcomes = [exact("source", 50, 60, method="source", **source)]
    for label, wrong in (("tent", 20), ("eta", 30)):
        for seed in (0, 1):
            outcomes.append(exact(label, wrong + 2 * seed, wrong, method=label, seed=seed))
    return outcomes


def test_missing_is_what_the_suite_asked_for():
    outcomes = make_uneven()
    entries = [outcome.entry for outcome in outcomes]
    asked = summarize(outcomes, entries=entries).groups[0]
    assert [row.mark for row in asked.rows] == ["", "", ""]
    partial = summarize(outcomes[:-1], entries=entries)
    assert [row.missing for row in partial.groups[0].rows] == [(), (), (1,)]
    assert "eta, seed 1" in job_notes(partial)[0]


def test_one_setting_is_not_missing_what_another_of_its_label_lacks():
    outcomes = [
        exact("tent", wrong + seed, method="tent", seed=seed, options={"lr": lr}, axes={"lr": lr})
        for lr, wrong in ((1e-4, 20), (1e-3, 30))
        for seed in (0, 1)
    ]
    entries = [outcome.entry for outcome in outcomes]
    rows = summarize(outcomes[:-1], entries=entries).groups[0].rows
    assert [row.missing for row in rows] == [(), (1,)]


def test_a_source_row_of_one_seed_serves_all_seeds():
    outcomes = make_uneven()
    group = summarize(outcomes, entries=[outcome.entry for outcome in outcomes]).groups[0]
    assert [row.gain for row in group.rows] == [None, pytest.approx(-34.5), pytest.approx(-24.5)]
    (ranking,) = group.rankings
    assert [place.row.label for place in ranking.places] == ["tent", "eta", "source"]
    assert ranking.n_units == 4
    # Nothing to explain: the source row would be the same for the other seed.
    assert not any("fewer seeds" in note for note in group_notes(group))


def test_rows_are_compared_over_the_seeds_they_share():
    outcomes = make_uneven(seed=1)
    outcomes[0] = exact("source", 50, 60, method="source", seed=1)
    more = exact("source", 56, 60, method="source", seed=2)  # so it does depend on the seed
    outcomes.insert(1, more)
    group = summarize(outcomes, entries=[outcome.entry for outcome in outcomes]).groups[0]
    tent = group.rows[1]
    assert tent.gain == pytest.approx(21 - 55)  # seed 1 alone
    alone = [*outcomes[:2], exact("tent", 20, 20, method="tent", seed=0)]
    lonely = summarize(alone, entries=[outcome.entry for outcome in alone]).groups[0]
    assert lonely.rows[1].gain is None


def test_fewer_seeds_are_told_where_they_matter():
    outcomes = [*make_uneven(), exact("norm", 10, 10)]
    group = summarize(outcomes, entries=[outcome.entry for outcome in outcomes]).groups[0]
    (note,) = [note for note in group_notes(group) if "fewer seeds" in note]
    assert "(norm seed 0)" in note
    # Means over other seeds are of something else: none is the best, whatever they show.
    assert not any(cell.best for cells in error_table(group).rows for cell in cells)
    summary = summarize(outcomes, entries=[outcome.entry for outcome in outcomes])
    (finding,) = headlines(summary)
    assert "means over different seeds" in finding


def test_a_row_the_seed_does_not_change_is_complete():
    outcomes = [exact("a", 20 + seed, seed=seed) for seed in range(3)]
    outcomes += [exact("b", 10, seed=seed) for seed in (0, 2)]
    assert [row.missing for row in summarize(outcomes).groups[0].rows] == [(), ()]


def test_seeds_that_agree_have_no_spread():
    outcomes = [exact(label, 20, 31, seed=s) for label in "ab" for s in (0, 1)]
    summary = summarize(outcomes)
    group = summary.groups[0]
    assert [cell.text for cell in error_table(group).rows[0][1:4]] == ["20.0", "31.0", "25.5"]
    told = caption(group)
    assert "Without ±: one seed, or seeds that change nothing" in told
    assert "an error on 100 images is uncertain by up to ±9.8 points" in told
    text = make_document(summary).to_markdown()
    assert " ± 0.0" not in text
    assert text.count("seeds that change nothing") == 1


def test_a_row_whose_seeds_agree_stands_beside_one_whose_seeds_do_not():
    outcomes = [exact("still", 20, 30, seed=s) for s in (0, 1)]
    # One column agrees by accident: its spread is zero, and that is a finding.
    outcomes += [exact("moved", 20, 30 + 2 * s, seed=s) for s in (0, 1)]
    group = summarize(outcomes).groups[0]
    still, moved = ([cell.text for cell in cells[1:4]] for cells in error_table(group).rows)
    assert still == ["20.0", "30.0", "25.0"]
    assert moved == ["20.0 ± 0.0", "31.0 ± 1.4", "25.5 ± 0.7"]
    told = caption(group)
    assert "standard deviation over 2 seeds. Without ±: one seed, or seeds that change" in told
    assert "uncertain by up to" in told


def test_severities_of_seeds_that_agree_have_no_spread():
    counts = {"fog_1": [10], "fog_5": [30]}
    outcomes = [make_outcome("a", counts, severities=(1, 5), seed=s) for s in (0, 1)]
    summary = summarize(outcomes)
    found = summary.groups[0].rows[0].severity_errors()
    assert {level: (own.mean, own.deviation) for level, own in found.items()} == {
        1: (10, None),
        5: (30, None),
    }
    assert "± 0.0" not in render_suite(summary)


def test_times_are_medians_over_batches():
    outcome = make_outcome("a", {"fog": [1, 2, 3]}, n=10)
    slow = dataclasses.replace(outcome.result.records[0], ms=9000.0)
    small = dataclasses.replace(
        outcome.result.records[2], n=5, ms=7.5, n_errors=1, by_domain={"fog": (5, 1)}
    )
    records = (slow, outcome.result.records[1], small)
    held = dataclasses.replace(outcome, result=dataclasses.replace(outcome.result, records=records))
    summary = summarize([held, exact("b", 3)])
    # Per image: 900, 1 and 1.5 ms.
    assert summary.groups[0].rows[0].ms_per_image == pytest.approx(1.5)
    assert "Time: median over batches" in caption(summary.groups[0])
    assert ",1.5," in render_csv(summary)
    page = render_suite(summary).replace("\u00a0", " ")
    assert "a: 16.0 % at 1.5<" in page
    assert "median over batches" in page
