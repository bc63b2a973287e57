"""Reports: from the outcomes of jobs to tables, charts and pages."""

from acclimate.report.charts import Layer
from acclimate.report.compare import compare_suites
from acclimate.report.facts import BASELINE
from acclimate.report.pages import DemoPage, Sample, render_demo, render_suite
from acclimate.report.summary import Group, Row, Summary, summarize
from acclimate.report.table import Cell, Column, Table
from acclimate.report.tables import (
    error_table,
    headlines,
    make_document,
    render_csv,
)

__all__ = [
    "BASELINE",
    "Cell",
    "Column",
    "DemoPage",
    "Group",
    "Layer",
    "Row",
    "Sample",
    "Summary",
    "Table",
    "compare_suites",
    "error_table",
    "headlines",
    "make_document",
    "render_csv",
    "render_demo",
    "render_suite",
    "summarize",
]
