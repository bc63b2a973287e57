"""One table, five formats: the same cells, and nothing in them that a format would obey."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from acclimate.report.table import ABSENT, Cell, Column, Table, mark_best, plain
from tests.report.outcomes import HOSTILE
from tests.report.records import walk


def make(n_details: int = 3) -> Table:
    """A label that every format must escape, numbers of which one is the best, and a gap."""
    columns = [Column("method", "label"), Column("mean error, %")]
    columns += [Column(f"domain_{index}", "detail") for index in range(n_details)]
    first = [Cell(HOSTILE, HOSTILE, mark="a", about="(oracle)"), Cell("12.3 ± 0.4", 12.345, True)]
    second = [Cell("norm", "norm"), Cell("20.0", 20.0)]
    first += [Cell(f"{index}.5", index + 0.5) for index in range(n_details)]
    second += [Cell(ABSENT)] * n_details
    return Table(
        tuple(columns),
        (tuple(first), tuple(second)),
        "Errors",
        "A caption.",
        "the lowest.",
        ("N.",),
    )


def print_table(table: Table, width: int, is_terminal: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=is_terminal, color_system=None)
    table.show(console)
    return file.getvalue()


@pytest.mark.parametrize("width", [70, 90, 400])
def test_a_terminal_shows_every_cell_and_repeats_the_labels(width):
    table = make(20)
    text = print_table(table, width)
    assert max(map(len, text.splitlines())) <= width
    for cell in (cell for row in table.rows for cell in row[2:]):
        assert cell.text in text
    n_parts = text.count("norm")
    assert n_parts == (1 if width == 400 else text.count("method"))
    assert n_parts > 1 or width == 400
    # What sums a row up stands in the first part.
    assert text.index("12.3") < text.index("0.5")


def test_the_best_is_visible_with_and_without_bold():
    assert "12.3 ± 0.4*" in print_table(make(), 200)
    assert "Marked *: the lowest." in print_table(make(), 200)
    shown = print_table(make(), 200, is_terminal=True)
    assert "0.4*" not in shown
    assert "Bold: the lowest." in shown


def test_markdown_and_latex_mark_and_escape():
    text = make().to_markdown()
    assert "| **12.3** ± 0.4 |" in text
    assert "<script>" not in text
    assert "<sup>a</sup>" in text
    latex = make().to_latex()
    assert r"\textbf{12.3}\,{\scriptsize$\pm$\,0.4}" in latex
    assert r"\textsuperscript{a}" in latex
    assert r"\caption{Errors. A caption. Bold: the lowest.}" in latex


def test_html_escapes_sorts_and_names():
    page = make().to_html()
    walker = walk(page)
    assert [tag for tag, _ in walker.tags].count("script") == 0
    assert HOSTILE in "".join(walker.text)
    values = [a["data-value"] for tag, a in walker.tags if tag == "td"]
    assert values[0] == "12.345000"
    assert values[-1] == ""  # nothing was measured
    assert [a["data-sort"] for tag, a in walker.tags if "data-sort" in a] == [
        *("text", "number"),
        *["number"] * 3,
    ]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_csv_has_no_formulas(start):
    formula = f'{start}HYPERLINK("http://example.org";"x")'
    table = Table.of(["label", "value"], [[formula, -1.5], ["a", 2], ["b", None], ["c", True]])
    lines = list(csv.reader(io.StringIO(table.to_csv(), newline="")))
    assert lines[1][0] == f"'{formula}"
    assert [line[1] for line in lines[1:]] == ["-1.5", "2", "", "true"]  # numbers stay numbers


def test_csv_has_all_digits():
    (line,) = list(csv.DictReader(io.StringIO(make().to_csv())))[:1]
    assert line["mean error, %"] == "12.345"
    assert line["method"] == HOSTILE


def test_the_best_is_chosen_as_shown_among_those_that_compete():
    cells = [Cell("1.0", 1.04), Cell("1.0", 0.96), Cell("0.5", 0.5), Cell(ABSENT)]
    assert [c.best for c in mark_best(cells, [True, True, False, True])] == [1, 1, 0, 0]
    assert [c.best for c in mark_best(cells, [True] * 4, max)] == [1, 1, 0, 0]
    assert not any(c.best for c in mark_best(cells, [True, False, False, True]))  # alone


def test_details_come_last_where_space_is_short():
    columns = (Column("a", "label"), Column("b", "detail"), Column("c"))
    table = Table(columns, (tuple(map(plain, "abc")),))
    assert [column.name for column in table.details_last().columns] == ["a", "c", "b"]
