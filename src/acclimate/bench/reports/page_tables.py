"""The tables of the page, and the box that says how and where everything was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TypeVar
from urllib.parse import quote

from acclimate.bench.outcome import Outcome
from acclimate.bench.reports.bootstrap import Ranking
from acclimate.bench.reports.cells import (
    RANKING_HEADS,
    Cell,
    list_cells,
    list_heads,
    list_places,
)
from acclimate.bench.reports.facts import (
    SHORT,
    data_checksums,
    merge_facts,
    origin_facts,
    settings_facts,
)
from acclimate.bench.reports.notes import (
    caption,
    group_notes,
    protocol_line,
    selection_line,
    split_notes,
    summary_notes,
)
from acclimate.bench.reports.plots import severity_errors
from acclimate.bench.reports.tabulate import Group, Row, Summary, measure
from acclimate.methods import get_method
from acclimate.report.table import ABSENT

Item = TypeVar("Item")

_HINT = '<span class="hint" hidden> A click on a heading sorts by it.</span>'


def table_section(summary: Summary) -> str:
    """Return the table of each group with its protocol, its caption and its notes."""
    parts = []
    for group in summary.groups:
        # What sums a row up comes first: a narrow screen shows no more at once.
        n_domains = len(group.columns)
        heads = _turn(list_heads(group), n_domains)
        rows = [(row, _turn(list_cells(group, row), n_domains)) for row in group.rows]
        name = group.name or "all methods"
        parts += [
            f"<h3>{escape(group.name)}</h3>\n" if group.name else "",
            _sortable(f"Errors and cost, {name}", heads, rows),
            f'<p class="note">{escape(caption(group))}{_HINT}</p>\n',
            *(f'<p class="note">{escape(text)}</p>\n' for text in group_notes(group)),
            f'<p class="note">{escape(protocol_line(group))}</p>\n',
        ]
    # The first sentence of the notes stands at the top of the page.
    rest = replace(summary, notes=split_notes(summary.notes)[1])
    texts = (selection_line(summary), *summary_notes(rest))
    return "".join([*parts, *(f'<p class="note">{escape(text)}</p>\n' for text in texts)])


def ranking_table(name: str, ranking: Ranking) -> str:
    """Return the table of a ranking."""
    return _sortable(f"Ranking, {name}", RANKING_HEADS, list_places(ranking))


def protocol_section(summary: Summary) -> str:
    """Return the box of each group: the facts of its protocol, checksums, and what ran it."""
    parts = []
    for group in summary.groups:
        outcomes = [outcome for row in group.rows for outcome in row.outcomes]
        facts = dict(group.protocols[0])
        seeds = sorted({seed for row in group.rows for seed in row.seeds})
        facts["seeds"] = ", ".join(map(str, seeds))
        facts["selection"] = selection_line(summary)
        sums = {name: f"{text[:SHORT]}…" for name, text in _checksums(outcomes).items()}
        listed = "; ".join(f"{name.replace('_', ' ')} {text}" for name, text in sums.items())
        if listed:
            facts["checksums of the images (SHA-256)"] = listed
        parts += [
            f"<h3>{escape(group.name)}</h3>\n" if group.name else "",
            f'<div class="box">{_pairs(facts)}{_pairs(origin_facts(outcomes))}</div>\n',
        ]
    return "".join(parts)


def methods_section(summary: Summary) -> str:
    """Return what each method does, with its paper; and what each row was run with, folded away."""
    names = dict.fromkeys(row.method for _, row in summary.rows)
    items = "".join(f"<dt><code>{escape(name)}</code></dt><dd>{_tell(name)}</dd>" for name in names)
    lines = []
    for group, row in summary.rows:
        facts = merge_facts([settings_facts(outcome) for outcome in row.outcomes])
        told = "; ".join(
            f"{name.removeprefix(f'{row.method}.')} {text}" for name, text in facts.items()
        )
        where = f'<span class="kind">{escape(group.name)}</span>' if group.name else ""
        lines.append(
            f'<tr><th scope="row">{escape(row.label)}{where}</th>'
            f'<td class="words">{escape(told)}</td></tr>\n'
        )
    return (
        f'<dl class="methods">{items}</dl>\n'
        "<details><summary>Hyper-parameters of all rows</summary>"
        '<div class="scroll" role="region" aria-label="Hyper-parameters" tabindex="0">'
        '<table><thead><tr><th scope="col">row</th>'
        '<th scope="col" class="words">what it was run with</th></tr></thead>\n'
        f"<tbody>\n{''.join(lines)}</tbody></table></div></details>\n"
    )


def severity_table(group: Group) -> str:
    """Return the mean error over corruptions at each severity."""
    found = {row: severity_errors(row) for row in group.rows if row.protocol == 0}
    severities = sorted({severity for errors in found.values() for severity in errors})
    rows = [
        (row, [_measured(errors.get(severity)) for severity in severities])
        for row, errors in found.items()
    ]
    name = f"Error by severity, {group.name or 'all methods'}"
    return _sortable(name, [f"severity {severity}" for severity in severities], rows)


def jobs_section(summary: Summary, records: str | None) -> str:
    """Return a table of all jobs with links to what they recorded."""
    lines = []
    for group, row in summary.rows:
        lines += [_job(group, row, outcome, records) for outcome in row.outcomes]
    heads = [("group", "text"), ("seed", "number"), ("error, %", "number"), ("images", "number")]
    heads += [("batches", "number"), ("updates skipped", "number"), ("states restored", "number")]
    heads += [("records", "text")]
    shown = heads if any(group.name for group in summary.groups) else heads[1:]
    note = (
        "One line for each job. The records are JSON lines, one a batch: domain, images, errors, "
        "entropy, time, memory. The result adds the full provenance."
    )
    head = "".join(
        f'<th scope="col" data-sort="{kind}">{escape(name)}</th>' for name, kind in shown
    )
    return (
        f'<p class="note">{note}{_HINT}</p>\n'
        '<div class="scroll" role="region" aria-label="Jobs" tabindex="0">'
        '<table class="sortable"><thead><tr><th scope="col" data-sort="text">method</th>'
        f"{head}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody></table></div>\n"
    )


def _job(group: Group, row: Row, outcome: Outcome, records: str | None) -> str:
    result = outcome.result
    values = (outcome.entry.spec.seed, result.n, len(result.records))
    counts = (result.n_skipped, result.n_restored)
    cells = [
        *([f'<td data-value="{escape(group.name)}">{escape(group.name)}</td>'] * bool(group.name)),
        f'<td data-value="{values[0]}">{values[0]}</td>',
        f'<td data-value="{outcome.error:.6f}">{outcome.error:.2f}</td>',
        *(f'<td data-value="{number}">{number}</td>' for number in (*values[1:], *counts)),
        f'<td data-value="{escape(outcome.folder)}">{_links(outcome, records)}</td>',
    ]
    return f"<tr>{_row_head(row)}{''.join(cells)}</tr>\n"


def _links(outcome: Outcome, records: str | None) -> str:
    if records is None or not outcome.folder:
        return ABSENT
    folder = f"{records.rstrip('/')}/{outcome.folder}" if records else outcome.folder
    place = quote(folder.strip() if folder.startswith((".", "/")) else f"./{folder}")
    spec = outcome.entry.spec
    name = f"{outcome.entry.label}, seed {spec.seed}"
    return " ".join(
        f'<a href="{escape(place)}/{file}" aria-label="{what} of {escape(name)}">{what}</a>'
        for file, what in (("records.jsonl", "records"), ("result.json", "result"))
    )


def _sortable(name: str, heads: Sequence[str], rows: Sequence[tuple[Row, Sequence[Cell]]]) -> str:
    head = "".join(
        f'<th scope="col" data-sort="number">{escape(text.replace("_", " "))}</th>'
        for text in heads
    )
    body = "".join(
        f"<tr{_row_class(row)}>{_row_head(row)}{''.join(map(_cell, cells))}</tr>\n"
        for row, cells in rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{escape(name)}" tabindex="0">'
        '<table class="sortable"><thead><tr><th scope="col" data-sort="text">method</th>'
        f"{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def _turn(items: Sequence[Item], n: int) -> list[Item]:
    return [*items[n:], *items[:n]]


def _row_class(row: Row) -> str:
    return ' class="reference"' if row.is_reference else ""


def _row_head(row: Row) -> str:
    mark = f'<sup class="mark-of-row">{escape(row.mark)}</sup>' if row.mark else ""
    kind = row.name.removeprefix(row.label)
    about = f'<span class="kind">{escape(kind)}</span>' if kind else ""
    return f'<th scope="row" data-value="{escape(row.label)}">{escape(row.label)}{mark}{about}</th>'


def _cell(cell: Cell) -> str:
    number, sign, spread = cell.text.partition(" ± ")
    shown = f"<strong>{escape(number)}</strong>" if cell.is_best else escape(number)
    if sign:
        shown += f'<span class="spread">{escape(sign + spread)}</span>'
    best = ' class="best"' if cell.is_best else ""
    value = "" if cell.value is None else f"{cell.value:.6f}"
    return f'<td data-value="{value}"{best}>{shown}</td>'


def _tell(name: str) -> str:
    method = get_method(name)
    sentence = (method.__doc__ or name).partition("\n")[0].strip()
    sentence += (
        f" A reconstruction: {method.card.reconstruction}." if method.card.reconstruction else ""
    )
    paper = f' <a href="{escape(method.card.paper)}">Paper</a>.' if method.card.paper else ""
    return f"{escape(sentence)}{paper}"


def _measured(errors: Sequence[float] | None) -> Cell:
    if not errors:
        return Cell(ABSENT)
    found = measure(errors)
    return Cell(str(found), found.mean)


def _pairs(pairs: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in pairs.items())
    return f"<dl>{rows}</dl>" if rows else ""


def _checksums(outcomes: Sequence[Outcome]) -> dict[str, str]:
    found: dict[str, str] = {}
    for outcome in outcomes:
        found |= data_checksums(outcome)
    return found
