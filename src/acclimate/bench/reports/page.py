"""The report as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from acclimate.bench.reports.bootstrap import rank
from acclimate.bench.reports.notes import findings, split_notes
from acclimate.bench.reports.page_charts import (
    axis_section,
    cost_section,
    ranking_section,
    severity_section,
    stream_section,
)
from acclimate.bench.reports.page_tables import (
    jobs_section,
    methods_section,
    protocol_section,
    table_section,
)
from acclimate.bench.reports.plots import choose_looks
from acclimate.bench.reports.tabulate import Summary

# A page that may load nothing cannot tell anybody that it was opened.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

_ABOUT = (
    "Trained models meet images spoilt in ways that their training did not know; each such way, "
    "for instance fog, is a domain. The methods below adapt the model online: a batch is "
    "predicted, the method learns from that batch without knowing the right answers, and the next "
    "batch comes. Labels only serve to count errors. The row of the source model, which never "
    "adapts, is the reference."
)


def render_page(summary: Summary, records: str | None = "") -> str:
    """Return the page as one HTML text; the same outcomes give the same text.

    Args:
        summary: What to show.
        records: The folder of the suite as seen from the page, for links to the records: "" if the
            page lies in it, None for no links.
    """
    rankings = [rank(group) for group in summary.groups]
    found = findings(summary, rankings)
    looks = choose_looks(summary)
    resources = files("acclimate.report")
    style = "".join(
        (resources / name).read_text(encoding="utf-8") for name in ("page.css", "suite.css")
    )
    script = (resources / "suite.js").read_text(encoding="utf-8")
    title = summary.title or "Test-time adaptation, method by method"
    sections = [
        ("Errors and cost", table_section(summary)),
        ("Ranking", ranking_section(summary, rankings, looks)),
        ("Error over the stream", stream_section(summary, looks)),
        ("Error by severity", severity_section(summary, looks)),
        ("Error against cost", cost_section(summary, looks)),
        ("Error against what was varied", axis_section(summary)),
        ("Methods", methods_section(summary)),
        ("Protocol and provenance", protocol_section(summary)),
        ("Jobs and records", jobs_section(summary, records)),
    ]
    # What limits all numbers is said before any of them.
    caveat, _ = split_notes(summary.notes)
    body = _header(title, [caveat, *found] if caveat else found)
    body += "".join(_section(name, content) for name, content in sections if content)
    body = body.replace(" %", "\u00a0%")  # a number and its sign stay on one line
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}</main>
<script>
{script}</script>
</body>
</html>
"""


def _header(title: str, found: Sequence[str]) -> str:
    sentences = "".join(f'<p class="finding">{escape(text)}</p>' for text in found)
    return (
        f'<header><p class="kicker">acclimate bench</p><h1>{escape(title)}</h1>'
        f'{sentences}<p class="about">{escape(_ABOUT)} What each method does is told '
        'under <a href="#methods">Methods</a>.</p></header>\n'
    )


def _section(title: str, content: str) -> str:
    name = title.lower().replace(" ", "-")
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>\n{content}</section>\n'
