"""The charts of the page, each with a legend and a sentence on what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from acclimate.bench.reports.bootstrap import Ranking
from acclimate.bench.reports.draw import Look, draw_legend
from acclimate.bench.reports.notes import ranking_note
from acclimate.bench.reports.page_tables import ranking_table, severity_table
from acclimate.bench.reports.plots import (
    Figure,
    draw_costs,
    draw_ranking,
    draw_severities,
    draw_streams,
    list_drawn,
    window_of,
)
from acclimate.bench.reports.sweeps import axis_lines, draw_axis, list_axes
from acclimate.bench.reports.tabulate import Group, Summary

Looks = Mapping[str, Look]


def ranking_section(summary: Summary, rankings: Sequence[Sequence[Ranking]], looks: Looks) -> str:
    """Return the ranking of each group: a chart of distances, and the table of neighbours."""
    parts = []
    for group, own in zip(summary.groups, rankings, strict=True):
        for ranking in own:
            name = group.name or "all methods"
            letter = f", protocol {ranking.protocol + 1}" if ranking.protocol else ""
            parts += [
                f"<h3>{escape(group.name + letter)}</h3>\n" if group.name or letter else "",
                f'<p class="note">{escape(ranking_note(ranking))}</p>\n',
                f'<div class="beside">{_panels([draw_ranking(ranking, looks)], "wide-panels")}',
                f"{ranking_table(name + letter, ranking)}</div>\n",
            ]
    return "".join(parts)


def stream_section(summary: Summary, looks: Looks) -> str:
    """Return a chart for each domain of each group; groups after the first are folded away."""
    parts = [_hint(looks)]
    for number, group in enumerate(summary.groups):
        figures = draw_streams(group, looks)
        longest = max(_n_batches(group))
        note = (
            f"Each point is the error over that batch and those before it, {window_of(longest)} "
            "batches in all: a running mean, to smooth the lines"
            f"{'; all seeds together' if group.n_seeds > 1 else ''}. Every axis starts at zero "
            f"and has its own scale.{_left_out(group)}"
        )
        content = f'<p class="note">{escape(note)}</p>\n{_legend(figures, looks)}{_panels(figures)}'
        parts.append(_fold(group.name, content, is_open=number == 0))
    return "".join(parts)


def severity_section(summary: Summary, looks: Looks) -> str:
    """Return a chart for each group that was measured at several severities; empty for none."""
    found = [(group, draw_severities(group, looks)) for group in summary.groups]
    parts = [
        f'{_heading(group)}{_legend([figure], looks)}<div class="beside">'
        f"{_panels([figure], 'wide-panels')}{severity_table(group)}</div>\n"
        for group, figure in found
        if figure is not None
    ]
    if not parts:
        return ""
    several = any(row.mean.deviation is not None for _, row in summary.rows)
    spread = "; bars are standard deviations over seeds" if several else ""
    note = f"Mean error over all corruptions at each severity{spread}."
    return f'<p class="note">{note}</p>\n{"".join(parts)}'


def cost_section(summary: Summary, looks: Looks) -> str:
    """Return charts of error against time and memory; the lower left corner is the best."""
    note = (
        "The closer to the lower left corner, the better. Time is that of the call that predicts "
        "and adapts, the median over batches. The vertical axes need not start at zero."
    )
    parts = [f'<p class="note">{note}</p>\n']
    for group in summary.groups:
        figures = draw_costs(group, looks)
        parts += [
            f"{_heading(group)}{_legend(figures, looks)}",
            f"{_panels(figures, 'wide-panels')}{_note(_left_out(group))}",
        ]
    return "".join(parts)


def axis_section(summary: Summary) -> str:
    """Return a chart for each number that the suite varies; empty if it varies none."""
    parts = []
    for group in summary.groups:
        for name in list_axes(group):
            figure, looks = draw_axis(group, name)
            drawn = [row for line in axis_lines(group, name).values() for _, row in line]
            several = len({row.protocol for row in drawn}) > 1
            note = "Rows of several protocols are in it: see the letters in the table."
            parts += [
                f"{_heading(group)}{_legend([figure], looks)}",
                f"{_panels([figure], 'wide-panels')}{_note(note if several else '')}",
            ]
    return "".join(parts)


def _legend(figures: Sequence[Figure], looks: Looks) -> str:
    labels = dict.fromkeys(label for figure in figures for label in figure.labels)
    ordered = sorted(labels, key=lambda label: looks[label].index)
    return f"{draw_legend(ordered, looks)}\n"


def _hint(looks: Looks) -> str:
    grey = any(look.colour == "other" for look in looks.values())
    told = " Those after the first few are grey, told apart by dashes and marker." if grey else ""
    return (
        '<p class="note hint" hidden>In all charts: a click on a name hides or shows it; pointing '
        f"at it, or reaching it by the Tab key, brings it out.{told}</p>\n"
    )


def _panels(figures: Sequence[Figure], kind: str = "") -> str:
    items = "".join(
        f"<figure><figcaption>{escape(figure.title)}</figcaption>{figure.svg}</figure>\n"
        for figure in figures
    )
    return f'<div class="panels {kind}">{items}</div>\n'


def _heading(group: Group) -> str:
    return f"<h3>{escape(group.name)}</h3>\n" if group.name else ""


def _fold(name: str, content: str, is_open: bool) -> str:
    if not name:
        return content
    attribute = " open" if is_open else ""
    return f"<details{attribute}><summary>{escape(name)}</summary>\n{content}</details>\n"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text.strip())}</p>\n' if text.strip() else ""


def _left_out(group: Group) -> str:
    drawn = list_drawn(group)
    names = ", ".join(row.label for row in group.rows if row not in drawn)
    partial = ", ".join(row.label for row in drawn if row.missing)
    return f" Not drawn, as measured under another protocol: {names}." * bool(
        names
    ) + f" Drawn from the seeds that are there: {partial}." * bool(partial)


def _n_batches(group: Group) -> list[int]:
    counts: dict[tuple[str, str], int] = {}
    for row in group.rows:
        for record in row.outcomes[0].result.counted:
            key = (row.label, record.domain)
            counts[key] = counts.get(key, 0) + 1
    return list(counts.values())
