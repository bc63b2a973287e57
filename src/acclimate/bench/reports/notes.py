"""What stands around the tables in words: protocol, selection, marks, findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from acclimate.bench.reports.bootstrap import FEW_UNITS, SEED, Difference, Ranking
from acclimate.bench.reports.facts import (
    describe_protocol,
    domain_counts,
    find_differences,
    list_own_settings,
    origin_facts,
)
from acclimate.bench.reports.tabulate import Group, Row, Summary, name_mark
from acclimate.bench.selection import RULES
from acclimate.report.table import margin

_MOST_NAMED = 6
_PUBLISHED = "paper"
_SEVERAL = "the suite sets these itself, and the lowest of them is a choice made on the test stream"
# What changes times without changing errors; names as in the provenance.
_MACHINE = ("machine", "cpu", "device", "n threads", "n cores", "threads", "cores", "gpu")


def selection_line(summary: Summary) -> str:
    """Return by which rule hyper-parameters were chosen, and for which methods by none."""
    several = ""
    if not _is_oracle(summary):
        found = _list_several(row for _, row in summary.rows)
        several = f"; not so for {found}: {_SEVERAL}" if found else ""
    if summary.selection == _PUBLISHED:
        several += _list_own(row for _, row in summary.rows)
    if summary.selection in RULES:
        sentence = RULES[summary.selection].sentence
        return f'Selection rule "{summary.selection}": {sentence}{several}.'
    return f"Selection rule: {summary.selection.strip().rstrip('.') or 'not stated'}{several}."


def name_selection(summary: Summary, row: Row) -> str:
    """Return the rule by which the hyper-parameters of a row were chosen."""
    if row.is_one_of_several and not _is_oracle(summary):
        return f"set by the suite, one of {row.n_settings}"
    return summary.selection


def protocol_line(group: Group) -> str:
    """Return the protocol that the rows without a letter share."""
    return f"Protocol: {describe_protocol(group.protocols[0])}."


def caption(group: Group, mark: str = "Bold") -> str:
    """Return what the numbers of a table are, and how the best of them are marked."""
    overlap = (
        " Every pixel is a prediction. mIoU: mean intersection over union of the classes in %, "
        "mean over domains, higher is better."
        if group.has_pixels
        else ""
    )
    guard = (
        " Estimated error: mean error as the guard estimates it without labels, on the batches "
        "that have an estimate. By source: share of images that the source model answered."
        if group.has_guard
        else ""
    )
    return (
        f"Share of wrong predictions in %, lower is better; {_spread(group)}.{overlap}{guard} "
        f"Time: median over batches. {mark}: the best of the complete rows that share a protocol, "
        "oracles apart; equal figures share it."
    )


def group_notes(group: Group) -> tuple[str, ...]:
    """Return the sentences that the marks of a table refer to, and what else limits it."""
    notes = []
    for place, facts in enumerate(group.protocols[1:], start=1):
        names = ", ".join(row.label for row in group.rows if row.protocol == place)
        apart = "; ".join(find_differences(facts, group.protocols[0]))
        notes.append(
            f"{name_mark(place)}: another protocol ({names}): {apart}. Not to be compared with "
            "rows that do not have this letter."
        )
    notes += [
        f"†: incomplete: {row.label} has {_seeds(row.seeds)} but not {_seeds(row.missing)}; its "
        "figures are over those it has, and it is not ranked."
        for row in group.rows
        if row.missing
    ]
    if several := _list_several(group.rows):
        notes.append(f"‡: one of several settings of a method, {several}: {_SEVERAL}.")
    if note := _note_seeds(group):
        notes.append(note)
    oracles = [row.label for row in group.rows if row.is_oracle]
    if oracles:
        notes.append(f"Oracle: {', '.join(oracles)} learned from labels: a bound, not a method.")
    return tuple(notes)


def summary_notes(summary: Summary) -> tuple[str, ...]:
    """Return what is to be said of the whole: the suite's notes, what is missing, and costs."""
    notes = [summary.notes.strip()] if summary.notes.strip() else []
    if summary.unfinished:
        by_row: dict[str, list[int]] = {}
        for entry in summary.unfinished:
            label = f"{entry.label} ({entry.group})" if entry.group else entry.label
            by_row.setdefault(label, []).append(entry.spec.seed)
        listed = "; ".join(f"{label}, {_seeds(seeds)}" for label, seeds in by_row.items())
        count = len(summary.unfinished)
        notes.append(f"Not finished, {count} job{'s' * (count > 1)} of the suite: {listed}.")
    return (*notes, *_cost_notes(summary))


