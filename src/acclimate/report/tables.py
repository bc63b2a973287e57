"""The tables of a report and the sentences around them; as text for a terminal and for files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from acclimate.bench.selection import RULES
from acclimate.bench.suite import Outcome
from acclimate.metrics import Record
from acclimate.report.facts import (
    describe_protocol,
    domain_counts,
    domain_errors,
    find_differences,
    has_severity,
    list_own_settings,
    merge_facts,
    origin_facts,
    protocol_facts,
    settings_facts,
    split_domain,
)
from acclimate.report.stats import FEW_UNITS, SEED, Difference, Measure, Ranking, margin
from acclimate.report.summary import Group, Row, Summary, median_ms, name_mark
from acclimate.report.table import (
    ABSENT,
    Cell,
    Column,
    Document,
    Table,
    format_ms,
    format_number,
    mark_best,
    plain,
)

_MEAN = "mean error, %"
_MOST_NAMED = 6
_SEVERAL = "the suite sets these itself, and the lowest of them is a choice made on the test stream"
# What changes times without changing errors; names as in the provenance.
_MACHINE = ("machine", "cpu", "device", "n threads", "n cores", "threads", "cores", "gpu")


# Tables


def error_table(group: Group) -> Table:
    """Return errors and cost of all rows of a group; columns without any number are left out."""
    rows = group.rows
    protocols = [p for p in range(len(group.protocols)) if group.shares_seeds(p)]
    rivals = [set(group.competing(protocol)) for protocol in protocols]
    columns = [(Column("method", "label"), list(map(name_row, rows)))]

    def add(
        name: str,
        values: Sequence[Measure | float | None],
        show: Callable[[Any], str] = format_value,
        best: Callable[..., float] | None = None,
        digits: int = 1,
    ) -> None:
        """Add a column; the best of each protocol are marked if it is said how to choose them."""
        if any(value is not None for value in values):
            cells = [_cell(value, show) for value in values]
            for competing in rivals if best else ():
                cells = mark_best(cells, [row in competing for row in rows], best or min, digits)
            columns.append((Column(name, "detail" if name in group.columns else "value"), cells))

    for name in group.columns:
        add(name, [row.errors.get(name) for row in rows], best=min)
    add(_MEAN, [row.mean for row in rows], best=min)
    add("vs source, points", [row.gain for row in rows], format_difference)
    add("estimated error, %", [row.estimated for row in rows])
    add("by source, %", [row.by_source for row in rows], "{:.0f}".format)
    add("mIoU", [row.miou for row in rows], best=max)
    if len(group.columns) == 1 and all(outcome.result.sums for outcome in group.outcomes):
        get = {"NLL": lambda own: own.result.nll, "ECE": lambda own: own.result.ece}
        for name, own in get.items():
            add(name, [row.measure(own) for row in rows], "{.mean:.3f}".format, min, digits=3)
    add("time, ms/image", [row.ms_per_image for row in rows], format_ms)
    add("memory, MB", [row.peak_memory for row in rows], lambda size: f"{size / 1e6:.0f}")
    columns.append((Column("seeds"), list(map(_count_seeds, rows))))
    heads, cells = zip(*columns, strict=True)
    return Table(
        columns=heads,
        rows=tuple(zip(*cells, strict=True)),
        name=f"Errors and cost, {group.name or 'all methods'}",
        caption=caption(group),
        best="the best of the complete rows of a protocol, without oracles.",
        notes=group_notes(group),
        references=frozenset(i for i, row in enumerate(rows) if row.is_reference),
    )


def ranking_table(ranking: Ranking, name: str = "") -> Table:
    """Return ranks with intervals, and how far each row is from the next."""
    rows = []
    for place in ranking.places:
        row, after, (low, high) = place.row, place.to_next, place.ranks
        spread = Cell(str(low) if low == high else f"{low} to {high}", low)
        # The table's own number if it is the same, so that both round to the same digits.
        is_same = abs(row.mean.mean - place.error) < 1e-6
        cells = [
            name_row(row),
            plain(place.rank),
            spread if ranking.has_intervals else Cell(ABSENT),
            _cell(row.mean.mean if is_same else place.error),
            Cell(format_interval(after), after.value) if after else Cell(ABSENT),
            _cell(after.probability if after else None, "{:.3f}".format),
        ]
        rows.append(tuple(cells))
    heads = ("rank", "rank, 95 % interval", _MEAN, "difference to next, points", "P(lower)")
    return Table(
        columns=(Column("method", "label"), *map(Column, heads)),
        rows=tuple(rows),
        name=f"Ranking, {name or 'all methods'}",
        caption=ranking_note(ranking),
    )


def severity_table(group: Group) -> Table:
    """Return the mean error over corruptions at each severity."""
    found = [(row, row.severity_errors()) for row in group.rows if row.protocol == 0]
    levels = sorted({severity for _, errors in found for severity in errors})
    heads = ["method", *(f"severity {level}" for level in levels)]
    rows = [[name_row(row), *(_cell(own.get(x)) for x in levels)] for row, own in found]
    return Table.of(heads, rows, name=f"Error by severity, {group.name or 'all methods'}")


def settings_table(summary: Summary) -> Table:
    """Return the hyper-parameters of all rows."""
    rows = []
    for group, row in summary.rows:
        facts = merge_facts([settings_facts(outcome) for outcome in row.outcomes])
        texts = [f"{name.removeprefix(f'{row.method}.')} {text}" for name, text in facts.items()]
        rows.append((Cell(row.label, row.label, about=group.name), plain("; ".join(texts))))
    columns = (Column("row", "label"), Column("settings", "words"))
    return Table(columns, tuple(rows), name="Hyper-parameters")


def jobs_table(summary: Summary, records: str | None) -> Table:
    """Return a line for each job, with links to its records.

    `records` is the folder of the suite as seen from the page: "" if the page is in it, None for no
    links.
    """
    has_groups = any(group.name for group in summary.groups)
    heads = ["method", *["group"] * has_groups, "seed", "error, %", "images", "batches"]
    heads += ["updates skipped", "states restored", "records"]
    rows = []
    for group, row in summary.rows:
        for outcome in row.outcomes:
            result = outcome.result
            counts = (result.n, len(result.records), result.n_skipped, result.n_restored)
            error = Cell(f"{outcome.error:.2f}", outcome.error)
            links = Cell(ABSENT, outcome.folder, links=_link(outcome, records))
            place = (*[plain(group.name)] * has_groups, outcome.entry.spec.seed)
            rows.append([name_row(row), *place, error, *counts, links])
    return Table.of(heads, rows, name="Jobs")


def name_row(row: Row) -> Cell:
    """Return the cell that names a row."""
    return Cell(row.label, row.label, mark=row.mark, about=row.about)


# Text


def make_document(summary: Summary) -> Document:
    """Return all tables of a report with their protocols, notes and rankings."""
    parts = []
    for group in summary.groups:
        errors = error_table(group)
        title = ", ".join(text for text in (summary.title, group.name) if text)
        shown = replace(errors, name=title, notes=(protocol_line(group), *errors.notes))
        rankings = (ranking_table(ranking, title) for ranking in group.rankings)
        parts.append((group.name, (shown, *rankings)))
    return Document(summary.title, tuple(parts), lead_of(summary), notes_of(summary))


def render_csv(summary: Summary) -> str:
    """Return a line for each job and domain, with all digits."""
    lines = [
        line
        for _, row in summary.rows
        for outcome in row.outcomes
        for line in _list_domains(summary, row, outcome)
    ]
    cells = [["" if value is None else value for value in line.values()] for line in lines]
    return Table.of(list(lines[0]), cells).to_csv()


def _list_domains(summary: Summary, row: Row, outcome: Outcome) -> Iterator[dict[str, object]]:
    errors, result, entry = domain_errors(outcome), outcome.result, outcome.entry
    overlaps, estimates = result.miou_by_domain, result.estimated_error_by_domain
    by_source, spec, is_corrupted = result.by_source, entry.spec, has_severity(outcome)
    is_chosen = row.is_one_of_several and not _is_oracle(summary)
    by_domain: dict[str, list[Record]] = {}
    for record in result.counted:
        for name in record.by_domain:
            by_domain.setdefault(name, []).append(record)
    for domain, (n, n_errors) in domain_counts(outcome).items():
        corruption, severity = split_domain(domain, spec)
        is_alone = all(len(record.by_domain) == 1 for record in by_domain[domain])
        yield {
            "group": entry.group,
            "label": row.label,
            "method": row.method,
            "seed": spec.seed,
            "domain": domain,
            "corruption": corruption,
            "severity": severity or spec.severities[0] if is_corrupted else None,
            "n": n,
            "n_errors": n_errors,
            "error_percent": errors[domain],
            "miou_percent": 100 * overlaps[domain] if domain in overlaps else None,
            "ms_per_image": median_ms(by_domain[domain]) if is_alone else None,
            "peak_memory_bytes": result.peak_memory,
            "estimated_error_percent": 100 * estimates[domain] if domain in estimates else None,
            "by_source_percent": None if by_source is None else 100 * by_source,
            "is_oracle": row.is_oracle,
            "is_complete": not row.missing,
            "protocol_mark": name_mark(row.protocol),
            "folder": outcome.folder,
            "selection": f"set by the suite, one of {row.n_settings}"
            if is_chosen
            else summary.selection,
            "protocol": describe_protocol(protocol_facts(outcome)),
        }


# Sentences


def lead_of(summary: Summary) -> tuple[str, ...]:
    """Return the first line of the notes, which limits all numbers, and the lowest errors."""
    return (*summary.notes.strip().splitlines()[:1], *headlines(summary))


def notes_of(summary: Summary) -> tuple[str, ...]:
    """Return how hyper-parameters were chosen, and the notes that are not in the lead."""
    return (selection_line(summary), *summary.notes.strip().splitlines()[1:], *job_notes(summary))


def headlines(summary: Summary) -> tuple[str, ...]:
    """Return a sentence for each group on the lowest error, made of its numbers."""
    found = [
        f"{group.name}: {_headline(group, summary)}" if group.name else _headline(group, summary)
        for group in summary.groups
    ]
    if _is_oracle(summary):
        found.append(f"These are {RULES[summary.selection].sentence}.")
    return tuple(found)


def _headline(group: Group, summary: Summary) -> str:
    rows = group.competing(0)
    if not rows:
        return "No row is complete yet."
    if not group.shares_seeds(0):
        return "The rows are means over different seeds; the ranking is over shared seeds."
    lowest = format_number(rows[0].mean.mean)
    best = [row for row in rows if format_number(row.mean.mean) == lowest]
    base = next((row for row in rows if row.is_reference), None)
    if base in best and len(rows) > 1:
        return f"No method lowers the mean error of the source model, {lowest} %."
    named = " and ".join(row.label for row in best[:_MOST_NAMED])
    text = f"The lowest mean error is that of {named}, {lowest} %"
    if base is not None and base not in best:
        text += f", against {format_number(base.mean.mean)} % without adapting"
    picked = "" if _is_oracle(summary) else _list_several(best)
    return f"{text}; picked on the test itself: {picked}." if picked else f"{text}."


def selection_line(summary: Summary) -> str:
    """Return by which rule hyper-parameters were chosen, and for which methods by none."""
    rows = [row for _, row in summary.rows]
    several = "" if _is_oracle(summary) else _list_several(rows)
    more = f"; not so for {several}: {_SEVERAL}" if several else ""
    own = _list_own(rows) if summary.selection == "paper" else ""
    more += f"; the suite itself sets: {own}" if own else ""
    if summary.selection in RULES:
        sentence = RULES[summary.selection].sentence
        return f'Selection rule "{summary.selection}": {sentence}{more}.'
    return f"Selection rule: {summary.selection.strip().rstrip('.') or 'not stated'}{more}."


def protocol_line(group: Group) -> str:
    """Return the protocol that the rows without a letter share."""
    return f"Protocol: {describe_protocol(group.protocols[0])}."


def caption(group: Group) -> str:
    """Return what the numbers of a table are."""
    parts = ["Share of wrong predictions in %, lower is better."]
    has_spread = [row.mean.deviation is not None for row in group.rows]
    if any(has_spread):
        parts.append(f"Mean ± standard deviation over {group.n_seeds} seeds.")
    if not all(has_spread):
        counts = domain_counts(group.drawn[0].outcomes[0]).values()
        n = min(n for n, _ in counts)
        limit = f"an error on {n} images is uncertain by up to ±{margin(n):.1f} points (95 %)"
        parts.append(
            "Without ±: one seed, or seeds that change nothing"
            + ("." if group.has_pixels else f"; {limit}.")
        )
    if group.has_pixels:
        parts.append("mIoU: mean intersection over union in %, over classes and domains.")
    if any(row.by_source is not None for row in group.rows):
        parts.append(
            "Estimated error: as the guard estimates it without labels. By source: share of images "
            "that the source model answered."
        )
    parts.append("Time: median over batches.")
    if any(row.peak_memory is not None for row in group.rows):
        parts.append("Memory: peak, on a CPU that of the whole process.")
    return " ".join(parts)


def group_notes(group: Group) -> tuple[str, ...]:
    """Return what the marks of a table mean, and what else limits it."""
    notes = []
    for index, facts in enumerate(group.protocols[1:], start=1):
        names = ", ".join(row.label for row in group.rows if row.protocol == index)
        apart = "; ".join(find_differences(facts, group.protocols[0]))
        notes.append(
            f"{name_mark(index)}: another protocol ({names}): {apart}. Not comparable with rows "
            "without this letter."
        )
    notes += [
        f"†: incomplete: {row.label} has {_name_seeds(row.seeds)} but not "
        f"{_name_seeds(row.missing)}; it is not ranked."
        for row in group.rows
        if row.missing
    ]
    if several := _list_several(group.rows):
        notes.append(f"‡: one of several settings of a method, {several}: {_SEVERAL}.")
    fewer = "; ".join(
        f"{row.label} {_name_seeds(row.seeds)}"
        for row in group.rows
        if len(row.seeds) < group.n_seeds and not row.missing and not row.ignores_seed
    )
    if fewer:
        notes.append(
            f"The suite asks for fewer seeds in some rows ({fewer}). Gains and the ranking are "
            "over the seeds that rows share; none is marked as the best."
        )
    oracles = [row.label for row in group.rows if row.is_oracle]
    if oracles:
        notes.append(f"Oracle: {', '.join(oracles)} learned from labels: a bound, not a method.")
    return tuple(notes)


def job_notes(summary: Summary) -> tuple[str, ...]:
    """Return which jobs of the suite are missing, and in what the machines of the others differ."""
    notes, count = [], len(summary.unfinished)
    if count:
        by_row: dict[str, list[int]] = {}
        for entry in summary.unfinished:
            label = f"{entry.label} ({entry.group})" if entry.group else entry.label
            by_row.setdefault(label, []).append(entry.spec.seed)
        listed = "; ".join(f"{label}, {_name_seeds(seeds)}" for label, seeds in by_row.items())
        notes.append(f"Not finished, {count} job{'s' * (count > 1)} of the suite: {listed}.")
    apart = [
        name
        for name, text in origin_facts(summary.outcomes).items()
        if name.split(": ")[0] in _MACHINE and ("; " in text or " values: " in text)
    ]
    if apart:
        notes.append(f"Times are not comparable exactly: they differ in {', '.join(apart)}.")
    return tuple(notes)


def ranking_note(ranking: Ranking) -> str:
    """Return how a ranking was made."""
    units = f"{ranking.n_units} {ranking.kind}"
    text = (
        f"Paired bootstrap ({units}, {ranking.n_resamples} resamples, seed {SEED}). P(lower): "
        "share of resamples with a lower error than the next, at most 1 − 2⁻ⁿ for n units. Not "
        "corrected for several comparisons."
    )
    if ranking.kind == "batches":
        text += " Batches of a stream depend on each other: the true intervals are wider."
    if ranking.n_units < FEW_UNITS:
        state = "the intervals are rough" if ranking.has_intervals else "there are no intervals"
        text += f" With {units} {state}."
    return text


def format_value(value: Measure | float) -> str:
    """Return a number in percent, with its spread if it has one."""
    return str(value) if isinstance(value, Measure) else format_number(value)


def format_difference(value: float) -> str:
    """Return a difference in points, with its sign unless it is zero."""
    text = format_number(value, sign="+z")
    return "0.0" if text == "+0.0" else text


def format_interval(found: Difference) -> str:
    """Return a difference in points with its interval; a dash if there are too few units."""
    ends = map(format_difference, (found.low, found.high))
    return f"{format_difference(found.value)} [{', '.join(ends) if found.has_interval else ABSENT}]"


def _list_several(rows: Iterable[Row]) -> str:
    counts = {row.kind: row.n_settings for row in rows if row.is_one_of_several}
    return ", ".join(f"{kind} ({count} settings)" for kind, count in counts.items())


def _list_own(rows: Iterable[Row]) -> str:
    """Return which rows have values that are not published; empty if none has."""
    found = {row.label: list_own_settings(row.spec) for row in rows if not row.is_one_of_several}
    return "; ".join(
        f"{label} ({', '.join(f'{name} {value}' for name, value in own.items())})"
        for label, own in found.items()
        if own
    )


def _is_oracle(summary: Summary) -> bool:
    return summary.selection in RULES and RULES[summary.selection].is_oracle


def _name_seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


# Cells


def _cell(found: Measure | float | None, show: Callable[[Any], str] = format_value) -> Cell:
    if found is None:
        return Cell(ABSENT)
    return Cell(show(found), found.mean if isinstance(found, Measure) else found)


def _count_seeds(row: Row) -> Cell:
    n = len(row.seeds)
    return Cell(f"{n} of {n + len(row.missing)}" if row.missing else str(n), n)


def _link(outcome: Outcome, records: str | None) -> tuple[tuple[str, str, str], ...]:
    if records is None or not outcome.folder:
        return ()
    folder = f"{records.rstrip('/')}/{outcome.folder}" if records else outcome.folder
    address = quote(folder.strip() if folder.startswith((".", "/")) else f"./{folder}")
    name = f"{outcome.entry.label}, seed {outcome.entry.spec.seed}"
    files = (("records.jsonl", "records"), ("result.json", "result"))
    return tuple((f"{address}/{file}", what, f"{what} of {name}") for file, what in files)
