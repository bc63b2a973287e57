"""The page of a report: one HTML file that needs nothing else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby

from acclimate.evaluation import Record
from acclimate.report.charts import Series, draw_layers, draw_legend, draw_lines, list_kinds
from acclimate.report.content import MethodNote, Report, Run, Sample
from acclimate.report.table import (
    BASELINE,
    Table,
    count_wins,
    describe,
    describe_apart,
    summarize,
)

#: Batches of the running mean in the charts of error over time.
WINDOW = 3

# A page that may load nothing cannot tell anybody that it was opened.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render_page(report: Report) -> str:
    """Return the page as one HTML text; the same report gives the same text."""
    table = summarize(report.runs)
    finding = describe(table)
    resources = files("acclimate.report")
    style = (resources / "page.css").read_text(encoding="utf-8")
    script = (resources / "page.js").read_text(encoding="utf-8")
    sections = [
        _header(finding),
        _section("What you see here", _explain(report, table)),
        _section("Errors and speed", _table(table, count_wins(report.runs), report.notes)),
        _section("Error over time", _over_time(report.runs, table)),
        _section("Penalty by layer", _layers(report)),
        _section("Sample images", _samples(report.samples)),
        _section("Protocol and provenance", _provenance(report)),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>acclimate demo: {escape(finding)}</title>
<style>
{style}</style>
</head>
<body>
<main>
{"".join(sections)}</main>
<script>
{script}</script>
</body>
</html>
"""


def smooth(records: Sequence[Record], window: int = WINDOW) -> tuple[float, ...]:
    """Return the error in percent over each batch and up to `window` - 1 batches before it.

    Records of several seeds may come together: those with the same place in their stream count as
    one batch.
    """
    wrong: dict[int, int] = {}
    seen: dict[int, int] = {}
    for record in records:
        wrong[record.index] = wrong.get(record.index, 0) + record.n_errors
        seen[record.index] = seen.get(record.index, 0) + record.n
    order = sorted(seen)
    recent = [order[max(0, end - window) : end] for end in range(1, len(order) + 1)]
    return tuple(100 * sum(wrong[i] for i in part) / sum(seen[i] for i in part) for part in recent)


def _header(finding: str) -> str:
    return (
        '<header><p class="kicker">acclimate demo</p>'
        "<h1>A model adapts itself to images it was not trained for</h1>"
        f'<p class="finding">{escape(finding)}</p></header>\n'
    )


def _section(title: str, content: str) -> str:
    name = title.lower().replace(" ", "-")
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>\n{content}</section>\n'


def _explain(report: Report, table: Table) -> str:
    shifts = [_words(name) for name in table.domains]
    listed = f"{', '.join(shifts[:-1])} and {shifts[-1]}" if len(shifts) > 1 else shifts[0]
    has_baseline = any(row.method == BASELINE for row in table.rows)
    unless = f", except {BASELINE}, which never changes" if has_baseline else ""
    text = (
        f"A small network was trained on {report.task}, and here meets such images spoilt by "
        f"{listed}: a shift that its training did not know. "
        "Nobody tells it the right answers and its training data is gone, but it may adapt online: "
        "after predicting a batch it learns from that batch alone, before the next one comes. "
        f"Each method below is a way to do so{unless}; on clean images the network as it was "
        f"trained errs on {100 * report.clean_error:.1f} %."
    )
    return f"<p>{escape(text)}</p>\n{_method_notes(report.methods)}"


def _method_notes(notes: Sequence[MethodNote]) -> str:
    items = []
    for note in notes:
        paper = f' <a href="{escape(note.paper)}">Paper</a>.' if note.paper else ""
        items.append(
            f"<dt><code>{escape(note.name)}</code></dt>"
            f"<dd>{escape(note.sentence)} {escape(note.cost)}{paper}</dd>"
        )
    return f'<dl class="methods">{"".join(items)}</dl>\n'


def _table(table: Table, wins: str, notes: Sequence[str]) -> str:
    columns = table.columns
    heads = "".join(
        f'<th scope="col" data-sort="number">{escape(_words(column.name))}</th>'
        for column in columns
    )
    rows = []
    for index, row in enumerate(table.rows):
        cells = "".join(
            _cell(column.values[index], column.texts[index], column.best[index])
            for column in columns
        )
        method, mark = escape(row.method), escape(row.label.removeprefix(row.method))
        rows.append(
            f'<tr><th scope="row" data-value="{escape(row.name)}"><code>{method}</code>{mark}</th>'
            f"{cells}</tr>\n"
        )
    spread = (
        f"mean ± standard deviation over {table.n_seeds} seeds"
        if table.n_seeds > 1
        else f"one seed; an error measured on {table.n_images} images is uncertain by up to "
        f"±{table.margin:.1f} points (95 %)"
    )
    note = (
        f"Share of wrong predictions in %, lower is better; the best of each column is bold; "
        f"{spread}. {wins}"
    )
    apart = "".join(
        f'<p class="note">{escape(text)}</p>\n' for text in (*notes, describe_apart(table)) if text
    )
    return (
        '<div class="scroll" role="region" aria-labelledby="errors-and-speed" tabindex="0">'
        '<table id="results"><thead><tr><th scope="col" data-sort="text">method</th>'
        f"{heads}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody></table></div>\n"
        f'<p class="note">{escape(note.strip())} '
        '<span id="hint" hidden>A click on a heading sorts by it.</span></p>\n'
        f"{apart}"
    )


