"""Two suites side by side."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from acclimate.data.domain_choice import DomainChoice
from acclimate.report import compare_suites, summarize
from tests.report.outcomes import HOSTILE, exact, make_outcome, make_provenance


def show(found, width=200):
    file = io.StringIO()
    found.to_document(("before", "after")).show(Console(file=file, width=width))
    return file.getvalue()


def test_labels_of_both_are_compared_on_what_both_have():
    first = [exact("a", 10, 20, seed=0), exact("a", 14, 26, seed=1), exact("b", 5, 6)]
    second = [exact("a", 11, 19, seed=0), exact("a", 90, 90, seed=2), exact("c", 5, 6)]
    found = compare_suites(first, second)
    (pair,) = found.pairs
    assert pair.label == "a"
    assert pair.first == pytest.approx(15)
    assert pair.second == pytest.approx(15)
    assert pair.difference.value == pytest.approx(0)
    assert pair.difference.n_units == 2
    assert not pair.is_same
    assert found.only_first == ("a, seed 1", "b, seed 0")
    assert found.only_second == ("a, seed 2", "c, seed 0")
    text = show(found)
    assert "only in A: a, seed 1; b, seed 0" in text
    assert "only in B: a, seed 2; c, seed 0" in text


def test_the_difference_is_second_minus_first():
    found = compare_suites([exact("a", 10, 20, 30)], [exact("a", 8, 17, 26)]).pairs[0]
    assert found.difference.value == pytest.approx(-3)
    assert found.difference.high < 0
    assert found.difference.probability == 0.875
    row = next(
        line
        for line in show(
            compare_suites([exact("a", 10, 20, 30)], [exact("a", 8, 17, 26)])
        ).splitlines()
        if line.split()[:1] == ["a"]
    )
    assert row.split()[:6] == ["a", "20.0", "17.0", "−3.0", "[–]", "0.875"]
    assert "equal" in row


def test_equal_records_are_called_identical():
    found = compare_suites([exact("a", 10, 20)], [exact("a", 10, 20)])
    assert found.pairs[0].is_same
    assert "identical" in show(found)


def test_protocols_that_differ_are_told():
    first = [exact("a", 10, 20)]
    second = [exact("a", 10, 20, protocol={"batch_size": 64})]
    found = compare_suites(first, second)
    assert found.pairs[0].protocol == ("batch size 64 instead of 200",)
    text = show(found)
    assert "differs: not comparable" in text
    assert "a: protocol of B: batch size 64 instead of 200" in text


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"normalization": "imagenet"}, "normalization imagenet instead of none"),
        ({"size": "16x8"}, "size 16x8 instead of none"),
        ({"ignore_label": 3}, "ignored label 3 instead of none"),
        ({"logits_at": 1, "head": "last"}, "logits last at 1 instead of none"),
        ({"domains": DomainChoice(part="held")}, "part held instead of none"),
    ],
)
def test_images_brought_into_another_form_are_another_protocol(form, told):
    plain, formed = exact("a", 10, 20), exact("a", 10, 20, **form)
    found = compare_suites([plain], [formed])
    assert found.pairs[0].protocol == (told,)
    group = summarize([plain, exact("b", 30, 20, **form)]).groups[0]
    assert [row.protocol for row in group.rows] == [0, 1]


def test_settings_and_versions_that_differ_are_told():
    newer = make_provenance(["shift0", "shift1"], versions={"torch": "9.0"}, date="2021-01-01")
    first = [exact("a", 10, 20, method="tent", options={"lr": 1e-3})]
    second = [exact("a", 10, 20, method="tent", options={"lr": 1e-4}, provenance=newer)]
    (pair,) = compare_suites(first, second).pairs
    assert pair.protocol == ()
    assert pair.settings == ("tent.lr 0.0001 instead of 0.001",)
    assert "versions: torch 9.0 instead of 2.3.0" in pair.origin
    assert not any("date" in text for text in pair.origin)


def test_nothing_in_common_is_said():
    found = compare_suites([exact("a", 10, 20)], [exact("b", 10, 20)])
    assert found.pairs == ()
    assert "No label is in both." in show(found)


def test_a_label_without_a_shared_seed_has_no_difference():
    found = compare_suites([exact("a", 10, 20, seed=0)], [exact("a", 10, 20, seed=1)])
    assert found.pairs[0].difference is None
    assert found.pairs[0].first is None
    assert "none shared" in show(found)


def test_one_stream_is_compared_batch_by_batch():
    first = [make_outcome("a", {"fog": [5, 6, 7, 8]})]
    second = [make_outcome("a", {"fog": [4, 5, 6, 7]})]
    (pair,) = compare_suites(first, second).pairs
    assert (pair.difference.low, pair.difference.high) == pytest.approx((-1, -1))
    assert "4 batches" in show(compare_suites(first, second))


def test_groups_are_kept_apart_and_names_are_shown_as_they_are():
    first = [exact("[bold]a", 10, 20, group=HOSTILE), exact("[bold]a", 1, 2, group="x")]
    found = compare_suites(first, first[:1])
    assert [pair.group for pair in found.pairs] == [HOSTILE]
    assert found.only_first == ("[bold]a (x), seed 0",)
    assert "[bold]a" in show(found)
