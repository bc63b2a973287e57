"""The table of a bench: what is averaged, what is compared, and what is only shown."""

from __future__ import annotations

import dataclasses
import math

import pytest

from acclimate.bench.suite import Entry
from acclimate.errors import BadInput
from acclimate.report import error_table, summarize
from acclimate.report.facts import protocol_facts, settings_facts
from acclimate.report.tables import group_notes, job_notes, name_row, protocol_line
from tests.codes import raises
from tests.report.outcomes import exact, make_outcome, make_provenance, make_record


def best(group, column):
    """Labels of the rows that the table marks as the best of a column; None for the mean."""
    table = error_table(group)
    names = [own.name for own in table.columns]
    place = names.index("mean error, %" if column is None else column)
    return [cells[0].text for cells in table.rows if cells[place].best]


def test_rows_are_means_and_deviations_over_seeds():
    wrong = {0: (10, 30), 1: (14, 36), 2: (12, 60)}
    outcomes = [exact("tent", *own, seed=seed, method="tent") for seed, own in wrong.items()]
    group = summarize(outcomes).groups[0]
    (row,) = group.rows
    assert group.columns == ("shift0", "shift1")
    assert row.seeds == (0, 1, 2)
    means = [sum(own) / 2 for own in wrong.values()]
    assert row.mean.mean == pytest.approx(sum(means) / 3)
    spread = math.sqrt(sum((m - sum(means) / 3) ** 2 for m in means) / 2)
    assert row.mean.deviation == pytest.approx(spread)
    assert row.errors["shift0"].mean == pytest.approx(12)
    assert row.errors["shift0"].deviation == pytest.approx(2)
    assert row.ms_per_image == pytest.approx(0.1)
    assert row.peak_memory == 400_000_000


def test_one_seed_has_no_deviation():
    row = summarize([exact("tent", 10)]).groups[0].rows[0]
    assert row.mean.deviation is None
    assert str(row.mean) == "10.0"


def test_the_source_row_comes_first_and_the_others_are_measured_against_it():
    outcomes = [exact("norm", 20, 30), exact("nothing", 40, 50, method="source")]
    rows = summarize(outcomes).groups[0].rows
    assert [row.label for row in rows] == ["nothing", "norm"]
    assert rows[0].is_reference
    assert rows[0].gain is None
    assert rows[1].gain == pytest.approx(-20)


def test_the_best_is_told_as_far_as_it_is_shown():
    records = {"a": [20, 21], "b": [20, 21], "c": [30, 11]}
    outcomes = [make_outcome(label, {"fog": wrong}) for label, wrong in records.items()]
    group = summarize(outcomes).groups[0]
    assert best(group, "fog") == ["a", "b", "c"]
    group = summarize([exact("a", 20, 30), exact("b", 30, 20), exact("c", 21, 21)]).groups[0]
    assert best(group, "shift0") == ["a"]
    assert best(group, "shift1") == ["b"]
    assert best(group, None) == ["c"]


def test_a_row_alone_is_not_the_best_of_anything():
    assert best(summarize([exact("a", 20)]).groups[0], None) == []


def test_an_oracle_is_marked_and_never_the_best():
    outcomes = [exact("bound", 1, method="supervised"), exact("a", 20), exact("b", 30)]
    group = summarize(outcomes).groups[0]
    assert best(group, None) == ["a"]
    assert [name_row(row).whole for row in group.rows if row.is_oracle] == ["bound (oracle)"]
    assert any("bound learned from labels" in note for note in group_notes(group))


def test_a_reconstruction_is_marked():
    row = summarize([exact("SHOT", 20, method="shot")]).groups[0].rows[0]
    assert name_row(row).whole == "SHOT (reconstruction)"


def test_groups_are_tables_of_their_own():
    outcomes = [
        *(exact("a", 20, group="small"), exact("b", 30, group="small")),
        *(exact("a", 10, group="large"), exact("b", 5, group="large")),
    ]
    summary = summarize(outcomes)
    assert [group.name for group in summary.groups] == ["small", "large"]
    assert [best(group, None) for group in summary.groups] == [["a"], ["b"]]


def test_a_row_that_lacks_a_seed_is_marked_and_does_not_compete():
    outcomes = [exact("a", 20, seed=seed) for seed in range(3)]
    outcomes += [exact("b", 10 + seed, seed=seed) for seed in (0, 2)]
    outcomes += [exact("c", 30, seed=seed) for seed in range(3)]
    group = summarize(outcomes).groups[0]
    partial = group.rows[1]
    assert partial.missing == (1,)
    assert partial.mark == "†"
    assert best(group, None) == ["a"]
    assert [row.label for row in group.competing(0)] == ["a", "c"]
    (note,) = [note for note in group_notes(group) if note.startswith("†")]
    assert "b has seeds 0, 2 but not seed 1" in note


