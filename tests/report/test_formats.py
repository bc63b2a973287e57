"""The report as text: Markdown, CSV, LaTeX and the terminal."""

from __future__ import annotations

import csv
import io
import re

import pytest
from rich.console import Console

from acclimate.bench.selection import get_rule
from acclimate.report import (
    make_document,
    render_csv,
    summarize,
)
from acclimate.report.facts import describe_protocol, protocol_facts
from acclimate.report.table import escape_latex, escape_markdown
from tests.report.outcomes import HOSTILE, exact
from tests.report.samples import make_large, make_severities, make_suite, make_sweep


def split_cells(line: str) -> list[str]:
    """Cells of a Markdown line: between the bars that are not escaped."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_markdown_has_a_cell_for_every_heading():
    text = make_document(make_suite()).to_markdown()
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)
    assert len(blocks) == 4  # a table and a ranking for each group
    for block in blocks:
        widths = {len(split_cells(line)) for line in block.splitlines()}
        assert len(widths) == 1
        assert set(split_cells(block.splitlines()[1])) == {"---", "---:"}


def test_markdown_numbers_are_those_of_the_table():
    outcomes = [exact("source", 50, 60, method="source"), exact("a", 10, 20), exact("b", 10, 31)]
    first = re.search(
        r"(?:^\|.*\|\n)+", make_document(summarize(outcomes)).to_markdown(), flags=re.MULTILINE
    )
    table = {split_cells(line)[0]: split_cells(line)[1:] for line in first[0].splitlines()}
    heads = ["shift0", "shift1", "mean error, %", "vs source, points"]
    assert table["method"] == [*heads, "time, ms/image", "memory, MB", "seeds"]
    assert table["source"][:4] == ["50.0", "60.0", "55.0", "–"]
    assert table["a"][:4] == ["**10.0**", "**20.0**", "**15.0**", "−40.0"]
    assert table["b"][:4] == ["**10.0**", "31.0", "20.5", "−34.5"]
    assert table["a"][4:] == ["0.1", "400", "1"]


def test_headings_of_the_ranking_have_units():
    text = make_document(make_suite()).to_markdown()
    heads = next(split_cells(line) for line in text.splitlines() if "difference" in line)
    assert heads[:4] == ["method", "rank", "rank, 95 % interval", "mean error, %"]
    assert heads[4:] == ["difference to next, points", "P(lower)"]


def test_markdown_shows_spread_marks_and_notes():
    text = make_document(make_suite()).to_markdown()
    assert re.search(r"\*\*\d+\.\d\*\* ± \d+\.\d", text)
    assert "fewer<sup>a</sup>" in text
    assert "partial<sup>†</sup>" in text
    assert "bound (oracle)" in text
    assert text.count("Protocol: ") == 2
    assert escape_markdown(get_rule("held-out").sentence) in text
    assert "A note." in text


def test_markdown_escapes_names():
    text = make_document(make_suite()).to_markdown()
    assert "<script>" not in text
    assert escape_markdown(HOSTILE) in text
    plain = re.sub(r"\\(.)", r"\1", escape_markdown(HOSTILE))
    assert plain == HOSTILE


def test_csv_has_every_count_with_all_digits():
    summary = make_suite()
    lines = list(csv.DictReader(io.StringIO(render_csv(summary))))
    expected = {}
    for outcome in summary.outcomes:
        for record in outcome.result.records:
            key = (
                outcome.entry.group,
                outcome.entry.label,
                str(outcome.entry.spec.seed),
                record.domain,
            )
            n, wrong = expected.get(key, (0, 0))
            expected[key] = (n + record.n, wrong + record.n_errors)
    found = {(line["group"], line["label"], line["seed"], line["domain"]): line for line in lines}
    assert len(lines) == len(found) == len(expected)
    for key, (n, wrong) in expected.items():
        line = found[key]
        assert (int(line["n"]), int(line["n_errors"])) == (n, wrong)
        assert float(line["error_percent"]) == 100 * (wrong / n)
        assert line["selection"] == "held-out"
        assert "batches of 200" in line["protocol"]
    assert {line["is_oracle"] for line in lines if line["label"] == "bound"} == {"true"}
    assert {line["is_complete"] for line in lines if line["label"] == "partial"} == {"false"}
    assert {line["protocol_mark"] for line in lines if line["label"] == "fewer"} == {"a"}
    assert {line["peak_memory_bytes"] for line in lines if line["label"] == "partial"} == {""}


def test_images_as_they_were_found_have_no_severity():
    """A folder of photographs is not corrupted, whatever the default of a job is."""
    outcome = exact("source", 50, 60, method="source")
    assert "at severity 5" in describe_protocol(protocol_facts(outcome))
    for about in outcome.provenance["data"].values():
        del about["severity"]
    assert "severity" not in describe_protocol(protocol_facts(outcome))
    lines = list(csv.DictReader(io.StringIO(render_csv(summarize([outcome], title="t")))))
    assert {line["severity"] for line in lines} == {""}


def test_csv_tells_corruption_and_severity():
    lines = list(csv.DictReader(io.StringIO(render_csv(make_severities()))))
    assert {(line["domain"], line["corruption"], line["severity"]) for line in lines} == {
        (f"{name}_{severity}", name, str(severity))
        for name in ("fog", "snow")
        for severity in (1, 3, 5)
    }


def environments(text: str) -> list[str]:
    """Names of environments that are closed in the order in which they were opened."""
    stack, closed = [], []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
            closed.append(name)
    assert stack == []
    return closed


def strip_commands(text: str) -> str:
    """What is left of LaTeX without its commands, escapes, formulas and braces of its own."""
    text = re.sub(r"^%.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\\[&%$#_{}]", "", text)
    text = re.sub(r"\$[^$]*\$", "", text)
    text = text.replace("%\n", "\n")  # a comment that eats the end of a line
    return re.sub(r"\\[a-zA-Z]+\*?|\\\\|\\,", "", text)


@pytest.mark.parametrize("make", [make_suite, make_large, make_severities, make_sweep])
def test_latex_is_well_formed(make):
    text = make_document(make()).to_latex()
    closed = environments(text)
    assert closed.count("tabular") == closed.count("table") > 0
    bare = re.sub(r"\\[{}]", "", text)
    depth = 0
    for sign in bare:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    for block in re.findall(r"\\begin\{tabular\}\{(l*r*)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        columns, body = block
        assert body.count(r"\toprule") == body.count(r"\bottomrule") == 1
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(rows) > 1
        for row in rows:
            assert len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1
    # Nothing is left that would mean something: all of it was escaped.
    left = strip_commands(text)
    body = re.sub(r"(?<!\\)&", "", left)
    assert not re.search(r"[$#_^~\\%]", body), re.search(r".{20}[$#_^~\\%].{20}", body)


def test_latex_escapes_every_special_sign():
    shown = escape_latex(HOSTILE)
    assert not re.search(r"(?<!\\)[&%$#_]", shown)
    assert r"\textasciitilde{}" in shown
    assert r"\textasciicircum{}" in shown
    assert r"\textbackslash{}{[}" in shown
    # A row may begin with a name: a star or bracket there would belong to the line before.
    assert escape_latex("*").startswith("{")
    assert escape_latex("[").startswith("{")


def test_latex_has_the_best_in_bold_and_states_protocol_and_selection():
    outcomes = [exact("source", 50, 60, method="source"), exact("a", 10, 20), exact("b", 12, 31)]
    text = make_document(summarize(outcomes)).to_latex()
    row = next(line for line in text.splitlines() if line.startswith("a &"))
    assert row.count(r"\textbf{") == 3
    assert r"\textbf{10.0} & \textbf{20.0} & \textbf{15.0} & $-$40.0" in row
    assert r"\usepackage{booktabs}" in text
    assert "Protocol: model builtin" in text
    assert "hyper-parameters as published" in text


def show(summary, width, terminal=False):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    make_document(summary).show(console)
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_terminal_shows_every_number_at_any_width(width):
    summary = make_large(6)
    text = show(summary, width)
    assert max(map(len, text.splitlines())) <= width
    for row in summary.groups[0].rows:
        for measure in (*row.errors.values(), row.mean):
            assert str(measure) in text


def test_terminal_folds_its_headings():
    outcomes = [exact("source", 50, 60, method="source"), exact("norm", 10, 20)]
    text = show(summarize(outcomes), 80)
    assert re.search(r"method +shift0 +shift1 +error,.% +points", text)  # all in one table
    assert re.search(r"method +rank +interval +error,.% +points +P\(lower\)", text)


def test_terminal_marks_the_best_where_nothing_can_be_bold():
    outcomes = [exact("a", 10, 20), exact("b", 12, 31)]
    assert re.search(
        r"^ *a +10\.0\* +20\.0\* +15\.0\* ", show(summarize(outcomes), 120), re.MULTILINE
    )
    assert "10.0*" not in show(summarize(outcomes), 120, terminal=True)


def test_terminal_states_protocol_selection_and_ranking():
    text = " ".join(show(make_suite(), 120).split())
    assert "Protocol: model builtin" in text
    assert get_rule("held-out").sentence in text
    assert "10000 resamples" in text
    assert "partial †" in text


def test_the_oracle_rule_is_not_to_be_missed():
    assert "an upper bound, not a result" in show(make_sweep(), 300).splitlines()[-1]
