"""The tables of a report and the sentences around them; as text for a terminal and for files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
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
    ColumnKind,
    Document,
    Table,
    mark_best,
    plain,
)

_MEAN = "mean error, %"
_MOST_NAMED = 6
_SEVERAL = "the suite sets these itself, and the lowest of them is a choice made on the test stream"
# What changes times without changing errors; names as in the provenance.
_MACHINE = ("machine", "cpu", "device", "n threads", "n cores", "threads", "cores", "gpu")
_UNITS = {
    "domain × seed pairs": "over seeds and domains, each drawn on their own",
    "domains": "over domains, as there is one seed or the seed changes nothing",
    "batches": "over batches, as there is one domain and one seed; batches of one stream depend on "
    "each other, so the true intervals are wider",
}


# Tables


def error_table(group: Group) -> Table:
    """Return errors and cost of all rows of a group."""
    rows = group.rows
    shared = (p for p in range(len(group.protocols)) if group.shares_seeds(p))
    competing = [set(map(id, group.competing(p))) for p in shared]
    rivals = [[id(row) in own for row in rows] for own in competing]
    columns: list[tuple[Column, list[Cell]]] = []

    def add(
        name: str,
        values: Sequence[Measure | float | None],
        show: Callable[[float], str] | None = None,
        kind: ColumnKind = "value",
        choose: Callable[..., float] | None = None,
        digits: int = 1,
    ) -> None:
        """Add a column; the best of each protocol are marked if it is said how to choose them."""
        cells = [_measured(value, digits, show) for value in values]
        for own in rivals if choose else ():
            cells = mark_best(cells, own, choose or min, digits)
        columns.append((Column(name, kind), cells))

    for name in group.columns:
        add(name, [row.errors.get(name) for row in rows], kind="detail", choose=min)
    add(_MEAN, [row.mean for row in rows], choose=min)
    if any(row.is_reference for row in rows) and len(rows) > 1:
        add("vs source, points", [row.gain for row in rows], signed)
    if group.has_guard:
        add("estimated error, %", [row.estimated for row in rows])
        add("by source, %", [row.by_source for row in rows], "{:.0f}".format)
    if group.has_pixels:
        add("mIoU", [row.miou for row in rows], choose=max)
    if len(group.columns) == 1 and all(outcome.result.sums for outcome in group.outcomes):
        add("NLL", [r.measure(lambda o: o.result.nll) for r in rows], choose=min, digits=3)
        add("ECE", [r.measure(lambda o: o.result.ece) for r in rows], choose=min, digits=3)
    add("time, ms/image", [row.ms_per_image for row in rows], format_ms)
    if any(row.peak_memory is not None for row in rows):
        add("memory, MB", [row.peak_memory for row in rows], lambda size: f"{size / 1e6:.0f}")
    columns.append((Column("seeds"), list(map(_count_seeds, rows))))
    heads, cells = zip(*columns, strict=True)
    return Table(
        columns=(Column("method", "label"), *heads),
        rows=tuple(zip(map(name_row, rows), *cells, strict=True)),
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
        row, (low, high) = place.row, place.ranks
        spread = Cell(str(low) if low == high else f"{low} to {high}", low)
        # The table's own number if it is the same, so that both round to the same digits.
        is_same = abs(row.mean.mean - place.error) < 1e-6
        after = place.to_next
        apart = [Cell(ABSENT)] * 2
        if after is not None:
            chance = after.probability
            apart = [Cell(format_difference(after), after.value), Cell(f"{chance:.3f}", chance)]
        cells = (
            plain(place.rank),
            spread if ranking.has_intervals else Cell(ABSENT),
            _measured(row.mean.mean if is_same else place.error),
        )
        rows.append((name_row(row), *cells, *apart))
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
    rows = [[name_row(row), *(_measured(own.get(x)) for x in levels)] for row, own in found]
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


def long_table(summary: Summary) -> Table:
    """Return a line for each job and domain, with all digits."""
    lines: list[dict[str, object]] = []
    for group, row in summary.rows:
        for outcome in row.outcomes:
            first = {"group": group.name, "label": row.label, "method": row.method}
            last = {
                "is_oracle": row.is_oracle,
                "is_complete": not row.missing,
                "protocol_mark": name_mark(row.protocol),
                "folder": outcome.folder,
                "selection": name_selection(summary, row),
                "protocol": describe_protocol(protocol_facts(outcome)),
            }
            lines += [{**first, **line, **last} for line in _list_domains(outcome)]
    cells = [[Cell("") if value is None else value for value in own.values()] for own in lines]
    return Table.of(list(lines[0]), cells)


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
    return long_table(summary).to_csv()


# Sentences


def lead_of(summary: Summary) -> tuple[str, ...]:
    """Return the first note, which limits all numbers, and what the lowest errors are."""
    caveat = split_notes(summary.notes)[0]
    return (*([caveat] if caveat else []), *headlines(summary))


def notes_of(summary: Summary) -> tuple[str, ...]:
    """Return how hyper-parameters were chosen, and the notes that are not in the lead."""
    rest = replace(summary, notes=split_notes(summary.notes)[1])
    return (selection_line(summary), *summary_notes(rest))


def headlines(summary: Summary) -> tuple[str, ...]:
    """Return a sentence for each group on the lowest error, made of its numbers."""
    found = [_headline(group, _is_oracle(summary)) for group in summary.groups]
    if _is_oracle(summary):
        found.append(f"These are {RULES[summary.selection].sentence}.")
    return tuple(found)


def selection_line(summary: Summary) -> str:
    """Return by which rule hyper-parameters were chosen, and for which methods by none."""
    more = ""
    if not _is_oracle(summary):
        found = _list_several(row for _, row in summary.rows)
        more = f"; not so for {found}: {_SEVERAL}" if found else ""
    if summary.selection == "paper":
        more += _list_own(row for _, row in summary.rows)
    if summary.selection in RULES:
        sentence = RULES[summary.selection].sentence
        return f'Selection rule "{summary.selection}": {sentence}{more}.'
    return f"Selection rule: {summary.selection.strip().rstrip('.') or 'not stated'}{more}."


def name_selection(summary: Summary, row: Row) -> str:
    """Return the rule by which the hyper-parameters of a row were chosen."""
    if row.is_one_of_several and not _is_oracle(summary):
        return f"set by the suite, one of {row.n_settings}"
    return summary.selection


def protocol_line(group: Group) -> str:
    """Return the protocol that the rows without a letter share."""
    return f"Protocol: {describe_protocol(group.protocols[0])}."


def caption(group: Group) -> str:
    """Return what the numbers of a table are."""
    parts = [f"Share of wrong predictions in %, lower is better; {_describe_spread(group)}."]
    if group.has_pixels:
        parts.append(
            "mIoU: mean intersection over union in %, over classes and domains, of pixels."
        )
    if group.has_guard:
        parts.append(
            "Estimated error: the mean error as the guard estimates it without labels. By source: "
            "share of images that the source model answered."
        )
    return " ".join([*parts, "Time: median over batches."])


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
    if fewer := _list_fewer_seeds(group):
        notes.append(
            f"The suite asks for fewer seeds in some rows ({fewer}). Gains and the ranking are "
            "over the seeds that rows share; none is marked as the best."
        )
    oracles = [row.label for row in group.rows if row.is_oracle]
    if oracles:
        notes.append(f"Oracle: {', '.join(oracles)} learned from labels: a bound, not a method.")
    return tuple(notes)


def summary_notes(summary: Summary) -> tuple[str, ...]:
    """Return the notes of the suite, the jobs that are missing, and what limits costs."""
    notes = [summary.notes.strip()] if summary.notes.strip() else []
    if summary.unfinished:
        by_row: dict[str, list[int]] = {}
        for entry in summary.unfinished:
            label = f"{entry.label} ({entry.group})" if entry.group else entry.label
            by_row.setdefault(label, []).append(entry.spec.seed)
        listed = "; ".join(f"{label}, {_name_seeds(seeds)}" for label, seeds in by_row.items())
        count = len(summary.unfinished)
        notes.append(f"Not finished, {count} job{'s' * (count > 1)} of the suite: {listed}.")
    if any(row.peak_memory is not None for _, row in summary.rows):
        notes.append(
            "Memory: on a CUDA device the peak of a call, on a CPU that of the whole process, with "
            "libraries, data and model."
        )
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
    few = ranking.n_units < FEW_UNITS
    state = "the intervals are rough" if ranking.has_intervals else "there are no intervals"
    rough = f" With {ranking.n_units} {ranking.kind} {state}." if few else ""
    return (
        f"Paired bootstrap {_UNITS[ranking.kind]} ({ranking.n_units} {ranking.kind}, "
        f"{ranking.n_resamples} resamples, seed {SEED}). P(lower): share of resamples with a lower "
        "error than the next, at most 1 − 2⁻ⁿ for n units. Not corrected for several "
        f"comparisons.{rough}"
    )


def split_notes(notes: str) -> tuple[str, str]:
    """Return the first sentence of a suite's notes, and the others.

    >>> split_notes("A trial, e.g. of 2.5 s: it means nothing. Then more.\\nAnd more.")
    ('A trial, e.g. of 2.5 s: it means nothing.', 'Then more.\\nAnd more.')
    """
    text = notes.strip()
    end = re.search(r"(?<=[.!?…])\s+(?=[^a-z\s])|\n", text)
    return (text, "") if end is None else (text[: end.start()], text[end.end() :].strip())


def format_difference(found: Difference) -> str:
    """Return a difference in points with its interval; a dash if there are too few units."""
    interval = f"{signed(found.low)}, {signed(found.high)}" if found.has_interval else ABSENT
    return f"{signed(found.value)} [{interval}]"


def signed(value: float) -> str:
    """Return a number with its sign.

    >>> signed(-1.25), signed(0.04), signed(-0.01), signed(3)
    ('−1.2', '0.0', '0.0', '+3.0')
    """
    text = f"{abs(value):.1f}"
    return text if text == "0.0" else f"{'−' if value < 0 else '+'}{text}"


def format_ms(value: float) -> str:
    """Return milliseconds with as many digits as mean something.

    >>> format_ms(0.0432), format_ms(1.816), format_ms(12.34), format_ms(1234.5)
    ('0.043', '1.8', '12', '1234')
    """
    if value >= 10:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _headline(group: Group, is_oracle: bool) -> str:
    where = f"{group.name}: " if group.name else ""
    rows = group.competing(0)
    if not rows:
        return f"{where}No row is complete yet."
    if not group.shares_seeds(0):
        return f"{where}The rows are means over different seeds; the ranking is over shared seeds."
    best = [row for row in rows if round(row.mean.mean, 1) == round(rows[0].mean.mean, 1)]
    base = next((row for row in rows if row.is_reference), None)
    lowest = f"{best[0].mean.mean:.1f} %"
    named = " and ".join(row.label for row in best[:_MOST_NAMED])
    if base is not None and base in best and len(rows) > 1:
        return f"{where}No method lowers the mean error of the source model, {lowest}."
    against = ""
    if base is not None and base not in best:
        against = f", against {base.mean.mean:.1f} % without adapting"
    text = f"{where}The lowest mean error is that of {named}, {lowest}{against}"
    picked = "" if is_oracle else _list_several(best)
    return f"{text}{f'; picked on the test itself: {picked}' if picked else ''}."


def _describe_spread(group: Group) -> str:
    """Return what stands behind the numbers, and the uncertainty of those without a spread."""
    several = [row for row in group.rows if len(row.seeds) > 1]
    still = [row for row in several if row.ignores_seed]
    if not several:
        return f"one seed; {_describe_margin(group)}"
    spread = f"mean ± standard deviation over {group.n_seeds} seeds"
    if not still:
        return spread
    same = f"the seed changes nothing here; {_describe_margin(group)}"
    if len(still) == len(several):
        return f"{group.n_seeds} seeds, and {same}"
    return f"{spread}; without ± ({', '.join(row.label for row in still)}), {same}"


def _describe_margin(group: Group) -> str:
    if group.has_pixels:
        return "the uncertainty is unknown, as the pixels of an image are alike"
    row = next(row for row in group.rows if row.protocol == 0)
    n = min(n for n, _ in domain_counts(row.outcomes[0]).values())
    return f"an error measured on {n} images is uncertain by up to ±{margin(n):.1f} points (95 %)"


def _list_fewer_seeds(group: Group) -> str:
    """Return the rows that were asked for with fewer seeds than others; empty if none."""
    most: dict[int, int] = {}
    for row in group.rows:
        n = len(row.seeds) + len(row.missing)
        most[row.protocol] = max(n, most.get(row.protocol, 0))
    return "; ".join(
        f"{row.label} {_name_seeds(row.seeds)}"
        for row in group.rows
        if not row.missing and not row.ignores_seed and len(row.seeds) < most[row.protocol]
    )


def _list_several(rows: Iterable[Row]) -> str:
    counts: dict[str, int] = {}
    for row in rows:
        if row.is_one_of_several:
            counts[row.kind] = max(row.n_settings, counts.get(row.kind, 0))
    return ", ".join(f"{kind} ({count} settings)" for kind, count in counts.items())


def _list_own(rows: Iterable[Row]) -> str:
    """Return which rows have values that are not published; empty if none has."""
    found: dict[str, str] = {}
    for row in rows:
        own = {} if row.is_one_of_several else list_own_settings(row.spec)
        if own:
            found.setdefault(row.label, ", ".join(f"{name} {v}" for name, v in own.items()))
    listed = "; ".join(f"{label} ({text})" for label, text in found.items())
    return f"; the suite itself sets: {listed}" if listed else ""


def _is_oracle(summary: Summary) -> bool:
    return summary.selection in RULES and RULES[summary.selection].is_oracle


def _name_seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


# Cells


def _measured(
    found: Measure | float | None, digits: int = 1, show: Callable[[float], str] | None = None
) -> Cell:
    if found is None:
        return Cell(ABSENT)
    if isinstance(found, Measure):
        return Cell(str(found) if digits == 1 else f"{found.mean:.{digits}f}", found.mean)
    return Cell(show(found) if show else f"{found:.{digits}f}", found)


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


def _list_domains(outcome: Outcome) -> Iterator[dict[str, object]]:
    errors, result, spec = domain_errors(outcome), outcome.result, outcome.entry.spec
    overlaps, estimates = result.miou_by_domain, result.estimated_error_by_domain
    by_source, memory, is_corrupted = result.by_source, result.peak_memory, has_severity(outcome)
    by_domain: dict[str, list[Record]] = {}
    for record in result.counted:
        for name in record.by_domain:
            by_domain.setdefault(name, []).append(record)
    for domain, (n, n_errors) in domain_counts(outcome).items():
        corruption, severity = split_domain(domain, spec)
        is_alone = all(len(record.by_domain) == 1 for record in by_domain[domain])
        yield {
            "seed": spec.seed,
            "domain": domain,
            "corruption": corruption,
            "severity": severity or spec.severities[0] if is_corrupted else None,
            "n": n,
            "n_errors": n_errors,
            "error_percent": errors[domain],
            "miou_percent": 100 * overlaps[domain] if domain in overlaps else None,
            "ms_per_image": median_ms(by_domain[domain]) if is_alone else None,
            "peak_memory_bytes": memory,
            "estimated_error_percent": 100 * estimates[domain] if domain in estimates else None,
            "by_source_percent": None if by_source is None else 100 * by_source,
        }
