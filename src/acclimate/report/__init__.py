"""Reports: pure functions from records to a table, charts and one HTML page."""

from acclimate.report.content import Layer, MethodNote, Report, Run, Sample
from acclimate.report.page import render_page
from acclimate.report.table import (
    BASELINE,
    Table,
    count_wins,
    describe,
    describe_apart,
    margin,
    summarize,
)

__all__ = [
    "BASELINE",
    "Layer",
    "MethodNote",
    "Report",
    "Run",
    "Sample",
    "Table",
    "count_wins",
    "describe",
    "describe_apart",
    "margin",
    "render_page",
    "summarize",
]
