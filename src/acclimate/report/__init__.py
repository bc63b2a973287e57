"""Reports: pure functions from records to a table, charts and one HTML page."""

from acclimate.report.content import Layer, MethodNote, Report, Run, Sample
from acclimate.report.page import render_page
from acclimate.report.table import Table, count_wins, describe, summarize

__all__ = [
    "Layer",
    "MethodNote",
    "Report",
    "Run",
    "Sample",
    "Table",
    "count_wins",
    "describe",
    "render_page",
    "summarize",
]