def _cell(value: float, text: str, is_best: bool) -> str:
    number, sign, spread = text.partition(" ± ")
    shown = f"<strong>{escape(number)}</strong>" if is_best else escape(number)
    if sign:
        shown += f'<span class="spread">{escape(sign + spread)}</span>'
    best = ' class="best"' if is_best else ""
    return f'<td data-value="{value:.6f}"{best}>{shown}</td>'


def _over_time(runs: Sequence[Run], table: Table) -> str:
    names = [row.name for row in table.rows]
    panels = []
    for domain in table.domains:
        own = {
            name: [
                record
                for run in runs
                if run.name == name
                for record in run.result.records
                if record.domain == domain
            ]
            for name in names
        }
        series = [Series(name, smooth(records)) for name, records in own.items()]
        highest = max(value for line in series for value in line.values)
        panels.append(
            f"<figure><figcaption>{escape(_words(domain))}</figcaption>"
            f"{draw_lines(_words(domain), series, highest)}</figure>\n"
        )
    seeds = ", of all seeds together" if table.n_seeds > 1 else ""
    note = (
        f"Each point is the error over that batch and the {WINDOW - 1} before it{seeds}: a running "
        "mean, to smooth the lines. The model is reset before each shift. Every axis starts at "
        "zero and has its own scale."
    )
    return (
        f'<p class="note">{note}</p>\n{draw_legend(names)}\n'
        f'<div class="panels">{"".join(panels)}</div>\n'
    )


def _layers(report: Report) -> str:
    n_seeds = len(report.layers[0].penalties)
    ranges = " Bars show the range over seeds, markers the mean." if n_seeds > 1 else ""
    note = (
        "Before the model is deployed, the gradients of training images and of the same images "
        "with changed colours or a blur are compared, parameter tensor by parameter tensor. Where "
        "they agree, the parameters serve the object whatever it looks like, and swr_nsp holds "
        "them fast: a high penalty. Where they disagree, the parameters react to the shift and are "
        f"left free to move.{ranges} Point at a marker for the name of its parameter."
    )
    legend = draw_legend(list_kinds(report.layers), kinds=True)
    chart = draw_layers(report.layers)
    return f'<p class="note">{escape(note)}</p>\n{legend}\n<figure class="wide">{chart}</figure>\n'


def _samples(samples: Sequence[Sample]) -> str:
    parts = [
        '<p class="note">Not chosen: the first images of the last batch of each shift, that is, '
        "after the model has adapted to all batches before. Left clean, right as the model met it; "
        "below, the class it is and what each method predicted.</p>\n"
    ]
    for domain, members in groupby(samples, key=lambda sample: sample.domain):
        cards = "".join(_card(sample) for sample in members)
        parts.append(f'<h3>{escape(_words(domain))}</h3>\n<div class="cards">{cards}</div>\n')
    return "".join(parts)


def _card(sample: Sample) -> str:
    truth, domain = escape(sample.truth), escape(_words(sample.domain))
    verdicts = "".join(
        f'<li class="{"right" if name == sample.truth else "wrong"}">'
        f'<span aria-hidden="true">{"✓" if name == sample.truth else "✗"}</span> '
        f"<code>{escape(method)}</code> {escape(name)}"
        f'<span class="hidden"> ({"right" if name == sample.truth else "wrong"})</span></li>'
        for method, name in sample.predictions.items()
    )
    return (
        f'<figure class="card"><div class="pair">{_image(sample.clean, f"{truth}, clean")}'
        f"{_image(sample.shifted, f'{truth}, with {domain}')}</div>"
        f"<figcaption><b>{truth}</b><ul>{verdicts}</ul></figcaption></figure>"
    )


def _image(png: bytes, alt: str) -> str:
    data = b64encode(png).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{alt}" width="32" height="32">'


def _provenance(report: Report) -> str:
    return f'<div class="box">{_pairs(report.protocol)}{_pairs(report.provenance)}</div>\n'


def _pairs(pairs: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in pairs.items())
    return f"<dl>{rows}</dl>"


def _words(name: str) -> str:
    return name.replace("_", " ")
