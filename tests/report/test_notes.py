"""What is said around the tables: selection, settings that a suite sweeps, and the headline."""

from __future__ import annotations

import csv
import io

import pytest

from acclimate.bench import Preparing
from acclimate.report import headlines, make_document, render_csv, render_suite, summarize
from acclimate.report.tables import group_notes, lead_of, notes_of, selection_line
from tests.report.outcomes import exact
from tests.report.records import walk

TRIAL = "A trial on a toy task: these numbers mean nothing."


def make_rates(*rates, method="entropy", **more):
    return [
        exact(f"{method} (lr {lr})", 30 - 5 * i, 40, method=method, options={"lr": lr}, **more)
        for i, lr in enumerate(rates)
    ]


def make_swept(selection="paper", *others, notes=""):
    outcomes = [exact("source", 50, 60, method="source"), exact("norm", 45, 60)]
    outcomes += [*make_rates(1e-4, 1e-3), *others]
    return summarize(outcomes, selection=selection, notes=notes)


def test_a_sweep_is_not_called_published():
    line = selection_line(make_swept())
    assert "not so for entropy (2 settings)" in line
    assert "the suite sets these itself" in line
    assert "a choice made on the test stream" in line
    text = "".join(walk(render_suite(make_swept())).text)
    box = text.partition("Protocol and provenance")[2]
    assert line in box


def test_the_headline_says_what_was_picked_on_the_test():
    (told,) = headlines(make_swept())
    assert told.startswith("The lowest mean error is that of entropy (lr 0.001), 32.5 %")
    assert told.endswith("; picked on the test itself: entropy (2 settings).")
    # The best is another method: nothing was picked.
    (told,) = headlines(make_swept("paper", exact("tent", 1, 1, method="tent")))
    assert "settings" not in told


def test_ties_are_all_told():
    tied = exact("entropy (lr 0.01)", 25, 40, method="entropy", options={"lr": 1e-2})
    (told,) = headlines(make_swept("paper", tied))
    assert "that of entropy (lr 0.001) and entropy (lr 0.01), 32.5 %" in told
    assert told.endswith("; picked on the test itself: entropy (3 settings).")


def test_nothing_is_picked_where_no_method_helps():
    outcomes = [exact("source", 1, 1, method="source"), *make_rates(1e-4, 1e-3)]
    (told,) = headlines(summarize(outcomes))
    assert told.startswith("No method lowers the mean error of the source model, 1.0 %")
    assert "settings" not in told


def test_rows_of_a_sweep_are_marked():
    summary = make_swept()
    group = summary.groups[0]
    assert [row.mark for row in group.rows] == ["", "", "‡", "‡"]
    (note,) = [note for note in group_notes(group) if note.startswith("‡")]
    assert "entropy (2 settings)" in note
    assert r"\textsuperscript{$\ddagger$}" in make_document(summary).to_latex()
    lines = list(csv.DictReader(io.StringIO(render_csv(summary))))
    chosen = {line["label"]: (line["selection"], line["protocol_mark"]) for line in lines}
    assert chosen["norm"] == ("paper", "")
    assert chosen["entropy (lr 0.001)"] == ("set by the suite, one of 2", "")


@pytest.mark.parametrize(
    "second",
    [
        {"options": {}, "terms": {"swr": {}}},  # another method: SWR is added to it
        {"options": {"lr": 1e-3}, "protocol": {"batch_size": 64}},  # not compared with the first
        {"options": {"lr": 1e-4}, "speed": "fast"},  # the same setting
    ],
)
def test_other_rows_of_a_method_are_no_sweep(second):
    outcomes = [*make_rates(1e-4), exact("other", 5, 6, method="entropy", **second)]
    summary = summarize(outcomes)
    assert "settings" not in selection_line(summary)
    assert not any(row.is_one_of_several for _, row in summary.rows)


def test_settings_of_added_terms_count():
    outcomes = [
        exact(f"SWR {own}", 5, 6, method="tent", terms={"swr": {"strength": own}}) for own in (1, 2)
    ]
    assert "tent + SWR (2 settings)" in selection_line(summarize(outcomes))


def test_the_oracle_says_it_once():
    summary = make_swept("oracle")
    assert "not so for" not in selection_line(summary)
    assert len([text for text in headlines(summary) if "on the test itself" in text]) == 1


def test_the_first_note_stands_in_the_headline_box():
    summary = make_swept(notes=f"{TRIAL}\nBatches of 200. Files of the makers.")
    page = render_suite(summary)
    box = page.partition("</h1>")[2].partition('<p class="about">')[0]
    assert box.startswith(f'<p class="finding">{TRIAL}</p>')
    assert page.count(TRIAL) == 1
    assert "Batches of 200. Files of the makers." in page.partition("<section")[2]
    assert '<p class="finding"></p>' not in render_suite(make_swept())


@pytest.mark.parametrize(
    ("notes", "first", "rest"),
    [
        ("", (), ()),
        ("One only. Or two.", ("One only. Or two.",), ()),
        ("A line\nAnother.\n", ("A line",), ("Another.",)),
    ],
)
def test_notes_are_split_after_their_first_line(notes, first, rest):
    summary = make_swept(notes=notes)
    assert lead_of(summary) == (*first, *headlines(summary))
    assert notes_of(summary) == (selection_line(summary), *rest)


def test_values_that_nobody_published_are_told():
    outcomes = [
        exact("source", 50, method="source"),
        exact("mine", 20, method="tent", options={"lr": 0.5}, terms={"swr": {"strength": 3.0}}),
        exact("theirs", 30, method="swr", prepare=Preparing(parts={"penalty": {"n_samples": 8}})),
    ]
    line = selection_line(summarize(outcomes))
    assert "the suite itself sets: mine (lr 0.5, SWR strength 3.0)" in line
    assert "theirs (penalty n_samples 8)" in line
    assert "itself sets" not in selection_line(summarize(outcomes, selection="held-out"))
    plain = [exact("source", 50, method="source"), exact("tent", 20, method="tent")]
    assert "itself sets" not in selection_line(summarize(plain))