def ranking_note(ranking: Ranking) -> str:
    """Return how a ranking was made, with all that is needed to make it again."""
    what = {
        "domain × seed pairs": "seeds are drawn anew, and domains are, each on their own",
        "domains": "there is one seed, or the seed changes nothing, so the domains are drawn anew",
        "batches": "there is one domain and one seed, so the batches are drawn anew; as batches of "
        "one stream depend on each other, the true intervals are wider",
    }[ranking.kind]
    few = ranking.n_units < FEW_UNITS
    told = "the intervals are rough" if ranking.has_intervals else "there are no intervals"
    rough = f" With {ranking.n_units} {ranking.kind} {told}." if few else ""
    return (
        f"Paired bootstrap: {what}, the same for all methods ({ranking.n_units} {ranking.kind}, "
        f"{ranking.n_resamples} resamples, seed {SEED}). An interval holds the middle 95 % of the "
        "differences to the next method; P(lower) is the share of resamples in which the error is "
        "lower than that of the next, at most 1 − 2⁻ⁿ for n units: few agree easily by chance. "
        f"Several pairs are looked at, and nothing is corrected for that.{rough}"
    )


def findings(summary: Summary, rankings: Sequence[Sequence[Ranking]]) -> tuple[str, ...]:
    """Return a sentence for each group on what its table shows, made of its numbers."""
    found = [_finding(group, own) for group, own in zip(summary.groups, rankings, strict=True)]
    if _is_oracle(summary):
        found.append(f"Mind that these are {RULES[summary.selection].sentence}.")
    else:
        picks = [_tell_pick(group) for group in summary.groups]
        found = [f"{one} {pick}".strip() for one, pick in zip(found, picks, strict=True)]
    return tuple(found)


def split_notes(notes: str) -> tuple[str, str]:
    """Return the first sentence of a suite's notes, and the others.

    >>> split_notes("A trial, e.g. of 2.5 s: it means nothing. Then more.\\nAnd more.")
    ('A trial, e.g. of 2.5 s: it means nothing.', 'Then more.\\nAnd more.')
    """
    text = notes.strip()
    end = re.search(r"(?<=[.!?…])\s+(?=[^a-z\s])|\n", text)
    return (text, "") if end is None else (text[: end.start()], text[end.end() :].strip())


def format_difference(found: Difference) -> str:
    """Return a difference in points with its interval; a dash if there are too few units for it."""
    interval = f"{signed(found.low)}, {signed(found.high)}" if found.has_interval else "–"
    return f"{signed(found.value)} [{interval}]"


def signed(value: float) -> str:
    """Return a number with its sign, as readers of text expect it.

    >>> signed(-1.25), signed(0.04), signed(-0.01), signed(3)
    ('−1.2', '0.0', '0.0', '+3.0')
    """
    text = f"{abs(value):.1f}"
    if text == "0.0":
        return text
    return f"{'−' if value < 0 else '+'}{text}"


def format_ms(value: float) -> str:
    """Return milliseconds with as many digits as mean something.

    >>> format_ms(0.0432), format_ms(1.816), format_ms(12.34), format_ms(1234.5)
    ('0.043', '1.8', '12', '1234')
    """
    if value >= 10:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def format_memory(value: int | None) -> str:
    """Return bytes as megabytes; a dash if they were not measured."""
    return "–" if value is None else f"{value / 1e6:.0f}"


def _finding(group: Group, rankings: Sequence[Ranking]) -> str:
    where = f"{group.name}: " if group.name else ""
    rows = group.competing(0)
    if not rows:
        return f"{where}No row is complete yet."
    if not group.shares_seeds(0):
        return (
            f"{where}The rows are means over different seeds: which is best is told by the "
            "ranking, which is over those that they share."
        )
    best = _find_best(group)
    lowest = round(best[0].mean.mean, 1)
    base = next((row for row in rows if row.is_reference), None)
    named = " and ".join(row.label for row in best[:_MOST_NAMED])
    if base is None or len(rows) == 1:
        sentence = f"The mean error is lowest with {named}: {lowest:.1f} %"
    elif base in best:
        sentence = f"No method lowers the mean error of the source model, {lowest:.1f} %"
    else:
        sentence = (
            f"The lowest mean error is that of {named}, {lowest:.1f} %, against "
            f"{base.mean.mean:.1f} % without adapting"
        )
    main = next((ranking for ranking in rankings if ranking.protocol == 0), None)
    # Where rows have different seeds, the ranking is over those that they share.
    lead = _lead(main, base) if main is not None and main.places[0].row in best else ""
    return f"{where}{sentence}{lead}."


def _find_best(group: Group) -> list[Row]:
    """Return the rows of the common protocol with the lowest error, as far as is shown."""
    rows = group.competing(0)
    return [row for row in rows if round(row.mean.mean, 1) == round(rows[0].mean.mean, 1)]


