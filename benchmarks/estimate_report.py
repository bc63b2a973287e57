"""Summaries and tables of `estimate.py`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from acclimate.corruptions import BENCHMARK
from acclimate.storage import write_atomically

#: Windows count for the choice where the two models differ by more than this.
CLEAR = 0.05
START, END = "<!-- tables: start -->", "<!-- tables: end -->"
NAMES = {
    "ours": "ours",
    "aetta": "AETTA",
    "ac": "AC",
    "doc": "DoC, source",
    "atc_confidence": "ATC max. probability, source",
    "atc_entropy": "ATC entropy, source",
    "doc_held_out": "DoC, held out",
    "atc_confidence_held_out": "ATC max. probability, held out",
    "atc_entropy_held_out": "ATC entropy, held out",
}
#: Choices that ignore the images.
CONSTANT = {"always_source": "always source", "always_adapted": "always adapted"}

Cell = dict[str, Any]


def identify(key: dict[str, Any]) -> str:
    """Return what two measurements of the same cell share, whatever code made them."""
    return json.dumps({k: v for k, v in key.items() if k != "ours_sha256"}, sort_keys=True)


def read_cells(path: Path) -> dict[str, Cell]:
    """Return the finished cells by what identifies them; none if there is no file."""
    lines = path.read_text().splitlines() if path.is_file() else []
    cells = [json.loads(line) for line in lines]
    return {identify(cell["key"]): cell for cell in cells}


def list_windows(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Return the windows of cells with our estimates among the others."""
    found = []
    for cell in cells:
        for window in cell["windows"]:
            estimates = dict(window["estimates"])
            gains = {name: e["adapted"] - e["source"] for name, e in estimates.items()}
            if ours := window["ours"]:
                estimates["ours"] = {name: ours[name][0] for name in ("source", "adapted")}
                gains["ours"] = ours["gain"][0]
            gains |= {"always_source": -1.0, "always_adapted": 1.0}
            found.append({**window, **cell["key"], "estimates": estimates, "gains": gains})
    return found


def summarise(cells: list[Cell]) -> dict[str, Any]:
    """Return the figures of one model and stream."""
    windows = list_windows(cells)
    methods = list(dict.fromkeys(window["method"] for window in windows))
    rows = {}
    for name in [name for name in (*NAMES, *CONSTANT) if any(name in w["gains"] for w in windows)]:
        usable = [window for window in windows if name in window["gains"]]
        row: dict[str, Any] = {"n_windows": len(usable), **_summarise_choice(name, usable)}
        if name in NAMES:
            errors = {"source": _errors(name, usable, "source")}
            for method in methods:
                chosen = [window for window in usable if window["method"] == method]
                errors[method] = _errors(name, chosen, "adapted")
            kinds = [e for e in errors.values() if e]
            row["mean_absolute_error"] = {k: _mean(map(abs, e)) for k, e in errors.items()}
            row["mean_absolute_error"]["all"] = _mean(_mean(map(abs, e)) for e in kinds)
            row["mean_error"] = {k: _mean(e) for k, e in errors.items()}
        rows[name] = row
    first = cells[0]["facts"]
    shared = ("data", "severity", "model_sha256", "artifact", "calibration", "aetta", "reset")
    several = ("commit", "ours_sha256", "seed", "versions", "processor", "options", "threads")
    return {
        "model": cells[0]["key"]["model"],
        "stream": cells[0]["key"]["stream"],
        "order": first["order"],
        "batch_size": first["batch_size"],
        "methods": methods,
        "corruptions": list(dict.fromkeys(cell["key"]["corruption"] for cell in cells)),
        "n_cells": len(cells),
        "n_images": sorted({cell["key"]["n_images"] for cell in cells}),
        "n_per_window": sorted({window["n"] for window in windows}),
        **{name: first[name] for name in shared},
        **{name: _distinct(cell["facts"][name] for cell in cells) for name in several},
        "true_accuracy": {
            "source": _mean(100 * window["truth"]["source"] for window in windows),
            **{
                method: _mean(100 * w["truth"]["adapted"] for w in windows if w["method"] == method)
                for method in methods
            },
        },
        "n_clear": sum(is_clear(window) for window in windows),
        "estimators": rows,
        "ours_by_corruption": _by_corruption(windows, methods),
    }


