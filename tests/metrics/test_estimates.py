"""What records and results say of the guard: estimates, and which model answered."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from acclimate.functional.signals import Estimate, Interval
from acclimate.metrics import Record, Result, pool
from tests.codes import raises

PLAIN = Record(
    domain="fog",
    index=0,
    n=4,
    n_errors=1,
    entropy=0.5,
    nll=0.5,
    ms=1.0,
    n_skipped=0,
    n_restored=0,
    predictions=None,
    by_domain={"fog": (4, 1)},
    confidence=0.9,
)


def guess(source: float, adapted: float) -> Estimate:
    intervals = [Interval(v, v - 0.1, v + 0.1) for v in (source, adapted, adapted - source)]
    return Estimate(*intervals, correlation=0.25, n_samples=64, is_familiar=False)


def watched(index: int, estimate: Estimate | None, *, by_source: bool, **more: Any) -> Record:
    made = replace(PLAIN, index=index, estimate=estimate, by_source=by_source, rested=False)
    return replace(made, **more)


RECORDS = (
    watched(0, None, by_source=True),
    watched(1, guess(0.5, 0.75), by_source=True, rested=True),
    watched(2, guess(0.25, 0.75), by_source=False),
    watched(3, guess(0.5, 0.5), by_source=False, domain="snow", by_domain={"snow": (4, 3)}),
)


@pytest.mark.parametrize("record", [PLAIN, *RECORDS])
def test_a_record_survives_a_file(record: Record) -> None:
    line = json.loads(json.dumps(record.to_dict()))
    assert Record.from_dict(line) == record


def test_records_without_a_guard_are_written_as_before() -> None:
    assert not {"estimate", "by_source", "rested"} & PLAIN.to_dict().keys()
    line = RECORDS[1].to_dict()
    assert line["estimate"]["source"] == {"value": 0.5, "low": 0.4, "high": 0.6}
    assert (line["estimate"]["is_familiar"], line["by_source"]) == (False, True)
    with raises("wrong_fields", unknown=("guess",)):
        Record.from_dict({**line, "guess": 1})


def test_the_estimate_is_that_of_the_model_that_answered() -> None:
    assert [record.estimated_accuracy for record in RECORDS] == [None, 0.5, 0.75, 0.5]
    result = Result(RECORDS)
    # The first batch has no estimate.
    assert result.estimated_error_by_domain == {"fog": 0.375, "snow": 0.5}
    assert result.estimated_error == 0.4375
    assert result.estimated_source_error == (0.625 + 0.5) / 2
    assert result.by_source == 0.5
    assert result.n_rests == 1


def test_batches_of_several_domains_count_by_their_samples() -> None:
    both = watched(0, guess(0.2, 0.6), by_source=False, by_domain={"fog": (1, 0), "snow": (3, 1)})
    only = watched(1, guess(0.2, 1.0), by_source=False)
    found = Result((both, only)).estimated_error_by_domain
    assert found == pytest.approx({"fog": 0.4 / 5, "snow": 0.4})


def test_probes_count_in_no_mean() -> None:
    probe = watched(4, guess(0.0, 0.0), by_source=True, is_probe=True, domain="clean")
    probe = replace(probe, by_domain={"clean": (4, 0)})
    result = Result((*RECORDS, probe))
    assert (result.estimated_error, result.by_source) == (0.4375, 0.5)
    assert result.estimated_error_by_domain["clean"] == 1.0


def test_without_a_guard_nothing_is_estimated() -> None:
    result = Result((PLAIN,))
    assert not result.has_guard
    told = result.to_dict()
    names = ("estimated_error", "estimated_source_error", "by_source", "n_rests")
    assert [told[name] for name in names] == [None] * 4
    assert told["estimated_error_by_domain"] == {}
    # A guard that saw too little has no estimate, but knows who answered.
    few = Result(RECORDS[:1])
    assert (few.estimated_error, few.estimated_source_error) == (None, None)
    assert (few.by_source, few.n_rests) == (1.0, 0)


def test_the_summary_is_plain() -> None:
    told = json.loads(json.dumps(pool([Result(RECORDS[:2]), Result(RECORDS[2:])]).to_dict()))
    assert told["estimated_error"] == 0.4375
    assert (told["by_source"], told["n_rests"]) == (0.5, 1)
