"""Does adaptation hurt? Methods on many kinds of streams, without and with the guard.

    python benchmarks/harm.py run --out runs/harm                    # run, or resume
    python benchmarks/harm.py run --out runs/harm --models builtin   # one model only
    python benchmarks/harm.py sample                                 # make the ImageNet folders
    python benchmarks/harm.py report --out runs/harm                 # write the results

The report writes results/harm.json and the table in docs/streams.md. A cell is one method on one
stream with one model, about 2,000 predictions, fewer in small batches. With the guard on, no cell
with at least 2,000 predictions may be worse than the source model by more than 2 points, and no
other cell outside the 95 % interval of the difference. Data and weights that are not in the
repository are found by ACCLIMATE_DATA and ACCLIMATE_SHARED; models without them are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate import get_method
from acclimate.bench import Entry, Event, JobSpec, Outcome, Store, Suite, run_suite
from acclimate.corruptions import BENCHMARK
from acclimate.parts import Prototypes
from gather_reproduction import shorten_paths

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("ACCLIMATE_SHARED", ROOT.parent / "shared"))
METHODS = (
    *("norm", "tent", "eata", "roid", "rotta", "entropy", "infomax", "swr_nsp"),
    "steady",
)
SHIFTS = ("gaussian_noise", "contrast", "pixelate", "jpeg_compression")
#: Raise this number when the guard decides otherwise than before.
GUARD = 6
#: More points than this above the source model's error are harm; and what the guard may cost.
MOST_HARM, MOST_COST = 2.0, 0.3
ENOUGH = 2000


@dataclass(frozen=True)
class StreamCase:
    """A stream: its protocol, the images of each domain, and what differs from the usual job."""

    protocol: dict[str, Any]
    images: int = 500
    corruptions: tuple[str, ...] | None = SHIFTS
    rate: float = 1.0
    is_ordinary: bool = False
    methods: tuple[str, ...] = METHODS


def _iid(batch_size: int, images: int = 500, **others: Any) -> StreamCase:
    return StreamCase({"batch_size": batch_size, "order": "shuffled"}, images, **others)


STREAMS = {
    "i.i.d., batches of 1": _iid(1, 125),
    "i.i.d., batches of 2": _iid(2, 250),
    "i.i.d., batches of 4": _iid(4, 250),
    "i.i.d., batches of 8": _iid(8),
    "i.i.d., batches of 16": _iid(16),
    "i.i.d., batches of 64": _iid(64, is_ordinary=True),
    "i.i.d., batches of 200": _iid(200, 1000, is_ordinary=True),
    "sorted by label": StreamCase({"stream": "label_sorted", "batch_size": 64}),
    "Dirichlet 0.01": StreamCase({"stream": "dirichlet", "delta": 0.01, "batch_size": 64}),
    "Dirichlet 0.1": StreamCase({"stream": "dirichlet", "delta": 0.1, "batch_size": 64}),
    "one class for 100 batches": StreamCase(
        {"stream": "one_class", "n_batches": 100, "n_classes": 3, "batch_size": 8},
        corruptions=("jpeg_compression",),
        images=1000,
    ),
    "video": StreamCase(
        {"stream": "video", "frames": 32, "n_scenes": 32, "batch_size": 16},
        corruptions=("gaussian_noise", "jpeg_compression"),
    ),
    "mixed domains": StreamCase({"stream": "mixed", "batch_size": 64}),
    "continual": StreamCase(
        {"stream": "continual", "batch_size": 64, "order": "shuffled"}, 150, corruptions=None
    ),
    "recurring, 20 visits": StreamCase(
        {"stream": "recurring", "times": 20, "batch_size": 50, "order": "shuffled"},
        50,
        corruptions=("gaussian_noise", "contrast"),
    ),
    "clean": _iid(64, 2000, corruptions=()),
    "clean and corrupted in turns": StreamCase(
        {"stream": "alternating", "batch_size": 64, "order": "shuffled"}, 250
    ),
    "rate × 3": _iid(64, rate=3.0),
    "rate × 10": _iid(64, rate=10.0),
    "noise images inserted": StreamCase({"stream": "foreign", "share": 0.2, "batch_size": 64}),
}

MODELS: dict[str, dict[str, Any]] = {
    "builtin": {"model": "builtin", "data": "builtin"},
    "resnet20": {
        "model": "resnet20-cifar10",
        "weights": str(SHARED / "data/weights/cifar10-resnet20.safetensors"),
        "data": "cifar10c",
    },
    "resnet26-gn": {
        "model": "resnet26-gn-cifar10",
        "weights": str(SHARED / "data/weights/cifar10-resnet26-gn.safetensors"),
        "data": "cifar10c",
    },
}
# A sample of ImageNet: one image of each class. Every second class calibrates, the others are the
# stream, with noise of severity 3; `sample` makes the folders.
SAMPLE = Path(os.environ.get("ACCLIMATE_DATA", "")) / "imagenet-sample"
MODELS["efficientnet-lite0"] = {
    "model": "acclimate.paper.efficientnet:efficientnet_lite0",
    "data": str(SAMPLE / "noisy"),
    "classes": str(SAMPLE / "classes.txt"),
    "severities": [3],
    "prepare": {
        "source": str(SAMPLE / "source"),
        "parts": {"accuracy": {"n_samples": 128, "severities": [5], "n_runs": 4}},
    },
}
#: Source images of methods with prototypes, which need every class: the clean photographs of the
#: stream are among them, so these rows are better than they can be elsewhere.
ALL_CLASSES = {"efficientnet-lite0": str(SAMPLE / "all")}
#: The streams of a model that is too slow for all.
SOME = {
    "efficientnet-lite0": (
        *("i.i.d., batches of 4", "i.i.d., batches of 16", "i.i.d., batches of 64", "video"),
    )
}
CLEAN = {"builtin": "builtin", "cifar10c": "cifar10"}


@dataclass(frozen=True)
class Cell:
    """One method on one stream, without and with the guard, and the source model there."""

    model: str
    stream: str
    method: str
    source: Outcome
    found: dict[bool, Outcome] = field(default_factory=dict)


def make_suite(
    models: list[str],
    methods: list[str],
    guards: tuple[bool, ...] = (False, True),
    streams: Sequence[str] = tuple(STREAMS),
) -> Suite:
    """Return the jobs of all cells of some models and methods, without and with the guard."""
    entries = []
    for model in models:
        for stream, case in ((name, STREAMS[name]) for name in streams):
            for method in ("source", *case.methods):
                if method not in ("source", *methods) or stream not in SOME.get(model, STREAMS):
                    continue
                if model == "resnet26-gn" and method == "norm":
                    continue  # it has no BatchNorm
                has_rate = hasattr(get_method(method).config_class(), "lr")
                if case.rate != 1 and method != "source" and not has_rate:
                    continue
                for guard in (False,) if method == "source" else guards:
                    chosen = MODELS[model]
                    if model in ALL_CLASSES and Prototypes in get_method(method).needs:
                        prepare = {**chosen["prepare"], "source": ALL_CLASSES[model]}
                        chosen = {**chosen, "prepare": prepare}
                    spec = _spec(chosen, case, method, guard)
                    label = f"{stream} | {method}" + (" | guard" if guard else "")
                    entries.append(Entry(spec, label, model))
    title = "Methods on all kinds of streams, without and with the guard"
    return Suite(title=title, entries=tuple(entries))


def _spec(model: dict[str, Any], case: StreamCase, method: str, guard: bool) -> JobSpec:
    data, corruptions = model["data"], case.corruptions
    if "classes" in model:  # a folder has the corruptions that it has
        corruptions = None
    if corruptions == ():
        data, corruptions = CLEAN[data], None
    elif corruptions is None and data == "builtin":
        corruptions = BENCHMARK  # without names, the built-in images are clean
    options = {}
    if case.rate != 1 and method != "source":
        options["lr"] = case.rate * get_method(method).config_class().lr
    return JobSpec.from_dict(
        {
            "prepare": {"images": 2048},
            **model,
            "data": data,
            "images": case.images,
            "corruptions": None if corruptions is None else list(corruptions),
            "protocol": case.protocol,
            "method": method,
            "options": options,
            "guard": guard,
        }
    )


def read_cells(out: Path) -> list[Cell]:
    """Return the cells with the jobs that are done; without a guard, single images are refused."""
    found: dict[tuple[str, str, str], dict[bool, Outcome]] = {}
    for outcome in Store(out, make_suite(list(MODELS), list(METHODS))).outcomes():
        stream, method, *guard = outcome.entry.label.split(" | ")
        found.setdefault((outcome.entry.group, stream, method), {})[bool(guard)] = outcome
    return [
        Cell(model, stream, method, found[model, stream, "source"][False], jobs)
        for (model, stream, method), jobs in found.items()
        if method != "source" and (model, stream, "source") in found
    ]


def judge(cell: Cell) -> dict[str, Any]:
    """Return errors of a cell in percent, and whether the guard kept its promise there."""
    off, on, source = cell.found.get(False), cell.found[True], cell.source
    n = on.result.n
    harm = on.error - source.error
    # The difference of two proportions on the same images; they are at most independent.
    shares = [outcome.error / 100 for outcome in (on, source)]
    half = 196 * math.sqrt(sum(share * (1 - share) for share in shares) / n)
    limit = MOST_HARM if n >= ENOUGH else max(MOST_HARM, half)
    case = STREAMS[cell.stream]
    return {
        "model": cell.model,
        "stream": cell.stream,
        "method": cell.method,
        "n": n,
        "source": round(source.error, 2),
        "off": None if off is None else round(off.error, 2),
        "on": round(on.error, 2),
        "harm": round(harm, 2),
        "cost": round(on.error - off.error, 2) if off is not None and case.is_ordinary else None,
        "limit": round(limit, 2),
        "kept": harm <= limit,
        "protocol": on.provenance.get("protocol_line"),
        "guard": GUARD,
    }


def write_section(page: Path, mark: str, text: str) -> None:
    """Replace what stands between <!-- mark --> and <!-- /mark --> on a page."""
    before, rest = page.read_text(encoding="utf-8").split(f"<!-- {mark} -->")
    after = rest.split(f"<!-- /{mark} -->")[1]
    page.write_text(f"{before}<!-- {mark} -->\n{text}<!-- /{mark} -->{after}", encoding="utf-8")


def write_report(out: Path) -> None:
    """Write results/harm.json and the table in docs/streams.md.

    Cells that are not in the folder are kept. Those of an earlier guard are marked.
    """
    every = read_cells(out)
    cells = [cell for cell in every if True in cell.found]
    rows = [judge(cell) for cell in cells]
    provenance = cells[0].found[True].provenance
    content = json.loads((ROOT / "results/harm.json").read_text(encoding="utf-8"))
    earlier = {_name(row): row for row in content["cells"]}
    for row in rows:
        # A run with the guard only: without it, nothing has changed.
        if row["off"] is None and (known := earlier.get(_name(row))) is not None:
            row["off"] = known["off"]
    measured = {_name(row) for row in rows}
    without = {(c.model, c.stream, c.method): c.found[False] for c in every if False in c.found}
    for name, row in earlier.items():
        if name not in measured:
            error = row["off"] if name not in without else round(without[name].error, 2)
            rows.append({**row, "off": error})
    places = [list(MODELS), list(STREAMS), list(METHODS)]
    rows.sort(
        key=lambda row: [
            order.index(row[key])
            for order, key in zip(places, ("model", "stream", "method"), strict=True)
        ]
    )
    kept = sum(row["kept"] for row in rows)
    content = {"n_cells": len(rows), "n_kept": kept, "provenance": provenance, "cells": rows}
    text = shorten_paths(json.dumps(content, indent=1, ensure_ascii=False, default=str))
    (ROOT / "results/harm.json").write_text(text + "\n", encoding="utf-8")
    write_section(ROOT / "docs/streams.md", "harm", _markdown(rows))
    print(f"{kept} of {len(rows)} cells keep the promise.")
    for row in sorted(rows, key=lambda row: -row["harm"])[:15]:
        print(
            f"{row['harm']:+6.2f}  {row['model']}, {row['stream']}, {row['method']}: source "
            f"{row['source']}, off {row['off']}, on {row['on']}"
        )


def _markdown(rows: list[dict[str, Any]]) -> str:
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        methods = [name for name in METHODS if any(row["method"] == name for row in own)]
        kept = sum(row["kept"] for row in own)
        n_earlier = sum(row["guard"] < GUARD for row in own)
        earlier = f" {n_earlier} were measured with an earlier version of the guard (*)."
        lines += [
            f"\n**{model}**: {kept} of {len(own)} cells keep the promise. Error in %, without → "
            f"with the guard; a cell that does not keep it is bold.{earlier * bool(n_earlier)}\n",
            "| stream | source | " + " | ".join(f"`{name}`" for name in methods) + " |",
            "|---|--:|" + "--:|" * len(methods),
        ]
        for stream in dict.fromkeys(row["stream"] for row in own):
            here = {row["method"]: row for row in own if row["stream"] == stream}
            texts = [_cell(here.get(name)) for name in methods]
            source = next(iter(here.values()))["source"]
            lines.append(f"| {stream} | {source:.1f} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n\n"


def make_sample() -> None:
    """Unpack the ImageNet sample, divide its classes, and add noise to the half that is served."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(SHARED / "data/imagenet-sample-1000-224.tar") as archive:
            archive.extractall(folder, filter="data")
        classes = sorted(Path(folder, "imagenet-sample").iterdir())
        for number, path in enumerate(classes):
            for kind in ("all", ("source", "stream")[number % 2]):
                shutil.copytree(path, SAMPLE / kind / path.name, dirs_exist_ok=True)
    names = "".join(f"{path.name}\n" for path in classes)
    (SAMPLE / "classes.txt").write_text(names, encoding="utf-8")
    corrupt = ["acclimate", "data", "corrupt", str(SAMPLE / "stream"), "--name", "gaussian_noise"]
    subprocess.run([*corrupt, "--severity", "3", "--out", str(SAMPLE / "noisy")], check=True)