def is_clear(window: dict[str, Any]) -> bool:
    """Return whether the models of a window differ enough to tell the better one."""
    return abs(window["truth"]["adapted"] - window["truth"]["source"]) > CLEAR


def _errors(name: str, windows: list[dict[str, Any]], model: str) -> list[float]:
    return [100 * (w["estimates"][name][model] - w["truth"][model]) for w in windows]


def _summarise_choice(name: str, windows: list[dict[str, Any]]) -> dict[str, Any]:
    told, lost = [], []
    for window in windows:
        truth = window["truth"]
        chosen = "adapted" if window["gains"][name] > 0 else "source"
        loss = 100 * (max(truth.values()) - truth[chosen])
        lost.append(loss)
        if is_clear(window):
            told.append(loss == 0)
    return {
        "better_told": _mean(100.0 * value for value in told),
        "mean_loss": _mean(lost),
        "largest_loss": round(max(lost), 2),
    }


def _by_corruption(windows: list[dict[str, Any]], methods: list[str]) -> dict[str, Any]:
    """Return the signed errors of our estimates of the adapted model, and of the source."""
    found: dict[str, Any] = {}
    for window in windows:
        if "ours" in window["estimates"]:
            row = found.setdefault(window["corruption"], {})
            for model, name in (("source", "source"), ("adapted", window["method"])):
                row.setdefault(name, []).extend(_errors("ours", [window], model))
    return {
        corruption: {name: _mean(row[name]) for name in ("source", *methods) if name in row}
        for corruption, row in found.items()
    }


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return round(statistics.fmean(numbers), 2) if numbers else None


def _distinct(values: Iterable[Any]) -> list[Any]:
    return [json.loads(text) for text in dict.fromkeys(map(json.dumps, values))]


def render(summary: dict[str, Any]) -> str:
    """Return a summary as Markdown."""
    columns = ["source", *summary["methods"]]
    truth = ", ".join(f"{k} {v:.1f}" for k, v in summary["true_accuracy"].items())
    (processor,) = summary["processor"][:1]
    lines = [
        f"### {summary['model']}, {summary['order']}, batches of {summary['batch_size']}",
        "",
        f"{summary['data']['name']}, severity {summary['severity']}, "
        f"{len(summary['corruptions'])} corruptions, {_join(summary['n_images'])} images each, "
        f"windows of {_join(summary['n_per_window'])}, seed {_join(summary['seed'])}, reset "
        f"{summary['reset']}. True accuracy (%): {truth}. {summary['n_clear']} of "
        f"{summary['estimators']['ac']['n_windows']} windows differ by more than "
        f"{100 * CLEAR:.0f} points.",
        "",
        f"| estimator | {' | '.join(columns)} | all | better told (%) | mean loss | largest loss |",
        f"|---|{'---|' * (len(columns) + 4)}",
    ]
    missing = ", ".join(name for name in BENCHMARK if name not in summary["corruptions"])
    for name, row in summary["estimators"].items():
        errors = row.get("mean_absolute_error", {})
        cells = [_show(errors.get(column)) for column in (*columns, "all")]
        cells += [_show(row[key]) for key in ("better_told", "mean_loss", "largest_loss")]
        lines.append(f"| {(NAMES | CONSTANT)[name]} | {' | '.join(cells)} |")
    lines += [
        "",
        f"{f'Without {missing}. ' if missing else ''}Model "
        f"{summary['model_sha256'][:12]}, commit {_join(summary['commit'])}, guard "
        f"{_join(summary['ours_sha256'])}, torch "
        f"{summary['versions'][0]['torch']}, {processor['machine']} {processor['capability']}, "
        f"bfloat16 {'yes' if processor['bfloat16'] else 'no'}.",
        "",
    ]
    return "\n".join(lines)


def _join(values: list[Any]) -> str:
    return " and ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in values)


def _show(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def write_report(path: Path, docs: Path) -> None:
    """Write the summary beside the cells, and the tables between the marks of a page."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in read_cells(path).values():
        groups.setdefault((cell["key"]["model"], cell["key"]["stream"]), []).append(cell)
    summaries = [summarise(cells) for cells in groups.values()]
    text = json.dumps({"summaries": summaries}, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path.with_suffix(".json"), text.encode())
    before, _, rest = docs.read_text().partition(START)
    after = rest.partition(END)[2]
    tables = "\n".join(map(render, summaries))
    write_atomically(docs, f"{before}{START}\n\n{tables}\n{END}{after}".encode())