def test_jobs_of_the_suite_that_are_not_done_are_told():
    outcomes = [exact("a", 20), exact("b", 10)]
    planned = [outcome.entry for outcome in outcomes]
    planned.append(dataclasses.replace(planned[1], spec=exact("b", 1, seed=4).entry.spec))
    planned.append(Entry(exact("never", 1, method="tent").entry.spec, "never", "other"))
    summary = summarize(outcomes, entries=planned)
    assert [row.missing for row in summary.groups[0].rows] == [(), (4,)]
    assert best(summary.groups[0], None) == []
    note = next(note for note in job_notes(summary) if note.startswith("Not finished"))
    assert note == "Not finished, 2 jobs of the suite: b, seed 4; never (other), seed 0."


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"protocol": {"batch_size": 64}}, "batch size 64 instead of 200"),
        (
            {"protocol": {"order": "shuffled"}},
            "order shuffled by the seed instead of as in the files",
        ),
        (
            {"protocol": {"stream": "continual"}},
            "stream continual instead of reset_each; reset at the start only instead of before "
            "each domain",
        ),
        ({"protocol": {"episodic": True}}, "reset before each batch instead of before each domain"),
        ({"n": 50}, "images 50 instead of 100"),
        ({"model": "resnet18"}, "model resnet18 instead of builtin"),
        ({"method": "memo"}, "predictions from after the update instead of from before the update"),
        (
            {"provenance": make_provenance(["shift0"], model={"weights_sha256": "cd" * 32})},
            "weights cdcdcdcdcd instead of ababababab",
        ),
        ({"provenance": make_provenance(["x"])}, "data checksum"),
    ],
)
def test_another_protocol_is_told_and_its_rows_are_not_compared(change, told):
    outcomes = [exact("a", 20), exact("b", 30), exact("other", 1, **change)]
    group = summarize(outcomes).groups[0]
    assert [row.protocol for row in group.rows] == [0, 0, 1]
    assert group.rows[2].mark == "a"
    assert group.rows[2].gain is None
    assert best(group, None) == ["a"]
    (note,) = [note for note in group_notes(group) if note.startswith("a: ")]
    assert told in note
    assert "(other)" in note


def test_rows_that_share_another_protocol_have_their_own_best():
    outcomes = [exact(label, wrong) for label, wrong in (("a", 20), ("b", 30), ("c", 40))]
    outcomes += [exact(label, wrong, n=50) for label, wrong in (("d", 9), ("e", 3))]
    group = summarize(outcomes).groups[0]
    assert best(group, None) == ["a", "e"]
    assert [row.mark for row in group.rows] == ["", "", "", "a", "a"]


def test_fewer_corruptions_are_another_protocol():
    outcomes = [exact("a", 20, 30), exact("b", 30, 30), exact("c", 1)]
    group = summarize(outcomes).groups[0]
    assert group.rows[2].mark == "a"
    assert "shift1" not in group.rows[2].errors
    assert best(group, "shift0") == ["a"]


def test_seeds_that_differ_in_the_protocol_are_told():
    outcomes = [exact("a", 20, seed=0), exact("a", 20, seed=1, n=50)]
    outcomes += [exact("b", 30, seed=seed) for seed in (0, 1)]
    outcomes += [exact("c", 30, seed=seed) for seed in (0, 1)]
    group = summarize(outcomes).groups[0]
    assert group.rows[0].mark == "a"
    assert "images 100 / 50 (by seed) instead of 100" in group_notes(group)[0]


def test_severities_share_the_column_of_their_corruption():
    counts = {"fog_1": [10], "fog_5": [30], "snow_1": [20], "snow_5": [60]}
    group = summarize([make_outcome("a", counts, severities=(1, 5))]).groups[0]
    assert group.columns == ("fog", "snow")
    assert group.rows[0].errors["fog"].mean == pytest.approx(20)
    assert group.rows[0].mean.mean == pytest.approx(30)


def test_probes_count_nowhere():
    outcome = exact("a", 20)
    probe = make_record("clean", 1, 100, 99, is_probe=True)
    result = dataclasses.replace(outcome.result, records=(*outcome.result.records, probe))
    row = summarize([dataclasses.replace(outcome, result=result)]).groups[0].rows[0]
    assert list(row.errors) == ["shift0"]
    assert row.mean.mean == pytest.approx(20)


def test_one_label_for_several_jobs_is_told_apart_by_what_varies():
    outcomes = [
        exact("tent", wrong, method="tent", seed=seed, options={"lr": lr}, axes={"lr": lr})
        for lr, wrong in ((1e-4, 20), (1e-3, 30))
        for seed in (0, 1)
    ]
    rows = summarize(outcomes).groups[0].rows
    assert [row.label for row in rows] == ["tent, lr 0.0001", "tent, lr 0.001"]
    assert [row.seeds for row in rows] == [(0, 1), (0, 1)]


def test_jobs_that_cannot_be_told_apart_are_refused():
    outcomes = [exact("tent", 20, method="tent", options={"lr": lr}) for lr in (1e-4, 1e-3)]
    with raises("duplicate", BadInput, name="tent"):
        summarize(outcomes)


def test_no_outcome_is_refused():
    with raises("no_finished_job", BadInput):
        summarize([])


def test_a_job_that_comes_twice_counts_once():
    outcome = exact("a", 20)
    assert summarize([outcome, outcome]).groups[0].rows[0].seeds == (0,)


def test_the_protocol_line_says_what_matters():
    line = protocol_line(summarize([exact("a", 20)]).groups[0])
    for words in (
        *("model builtin (weights ababababab)", "1 domain (shift0), 100 images each"),
        *(
            "reset before each domain",
            "order as in the files",
            "batches of 200",
            "from before the update",
        ),
    ):
        assert words in line


def test_the_mixed_order_is_that_of_the_stream():
    outcome = exact("a", 20, protocol={"stream": "dirichlet", "delta": 0.5})
    facts = protocol_facts(outcome)
    assert facts["stream"] == "dirichlet (delta 0.5)"
    assert facts["order"] == "that of the stream dirichlet"


def test_settings_hold_hyper_parameters_and_preparation():
    outcome = exact("ours", 20, method="swr_nsp", options={"lr": 0.5})
    facts = settings_facts(outcome)
    assert facts["swr_nsp.lr"] == "0.5"
    assert facts["artifact"] == "prepared with defaults"
