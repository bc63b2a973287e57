"""The leaderboard, as data and as a page, from the committed files under results/."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"

INTRODUCTION = """\
# Leaderboard

Error in % of each method on each stream that we have measured, lower is better. This page and
[leaderboard.json](leaderboard.json) are generated from the files under `results/` when the site
is built. Nothing is typed by hand except the published figures, which name their source.

- A table has one model, one set of images and one protocol. Rows of different tables cannot be
  compared.
- *vs source* is the difference from the source model on the same stream, in points. A dash means
  that the source model was not measured on this stream.
- *file* has the full provenance: options, checksums, versions and machine.
- Speeds are of two shared cores. They can be compared within a file only.
- Checksums of images are those of the whole set; the protocol states how many of them are used.
- Twenty more kinds of streams, with and without the guard, are on the page [Streams](GUARD) and
  under `guard` in the JSON file. Their protocol is shorter, so they are not mixed with these.
- Options are the defaults, or the preset that is named. Nothing was tuned on the test images.

To add a row, run `acclimate eval` or `acclimate bench run`, and put `result.json` under `results/`.
""".replace("GUARD", "streams.md#how-much-adaptation-hurts-and-what-the-guard-does-about-it")


def find_entries() -> list[dict[str, Any]]:
    """Return one entry per method, model and stream."""
    entries = [*_from_eval(), *_from_steady(), *_from_paper()]
    newest: dict[tuple[str, ...], dict[str, Any]] = {}
    for entry in sorted(entries, key=lambda entry: str(entry["date"])):
        newest[_table_of(entry), entry["method"], entry["setting"]] = entry  # type: ignore[index]
    return list(newest.values())


def make_board() -> dict[str, Any]:
    """Return the content of `leaderboard.json`."""
    published = tomllib.loads(Path(__file__).with_name("published.toml").read_text())["figures"]
    tables: dict[tuple[str, ...], dict[str, Any]] = {}
    for entry in find_entries():
        table = tables.setdefault(
            _table_of(entry),
            {name: entry[name] for name in ("model", "data", "protocol", "weights_sha256")}
            | {"images": entry["images"], "images_sha256": entry["images_sha256"]}
            | {"n_predictions": entry["n"], "published": [], "rows": []},
        )
        hidden = ("model", "data", "protocol", "weights_sha256", "images", "images_sha256")
        table["rows"].append({k: v for k, v in entry.items() if k not in hidden})
    for table in tables.values():
        table["rows"].sort(key=lambda row: row["error"])
        sources = [row["error"] for row in table["rows"] if row["method"] == "source"]
        table["source_error"] = sources[0] if sources else None
        for row in table["rows"]:
            row["vs_source"] = round(row["error"] - sources[0], 2) if sources else None
        table["published"] = [
            {name: figures[name] for name in ("source", "note", "errors")}
            for figures in published
            if (figures["model"], figures["protocol"]) == (table["model"], table["protocol"])
        ]
    ordered = sorted(tables.values(), key=lambda t: (t["data"], t["model"], -t["n_predictions"]))
    harm = json.loads((RESULTS / "harm.json").read_text())
    guard = {"file": "results/harm.json", "cells": harm["cells"]}
    return {"unit": "error in %", "tables": ordered, "guard": guard}


def make_page(board: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    parts = [INTRODUCTION]
    for table in board["tables"]:
        # What a table is of, above it; the weights and images that it is of, below.
        parts.append(f"## {table['data']}, {table['model']}: {_short(table['protocol'])}\n")
        protocol = table["protocol"]
        sentence = f"{protocol[0].upper()}{protocol[1:]}"
        parts.append(f"{sentence}. {table['n_predictions']:,} predictions.\n")
        published = table["published"]
        columns = ["method", "error", "vs source", "images/s", "file"]
        columns[2:2] = ["published"] * bool(published)
        align = ["---"] + ["--:"] * (len(columns) - 2) + ["---"]
        lines = [columns, align]
        errors = published[0]["errors"] if published else {}
        rows = [dict(row) for row in table["rows"]]
        measured = {row["method"] for row in rows}
        rows += [{"method": method} for method in errors if method not in measured]
        for row in rows:
            lines.append(_make_cells(row, errors if published else None))
        parts += ["| " + " | ".join(cells) + " |" for cells in lines]
        weights = f"`{table['weights_sha256'][:16]}`" if table["weights_sha256"] else "not recorded"
        images = f"`{table['images_sha256'][:16]}`"
        parts.append(
            f"\nWeights SHA-256 {weights}. Images: {len(table['images'])} domains, {images}.\n"
        )
        parts += [
            f"Published: {figures['note']} ([source]({figures['source']})).\n"
            for figures in published
        ]
    return "\n".join(parts)


def _make_cells(row: dict[str, Any], errors: dict[str, float] | None) -> list[str]:
    method = row["method"]
    setting = row.get("setting", "")
    name = f"[{method}](methods/{method}.md)" + (f", {setting}" if setting else "")
    cells = [name, f"{row['error']:.1f}" if "error" in row else "–"]
    if errors is not None:
        cells.append(f"{errors[method]:.1f}" if method in errors else "–")
    difference = row.get("vs_source")
    cells.append("–" if difference is None else f"{difference:+.1f}".replace("-", "−"))
    speed = row.get("images_per_second")
    cells.append(f"{speed:.0f}" if speed else "–")
    file = row.get("file")
    cells.append(f"[{Path(file).name}]({file})" if file else "–")
    return cells


def _short(protocol: str) -> str:
    """Return what tells a protocol from others, for a heading."""
    stream, _, rest = protocol.partition(";")
    sizes = [part.strip() for part in rest.split(";") if "samples" in part or "batches" in part]
    return ", ".join([stream.removesuffix(", no reset"), *sizes])


def _table_of(entry: dict[str, Any]) -> tuple[str, ...]:
    weights = entry["weights_sha256"] or ""
    return entry["model"], weights, entry["protocol"], entry["images_sha256"]


def _entry(
    method: str,
    setting: str,
    error: float,
    provenance: dict[str, Any],
    file: Path,
    *,
    n: int,
    speed: float,
) -> dict[str, Any]:
    """Return one entry; `error` is in %."""
    data = {name: part["sha256"] for name, part in provenance["data"].items()}
    model = provenance["model"]
    if isinstance(model, str):
        model = {"name": model, "file_sha256": provenance["weights"]["sha256"]}
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    first = next(iter(provenance["data"].values()))
    versions = provenance.get("versions") or provenance.get("settings", {}).get("versions")
    return {
        "method": method,
        "setting": setting,
        "error": round(error, 2),
        "n": n,
        "images_per_second": round(speed, 1),
        "model": model["name"],
        "data": f"{first['name']}, severity {first['severity']}",
        "protocol": provenance["protocol_line"],
        "weights_sha256": model["file_sha256"],
        "images": data,
        "images_sha256": digest,
        "file": file.relative_to(ROOT).as_posix(),
        "command": provenance["command"],
        "date": provenance["date"],
        "versions": versions,
    }


def _from_eval() -> Iterator[dict[str, Any]]:
    """Yield the rows of `acclimate eval` on CIFAR-10-C."""
    for file in sorted(RESULTS.glob("cifar10c-*.json")):
        report = json.loads(file.read_text())
        command = report["provenance"]["command"].split()
        setting = f"speed {command[command.index('--speed') + 1]}" if "--speed" in command else ""
        if file.stem.endswith("-pinned"):  # the level with one option changed
            setting += f", pinned {report['provenance']['settings']['speed']['pinned']}"
        for run in report["runs"]:
            yield _entry(
                run["method"],
                setting,
                100 * run["error"],
                report["provenance"],
                file,
                n=run["n"],
                speed=run["images_per_second"],
            )


def _from_steady() -> Iterator[dict[str, Any]]:
    """Yield the rows of `benchmarks/steady.py` but for its ablations.

    Left out are tables of several models, such as PACS, which has one for each domain.
    """
    file = RESULTS / "steady.json"
    for name, table in json.loads(file.read_text()).items():
        if name.startswith("ablation") or any(" | " in row for row in table["rows"]):
            continue
        for row in table["rows"].values():
            yield _entry(
                row["method"],
                "",
                row["error"],
                table["provenance"],
                file,
                n=row["n"],
                speed=row["images_per_second"],
            )


def _from_paper() -> Iterator[dict[str, Any]]:
    """Yield the rows of the paper's main table."""
    for name in ("table-1a", "table-1b"):
        file = RESULTS / "paper" / name / "result.json"
        for job in json.loads(file.read_text())["jobs"]:
            options = job["spec"].get("options") or {}
            yield _entry(
                job["spec"]["method"],
                ", ".join(f"{key} {value:g}" for key, value in options.items()),
                100 * job["summary"]["error"],
                job["provenance"],
                file,
                n=job["summary"]["n"],
                speed=job["summary"]["images_per_second"],
            )
