"""Reports of a bench: pure functions from outcomes to tables, charts and one HTML page."""

from __future__ import annotations

from acclimate.bench.reports.bootstrap import Difference, Place, Ranking, compare, rank
from acclimate.bench.reports.compare import Comparison, Pair, compare_suites, show_comparison
from acclimate.bench.reports.csv_files import render_csv
from acclimate.bench.reports.latex import render_latex
from acclimate.bench.reports.markdown import render_markdown
from acclimate.bench.reports.page import render_page
from acclimate.bench.reports.tabulate import Group, Row, Summary, tabulate
from acclimate.bench.reports.terminal import show_report

__all__ = [
    "Comparison",
    "Difference",
    "Group",
    "Pair",
    "Place",
    "Ranking",
    "Row",
    "Summary",
    "compare",
    "compare_suites",
    "rank",
    "render_csv",
    "render_latex",
    "render_markdown",
    "render_page",
    "show_comparison",
    "show_report",
    "tabulate",
]
