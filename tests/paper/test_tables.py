"""Published numbers, ours and differences stand where they belong."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from acclimate.bench import Entry, Outcome
from acclimate.paper import EXPERIMENTS, PaperTable, Settings
from acclimate.paper.claims import read_grids
from acclimate.paper.tables import NOT_IN_PAPER, make_document
from acclimate.report.pages import render_document
from tests.codes import raises
from tests.paper.outcomes import fill, make_outcome
from tests.report.records import walk

RESNET, WIDE = "CIFAR-100-C, ResNet-50", "CIFAR-100-C, WRN-40-2"


def by_label(entry: Entry, domain: str) -> float:
    """Errors that tell rows apart."""
    return 20 + len(str(entry.axes["row"])) + 0.1 * len(domain)


def find(table: PaperTable, setup: str, label: str) -> dict[str, tuple[object, ...]]:
    (row,) = [row for row in table.setups[setup] if row.label == label]
    ours = tuple(None if own is None else round(own.mean, 6) for own in row.ours)
    return {"published": row.published, "ours": ours, "difference": row.differences}


def test_a_table_of_corruptions() -> None:
    experiment = EXPERIMENTS["table-1a"]
    outcomes = fill(experiment, "full", lambda entry, domain: 40.0 + (domain == "fog"))
    table = experiment.tabulate(outcomes)
    assert table.columns[:3] == ("mean", "gaussian_noise", "shot_noise")
    assert len(table.columns) == 16
    assert list(table.setups) == [WIDE, RESNET]
    found = find(table, RESNET, "Ours")
    assert found["published"][:2] == (35.65, 40.0)
    assert found["ours"][0] == pytest.approx(40 + 1 / 15)
    assert found["difference"][0] == pytest.approx(40 + 1 / 15 - 35.65)
    assert found["ours"][table.columns.index("fog")] == 41.0
    left_out = find(table, RESNET, "TTT++")
    assert left_out["published"][0] == 44.38
    assert set(left_out["ours"]) == {None}


def test_means_are_compared_over_the_same_corruptions() -> None:
    experiment = EXPERIMENTS["table-1b"]
    settings = Settings(corruptions=("fog", "snow"))
    outcomes = fill(experiment, "full", lambda entry, domain: 20.0, settings=settings)
    table = experiment.tabulate(outcomes)
    assert table.columns == ("mean", "snow", "fog")
    found = find(table, "CIFAR-10-C, WRN-28-10", "Ours")
    assert found["published"] == (pytest.approx((13.7 + 11.1) / 2), 13.7, 11.1)


def test_seeds_are_averaged_and_their_spread_is_shown() -> None:
    experiment = EXPERIMENTS["table-2"]
    outcomes = fill(
        experiment, "full", lambda entry, _: 30.0 + 2 * entry.spec.seed, seeds=(0, 1, 2)
    )
    (row, *_) = experiment.tabulate(outcomes).rows
    (own,) = row.ours
    assert own is not None
    assert (own.mean, own.n_seeds) == (pytest.approx(32.0), 3)
    assert own.deviation == pytest.approx(2.0)
    assert "± 2.00" in make_document(experiment.tabulate(outcomes)).to_markdown()


def test_severities_and_their_mean() -> None:
    experiment = EXPERIMENTS["table-s6b"]
    settings = Settings(sources={"imagenetc": "/nowhere"})
    outcomes = fill(
        experiment, "full", lambda entry, _: 10.0 * entry.spec.severities[0], settings=settings
    )
    table = experiment.tabulate(outcomes)
    assert table.columns == ("mean", "5", "4", "3", "2", "1")
    found = find(table, "ImageNet-C, ResNet-50", "Ours")
    assert found["ours"] == (30.0, 50.0, 40.0, 30.0, 20.0, 10.0)
    (grid,) = read_grids(outcomes, "severities")
    assert len(grid.cells["Ours", "mean"][0]) == 5 * 15


def test_passes() -> None:
    experiment = EXPERIMENTS["table-5"]
    outcomes = fill(experiment, "full", lambda entry, name: 10.0 * int(name.split()[-1]))
    found = find(experiment.tabulate(outcomes), RESNET, "Ours, lr 1e-3")
    assert found["published"] == (35.65, 33.34, 33.25)
    assert found["ours"] == (10.0, 20.0, 30.0)


def test_columns_that_are_jobs() -> None:
    experiment = EXPERIMENTS["table-3"]
    depths = {"none": 30.0, "1": 31.0, "2": 29.0, "3": 33.0}
    outcomes = fill(experiment, "full", lambda entry, _: depths[str(entry.axes["column"])])
    table = experiment.tabulate(outcomes)
    assert table.columns == ("none", "1", "2", "3")
    assert find(table, "CIFAR-10-C, WRN-28-10", "Ours")["ours"] == (30.0, 31.0, 29.0, 33.0)
    best = table.find_best(RESNET)
    assert [best["Ours", index] for index in range(4)] == [False, False, True, False]
    verdicts = {(v.setup, v.claim): v.verdict for v in experiment.judge(outcomes)}
    assert verdicts[RESNET, "with 100 classes the projector helps"] == "holds"
    key = ("CIFAR-10-C, ResNet-50", "with 10 classes no projector is best")
    assert verdicts[key] == "does not hold"
    assert len(verdicts) == 5


def test_a_stand_in_is_named_and_compared_with_what_it_stands_for() -> None:
    experiment = EXPERIMENTS["table-2"]
    outcomes = fill(experiment, "small", by_label)
    table = experiment.tabulate(outcomes, experiment.describe("small"))
    assert list(table.setups) == ["CIFAR-100-C, ResNet-32"]
    found = find(table, "CIFAR-100-C, ResNet-32", "Main, lr 1e-3")
    assert found["published"] == (75.70,)
    assert any("stands in for CIFAR-100-C, ResNet-50" in note for note in table.notes)


def test_what_the_paper_has_not_is_said() -> None:
    outcomes = fill(EXPERIMENTS["table-1b"], "small", by_label)
    table = EXPERIMENTS["table-1b"].tabulate(outcomes)
    (row,) = [row for row in table.rows if row.label == "ROID"]
    assert (row.is_published, row.absent) == (False, NOT_IN_PAPER)
    (memo,) = [row for row in table.rows if row.label == "MEMO"]
    assert memo.mark == "first 200 images"
    (core,) = [row for row in table.rows if row.label == "Core"]
    assert core.mark == "reconstruction"
    figure = EXPERIMENTS["fig-1"]
    drawn = figure.tabulate(fill(figure, "smoke", by_label))
    text = make_document(drawn).to_markdown()
    assert "TENT (not in the text)" in text
    assert "Supervised (oracle, not in the text)" in text


def test_jobs_of_something_else_are_refused() -> None:
    entry = EXPERIMENTS["table-2"].suite("full").entries[0]
    other = make_outcome(Entry(entry.spec, "mine"), {"fog": 20.0})
    with raises("wrong_fields", missing=("setting", "row", "column"), unknown=()):
        EXPERIMENTS["table-2"].tabulate([other])


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _outcomes() -> Sequence[Outcome]:
    return fill(EXPERIMENTS["table-2"], "full", by_label)


def test_markdown() -> None:
    experiment = EXPERIMENTS["table-2"]
    outcomes = _outcomes()
    verdicts = experiment.judge(outcomes)
    text = make_document(experiment.tabulate(outcomes), verdicts, ["Scale: x."]).to_markdown()
    lines = text.splitlines()
    assert lines[0] == "# table-2: Ablation: regulariser, prototypes, learning rate"
    (row,) = [_cells(line) for line in lines if line.startswith("| Main, lr 1e-3")]
    published, ours = 75.70, float(row[2].strip("*"))
    assert row[1] == "75.70"
    assert row[3] == f"{ours - published:+.2f}".replace("-", "−")
    tables = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in tables[:8]}) == 1
    claims = [line for line in tables if line.startswith(("| ✓", "| ✗", "| ?"))]
    assert len(claims) == 6
    assert "10000 resamples" in text
    assert "| yes |" in claims[0]


def test_latex() -> None:
    text = make_document(EXPERIMENTS["table-2"].tabulate(_outcomes())).to_latex()
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert r"\toprule" in text
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 6
    assert {row.count("&") for row in rows} == {3}
    assert len(re.findall(r"\\textbf", body)) >= 1
    several = make_document(EXPERIMENTS["table-3"].tabulate(())).to_latex()
    assert r"\begin{tabular}{llrrrr}" in several
    assert "rotatebox" not in several
    # A table that is wider than the page is scaled down, and its headings are upright.
    wide = make_document(EXPERIMENTS["table-1b"].tabulate(())).to_latex()
    assert wide.count(r"\resizebox{\ifdim\width>\linewidth") == wide.count(r"\end{tabular}}") == 3
    assert wide.count(r"\rotatebox{90}{fog}") == 3
    assert wide.count("{") == wide.count("}")


def test_published_alone() -> None:
    table = EXPERIMENTS["table-6"].tabulate(())
    assert len(table.rows) == 8
    made = table.to_table("ERM")
    heads = [column.name for column in made.columns]
    assert heads == ["", "", "VLCS", "PACS", "OfficeHome", "TerraIncognita", "average"]
    assert [row[0].whole for row in made.rows] == ["Source", "T3A", "Ours"]
    assert made.rows[2][3].text == "88.90"


def test_the_page_has_tables_claims_and_pictures() -> None:
    experiment = EXPERIMENTS["table-2"]
    outcomes = _outcomes()
    table, verdicts = experiment.tabulate(outcomes), experiment.judge(outcomes)
    files = {"fig.svg": "<svg xmlns='http://www.w3.org/2000/svg'/>", "fig.html": "no picture"}
    page = render_document(make_document(table, verdicts, ["Scale: x."]), "kicker", files)
    walker = walk(page)
    text = "".join(walker.text).replace("\u00a0", " ")
    for claim in experiment.claims:
        assert claim.text in text
    for note in table.notes:
        assert note in text
    assert "75.70" in text
    assert "Scale: x." in text
    images = [a["src"] for tag, a in walker.tags if tag == "img"]
    assert len(images) == 1
    assert images[0].startswith("data:image/svg+xml;base64,")
    assert "default-src 'none'" in page