def _tell_pick(group: Group) -> str:
    """Return that the best was picked from several settings by the test itself; empty if not."""
    best = _find_best(group)
    if any(row.is_reference for row in best):
        return ""
    picked: dict[str, list[Row]] = {}
    for row in best:
        if row.is_one_of_several:
            picked.setdefault(row.kind, []).append(row)
    sentences = []
    for kind, rows in picked.items():
        names = " and ".join(row.label for row in rows)
        is_one = len(rows) == 1
        sentences.append(
            f"Of the {rows[0].n_settings} settings of {kind}, {names} {'is' if is_one else 'are'} "
            f"lowest here; {'it was' if is_one else 'they were'} found on the test itself."
        )
    return " ".join(sentences)


def _list_several(rows: Iterable[Row]) -> str:
    counts: dict[str, int] = {}
    for row in rows:
        if row.is_one_of_several:
            counts[row.kind] = max(row.n_settings, counts.get(row.kind, 0))
    return ", ".join(f"{kind} ({count} settings)" for kind, count in counts.items())


def _list_own(rows: Iterable[Row]) -> str:
    """Return which rows have values that nobody published; empty if none has."""
    found: dict[str, str] = {}
    for row in rows:
        own = list_own_settings(row.outcomes[0].entry.spec)
        if own and not row.is_one_of_several:
            found.setdefault(row.label, ", ".join(f"{name} {v}" for name, v in own.items()))
    told = "; ".join(f"{label} ({text})" for label, text in found.items())
    return f"; the suite itself sets: {told}" if told else ""


def _is_oracle(summary: Summary) -> bool:
    return summary.selection in RULES and RULES[summary.selection].is_oracle


def _lead(ranking: Ranking, base: Row | None) -> str:
    if ranking.places[0].to_next is None or len(ranking.places) < 3:
        return ""
    ahead, second = ranking.places[0].to_next, ranking.places[1].row
    # A tie has been told: both are named as the lowest.
    if second is base or abs(ahead.value) < 0.05:
        return ""
    low, high = -ahead.high, -ahead.low
    few = f"from {ahead.n_units} {ahead.kind} only" if ahead.n_units < FEW_UNITS else ""
    if not ahead.has_interval:
        about = [few, "too few for an interval, so the order of these two is open"]
    else:
        about = [f"95 % interval {signed(low)} to {signed(high)}", few]
        about += ["so the order of these two is open"] * (low <= 0)
    return (
        f"; {ranking.places[0].row.label} is {-ahead.value:.1f} points ahead of {second.label} "
        f"({', '.join(text for text in about if text)})"
    )


def _spread(group: Group) -> str:
    """Return what stands behind the figures, and how uncertain those are that have nothing."""
    several = [row for row in group.rows if len(row.seeds) > 1]
    still = [row for row in several if row.ignores_seed]
    if not several:
        return f"one seed; {_margin(group)}"
    if len(still) == len(several):
        return f"{group.n_seeds} seeds, and the seed changes nothing here; {_margin(group)}"
    spread = f"mean ± standard deviation over {group.n_seeds} seeds"
    if still:
        names = ", ".join(row.label for row in still)
        spread += f"; where no ± stands ({names}), the seed changes nothing here; {_margin(group)}"
    return spread


def _note_seeds(group: Group) -> str:
    """Return which rows were asked for with fewer seeds than others; empty if none."""
    most = {row.protocol: 0 for row in group.rows}
    for row in group.rows:
        most[row.protocol] = max(most[row.protocol], len(row.seeds) + len(row.missing))
    fewer = [
        row
        for row in group.rows
        if not row.missing and not row.ignores_seed and len(row.seeds) < most[row.protocol]
    ]
    if not fewer:
        return ""
    told = "; ".join(f"{row.label} {_seeds(row.seeds)}" for row in fewer)
    return (
        f"The suite asks for fewer seeds in some rows ({told}). What is said against the source "
        "model, and the ranking, are over the seeds that rows share; none is marked as the best."
    )


def _margin(group: Group) -> str:
    if group.has_pixels:
        return "how uncertain they are is not told, as the pixels of an image are alike"
    row = next(row for row in group.rows if row.protocol == 0)
    n = min(n for n, _ in domain_counts(row.outcomes[0]).values())
    return f"an error measured on {n} images is uncertain by up to ±{margin(n):.1f} points (95 %)"


def _cost_notes(summary: Summary) -> list[str]:
    notes = []
    if any(row.peak_memory is not None for _, row in summary.rows):
        notes.append(
            "Memory in MB: on a CUDA device the peak of a call, on a CPU that of the whole "
            "process, libraries, data and model included."
        )
    facts = origin_facts(summary.outcomes)
    apart = [
        name
        for name, text in facts.items()
        if name.split(": ")[0] in _MACHINE and ("; " in text or " values: " in text)
    ]
    if apart:
        notes.append(
            f"Times were not all measured alike (they differ in {', '.join(apart)}), so they "
            "cannot be compared exactly."
        )
    return notes


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
