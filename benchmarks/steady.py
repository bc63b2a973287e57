"""The method `steady` on ordinary and on hard streams, beside its rivals, and what it is made of.

    python benchmarks/steady.py run --out runs/steady                     # run, or resume
    python benchmarks/steady.py run --out runs/steady --tables ordinary   # one table only
    python benchmarks/steady.py run --out runs/steady --rows steady       # one method only
    python benchmarks/steady.py report --out runs/steady                  # write the results

The report writes results/steady.json and the tables in docs/steady.md. Data and weights that are
not in the repository are found by ACCLIMATE_DATA and ACCLIMATE_SHARED. Those of PACS are trained by

    for d in sketch art_painting cartoon photo; do acclimate train --task domains --objective erm \
      --model acclimate.paper.efficientnet:efficientnet_lite0 --data pacs --test-domain $d \
      --steps 100 --lr 3e-4 --batch-size 16 --size 96 --check-every 50 \
      --out $ACCLIMATE_DATA/pacs-models/erm-$d.safetensors; done
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from acclimate.bench import Entry, JobSpec, Outcome, Store, Suite, run_suite
from acclimate.corruptions import BENCHMARK
from gather_reproduction import shorten_paths
from harm import (
    ALL_CLASSES,
    MODELS,
    ROOT,
    SHARED,
    SHIFTS,
    SOME,
    STREAMS,
    _show,
    write_section,
)

#: What is left out of `steady`, by name; `nothing` is the whole method.
WITHOUT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "statistics of the stream (of the batch instead)": {"statistics": "batch"},
    "trust and memory (mixed statistics instead)": {
        "statistics": "mixed",
        "statistics_momentum": 0.5,
    },
    "mirror image": {"mirror": False},
    "label filter": {"filter_labels": False},
    "learning": {"lr": 0.0},
    "damping by penalties": {"damping": 0.0},
    "prototypes": {"aux_confidence": 0.0, "aux_diversity": 0.0, "consistency": 0.0},
}
RIVALS = (
    *("source", "norm", "tent", "eata", "roid", "cmf", "rotta", "core", "nsp", "swr_nsp"),
    *("petta", "tribe", "alpha_bn", "bn_ema", "entropy", "infomax", "shot", "t3a", "swr"),
    *("swr_fixmatch", "eta", "sar", "deyo", "rpl", "rdumb", "lame"),
)
#: CIFAR-100 beside the models of the harm table.
RESNET32 = {
    "model": "resnet32-cifar100",
    "weights": str(SHARED / "data/weights/cifar100-resnet32.safetensors"),
    "data": "cifar100c",
}
#: Tables whose rows have several numbers of predictions.
SEVERAL = ("PACS", "ImageNet sample, EfficientNet-Lite0")
NOTE_MODEL = "benchmarks.iabn:load"  # run in the folder of the repository
PACS = ("art_painting", "cartoon", "photo", "sketch")
PACS_MODELS = Path(os.environ.get("ACCLIMATE_DATA", "")) / "pacs-models"


def _jobs(
    model: str, methods: tuple[str, ...], protocol: dict[str, Any], **others: Any
) -> dict[str, dict[str, Any]]:
    chosen = RESNET32 if model == "resnet32" else MODELS[model]
    shared = {"prepare": {"images": 2048}, **chosen, "protocol": protocol, **others}
    return {method: {**shared, "method": method} for method in methods}


def _ablation(protocol: dict[str, Any], images: int) -> dict[str, dict[str, Any]]:
    whole = _jobs("resnet20", ("steady",), protocol, images=images, corruptions=list(SHIFTS))
    return {name: {**whole["steady"], "options": options} for name, options in WITHOUT.items()}


def _dirichlet_builtin() -> dict[str, dict[str, Any]]:
    """Return jobs on the built-in task, of which there is a model that was trained for NOTE."""
    methods = ("source", "rotta", "petta", "tribe", "note", "steady")
    protocol = {"stream": "dirichlet", "delta": 0.1, "batch_size": 64}
    found = _jobs("builtin", methods, protocol, images=200, corruptions=list(BENCHMARK))
    found["note"]["model"] = NOTE_MODEL
    return {**found, "source, model of NOTE": {**found["source"], "model": NOTE_MODEL}}


def _pacs() -> dict[str, dict[str, Any]]:
    """Return jobs on each domain of PACS, with a model that was trained on the others."""
    frozen = {"lr": 5e-5, "statistics": "source"}  # what table 6 chose
    rows: dict[str, tuple[str, dict[str, Any]]] = {
        "source": ("source", {}),
        "swr_nsp": ("swr_nsp", {}),
        "swr_nsp, rate and statistics of table 6": ("swr_nsp", frozen),
        "steady": ("steady", {}),
    }
    return {
        f"{row} | {domain}": {
            "model": "acclimate.paper.efficientnet:efficientnet_lite0",
            "weights": str(PACS_MODELS / f"erm-{domain}.safetensors"),
            "data": "pacs",
            "domains": {"names": [domain], "size": [96, 96]},
            "protocol": {"batch_size": 200},
            "method": method,
            "options": options,
            "prepare": {
                "images": 1024,
                "domains": {
                    "names": [other for other in PACS if other != domain],
                    "part": "train",
                    "size": [96, 96],
                },
            },
        }
        for domain in PACS
        for row, (method, options) in rows.items()
    }


def _imagenet() -> dict[str, dict[str, Any]]:
    """Return jobs on the ImageNet sample; prototypes need all classes, see `harm.py`."""
    model = MODELS["efficientnet-lite0"]
    prepare = {"source": ALL_CLASSES["efficientnet-lite0"]}
    streams = SOME["efficientnet-lite0"]
    specs = {
        f"{method} | {stream}": (method, STREAMS[stream])
        for stream in streams
        for method in ("source", "norm", "swr_nsp", "steady")
    }
    return {
        row: {
            **model,
            "prepare": prepare,
            "method": method,
            "images": case.images,
            "protocol": case.protocol,
        }
        for row, (method, case) in specs.items()
    }


_STREAM = {"order": "shuffled", "batch_size": 200}
#: Tables by name: rows by name. All corruptions of CIFAR-10-C at severity 5, unless it says four.
TABLES: dict[str, dict[str, dict[str, Any]]] = {
    "ordinary": _jobs("resnet20", ("steady",), {"batch_size": 200}),
    "dirichlet": _jobs(
        "resnet20",
        ("source", "rotta", "petta", "tribe", "roid", "swr_nsp", "steady"),
        {"stream": "dirichlet", "delta": 0.1, "batch_size": 64},
        images=500,
    ),
    "dirichlet, built-in task": _dirichlet_builtin(),
    "sorted, GroupNorm": _jobs(
        "resnet26-gn",
        ("source", "lame", "roid", "steady"),
        {"stream": "label_sorted", "batch_size": 200},
        images=1000,
    ),
    "sorted, GroupNorm, all images": _jobs(
        "resnet26-gn",
        ("source", "lame", "roid", "steady"),
        {"stream": "label_sorted", "batch_size": 200},
    ),
    "CIFAR-100-C": _jobs("resnet32", ("swr_nsp", "steady"), _STREAM, images=2000),
    "ablation: batches of 200, four corruptions": _ablation(_STREAM, 2000),
    "ablation: sorted by label, four corruptions": _ablation(
        {"stream": "label_sorted", "batch_size": 64}, 500
    ),
    "ablation: batches of 4, four corruptions": _ablation({**_STREAM, "batch_size": 4}, 250),
    "continual": _jobs(
        "resnet20", (*RIVALS, "steady"), {**_STREAM, "stream": "continual"}, images=200
    ),
    "mixed": _jobs(
        "resnet20", (*RIVALS, "steady"), {"stream": "mixed", "batch_size": 200}, images=200
    ),
    "recurring": _jobs(
        "resnet20",
        (*RIVALS, "steady"),
        {**_STREAM, "stream": "recurring", "times": 5},
        images=100,
        corruptions=list(SHIFTS),
    ),
    "recurring, all corruptions": _jobs(
        "resnet20",
        (*RIVALS, "steady"),
        {**_STREAM, "stream": "recurring", "times": 5},
        images=100,
    ),
    "PACS": _pacs(),
    "ImageNet sample, EfficientNet-Lite0": _imagenet(),
    "single images": _jobs(
        "resnet20",
        ("source", "memo", "steady"),
        {"order": "shuffled", "batch_size": 1},
        images=125,
        corruptions=list(SHIFTS),
    ),
}


def make_suite(tables: list[str], rows: list[str] | None = None) -> Suite:
    """Return the jobs of some tables; of all rows, or of those whose names begin so."""
    entries = [
        Entry(JobSpec.from_dict(spec), row, table)
        for table in tables
        for row, spec in TABLES[table].items()
        if rows is None or row.split(" | ")[0] in rows
    ]
    return Suite(title="steady on ordinary and on hard streams", entries=tuple(entries))


def write_report(out: Path) -> None:
    """Write results/steady.json and the tables in docs/steady.md.

    Tables and rows that the folder has no job of are kept as they are in results/steady.json, but
    not beside rows of another number of predictions. A new table is left out until all of its rows
    are measured.
    """
    path = ROOT / "results/steady.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, list[Outcome]] = {}
    # Without its models, the jobs of PACS have no keys.
    readable = [name for name in TABLES if name != "PACS" or PACS_MODELS.is_dir()]
    for outcome in Store(out, make_suite(readable)).outcomes():
        found.setdefault(outcome.entry.group, []).append(outcome)
    measured = {
        table: {
            "rows": {
                label: row
                for label, row in known.get(table, {"rows": {}})["rows"].items()
                if table in SEVERAL or row["n"] == outcomes[0].result.n
            }
            | {
                outcome.entry.label: {
                    "error": round(outcome.error, 2),
                    "n": outcome.result.n,
                    "images_per_second": round(outcome.result.images_per_second, 1),
                    "method": outcome.entry.spec.method,
                    "options": outcome.entry.spec.options,
                }
                for outcome in outcomes
            },
            "provenance": outcomes[0].provenance,
        }
        for table, outcomes in found.items()
        if table in known or len(outcomes) == len(TABLES[table])
    }
    tables = {name: {**known, **measured}[name] for name in TABLES if name in {**known, **measured}}
    text = shorten_paths(json.dumps(tables, indent=1, ensure_ascii=False, default=str))
    path.write_text(text + "\n", encoding="utf-8")
    write_section(ROOT / "docs/steady.md", "tables", _markdown(tables))


def _markdown(tables: dict[str, Any]) -> str:
    lines = []
    for table, content in tables.items():
        rows = content["rows"]
        protocol = content["provenance"].get("protocol_line")
        if table in SEVERAL:
            lines += [f"\n**{table}** (error in %; by method)\n", *_pivot(rows)]
            continue
        head = "left out" if table.startswith("ablation") else "method"
        n = next(iter(rows.values()))["n"]
        lines += [
            f"\n**{table}** ({protocol}; {n} predictions)\n",
            f"| {head} | error in % | images/s |",
            "|---|--:|--:|",
        ]
        best = min(row["error"] for row in rows.values())
        for name, row in sorted(rows.items(), key=lambda each: each[1]["error"]):
            error = _emphasise(row["error"], best)
            lines.append(f"| {name} | {error} | {row['images_per_second']:.0f} |")
    return "\n".join(lines) + "\n\n"


def _pivot(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Return a table with a column for each domain or stream, whose protocols may differ."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for label, row in rows.items():
        method, where = label.split(" | ")
        found.setdefault(method, {})[where] = row
    columns = list(next(iter(found.values())))
    best = {where: min(own[where]["error"] for own in found.values()) for where in columns}
    sizes = [next(iter(found.values()))[where]["n"] for where in columns]
    heads = [f"{where}, {n} predictions" for where, n in zip(columns, sizes, strict=True)]
    return [
        f"| method | {' | '.join(heads)} |",
        "|---|" + "--:|" * len(columns),
        *(
            f"| {method} | "
            + " | ".join(_emphasise(own[where]["error"], best[where]) for where in columns)
            + " |"
            for method, own in found.items()
        ),
    ]


def _emphasise(error: float, best: float) -> str:
    return f"**{error:.1f}**" if error == best else f"{error:.1f}"


def main() -> None:
    """Parse the command and run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("run", "report"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the suite")
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--rows", nargs="+", help="names of rows; without a domain or a stream")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    if asked.command == "report":
        write_report(asked.out)
        return
    run_suite(
        make_suite(asked.tables, asked.rows), asked.out, n_workers=asked.workers, on_event=_show
    )


if __name__ == "__main__":
    main()
