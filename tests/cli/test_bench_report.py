"""`bench report` and `bench compare` on folders of suites."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

import acclimate.bench.suite
from acclimate.bench.suite import Outcome, Suite
from acclimate.cli.bench import bench as app
from acclimate.errors import BadInput
from tests.codes import raises
from tests.report.outcomes import exact


@dataclass
class FakeStore:
    """What the folder of a suite holds, without a folder."""

    root: Path
    suites = {}  # noqa: RUF012

    @property
    def suite(self) -> Suite:
        entries = tuple(outcome.entry for outcome in self.suites[self.root.name])
        return Suite(title="A title", entries=entries, notes="A note.", selection="training-domain")

    def outcomes(self) -> list[Outcome]:
        return [o for o in self.suites[self.root.name] if o.entry.label != "unfinished"]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(acclimate.bench.suite, "Store", FakeStore)
    first = [exact("source", 50, 60, method="source"), exact("norm", 10, 20)]
    first.append(exact("unfinished", 1, 2, method="tent"))
    second = [exact("source", 50, 60, method="source"), exact("norm", 8, 19)]
    FakeStore.suites = {"a": first, "b": second, "empty": first[2:]}
    for name in FakeStore.suites:
        (tmp_path / name).mkdir()
    return tmp_path


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_report_prints_tables(folders):
    text = run("report", folders / "a")
    assert "A title" in text
    assert "10.0*" in text
    assert "Not finished, 1 job of the suite: unfinished, seed 0." in " ".join(text.split())


@pytest.mark.parametrize(
    ("name", "words"),
    [("md", "| norm | **10.0** |"), ("latex", r"\textbf{10.0}"), ("csv", "norm,norm,0,shift0")],
)
def test_report_prints_other_formats(folders, name, words):
    assert words in run("report", folders / "a", "--format", name)


def test_report_writes_files(folders):
    for name in ("md", "latex", "csv", "terminal"):
        out = folders / f"report.{name}"
        assert str(out) in run("report", folders / "a", "--format", name, "--out", out)
        assert "norm" in out.read_text(encoding="utf-8")
    with (folders / "report.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 4


def test_csv_on_stdout_can_be_read(folders):
    lines = list(csv.DictReader(io.StringIO(run("report", folders / "a", "--format", "csv"))))
    assert {line["label"] for line in lines} == {"source", "norm"}


def test_the_page_lies_in_the_folder_unless_told_otherwise(folders):
    run("report", folders / "a", "--format", "html")
    page = (folders / "a" / "report.html").read_text(encoding="utf-8")
    assert 'href="./jobs/source-' in page
    run("report", folders / "a", "--format", "html", "--out", folders / "elsewhere.html")
    page = (folders / "elsewhere.html").read_text(encoding="utf-8")
    assert 'href="./a/jobs/source-' in page


def test_report_refuses_what_it_cannot_do(folders):
    with raises("unknown_name", BadInput, kind="format", name="htm") as caught:
        run("report", folders / "a", "--format", "htm")
    assert "html" in caught.value.known
    with raises("not_found", BadInput, path=(folders / "no").resolve()):
        run("report", folders / "a", "--format", "md", "--out", folders / "no" / "report.md")
    with raises("not_a_file", BadInput, path=folders):
        run("report", folders / "a", "--format", "md", "--out", folders)
    with raises("no_finished_job", BadInput):
        run("report", folders / "empty")


def test_compare_prints_differences(folders):
    text = run("compare", folders / "a", folders / "b")
    row = next(line for line in text.splitlines() if line.split()[:1] == ["norm"])
    assert row.split()[1:4] == ["15.0", "13.5", "−1.5"]
    assert "identical" in next(line for line in text.splitlines() if line.split()[:1] == ["source"])


@pytest.mark.parametrize("name", ["report", "compare"])
def test_help_has_an_example(name):
    assert "Example:" in run(name, "--help")