def _name(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["model"], row["stream"], row["method"]


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    is_single = STREAMS[row["stream"]].protocol["batch_size"] == 1
    off = f"{row['off']:.1f}" if row["off"] is not None else "refused" if is_single else "–"
    text = f"{off} → {row['on']:.1f}"
    text = f"{text} (*)" if row["guard"] < GUARD else text
    return text if row["kept"] else f"**{text}**"


def _show(event: Event) -> None:
    """Print what has ended."""
    if event.kind in ("finished", "done", "failed") and event.entry is not None:
        print(event.kind, event.entry.group, event.entry.label, event.text[:80], flush=True)


def main() -> None:
    """Parse the command and run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("run", "report", "sample"))
    parser.add_argument("--out", type=Path, default=Path("runs/harm"), help="folder of the suite")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--streams", nargs="+", choices=list(STREAMS), default=list(STREAMS))
    parser.add_argument("--guard", choices=("off", "on", "both"), default="both")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    if asked.command == "sample":
        make_sample()
        return
    if asked.command == "report":
        write_report(asked.out)
        return
    usable = [
        name
        for name in asked.models
        if Path(MODELS[name].get("weights", MODELS[name].get("classes", ROOT))).exists()
    ]
    guards = {"off": (False,), "on": (True,), "both": (False, True)}[asked.guard]
    suite = make_suite(usable, asked.methods, guards, asked.streams)
    run_suite(suite, asked.out, n_workers=asked.workers, on_event=_show)


if __name__ == "__main__":
    main()
