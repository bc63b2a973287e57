"""Take what `acclimate eval` has measured into the folder of a suite, where it is the same job.

    python benchmarks/take_eval.py EVAL_DIR STORE table-1b --weights resnet20-cifar10=w.safetensors

A full table on two cores takes hours. Runs of `eval` with the same model, images, stream, seed and
method need not be repeated: their records are copied into the jobs' folders, where `acclimate
reproduce --store STORE` finds them. Everything is compared first, checksums of all images and the
prepared tensors included; what differs in anything is left to be run. Prepared tensors may differ
by rounding: another order of summation moves penalties by 1e-5. The provenance keeps the command,
the date and the artifact of the run that measured.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact
from acclimate.bench.folder import MEASURES, RECORDS, RESULT, JobFolder
from acclimate.bench.job import load_job
from acclimate.bench.materials import Materials
from acclimate.bench.origin import Spent, describe_origin
from acclimate.bench.spec import JobSpec
from acclimate.bench.store import Store
from acclimate.comparison import Job
from acclimate.evaluation import Record, Result
from acclimate.metrics import unpack_sums
from acclimate.metrics.groups import merge
from acclimate.paper import EXPERIMENTS, Settings
from acclimate.storage import digest

ARTIFACT = "artifact.acclimate"

# What must be equal; methods and artifact are compared apart.
SAME = ("model", "device", "channels_last", "normalization", "protocol", "data", "reveal_labels")
# As close as float32 brings the penalties to those of one sample at a time.
ROUNDING = 1e-4


def find_difference(job: Job, spec: JobSpec, measured: dict[str, Any], artifact: Path) -> str:
    """Return in what a job differs from what was measured; nothing if in nothing."""
    ours: dict[str, Any] = json.loads(json.dumps(job.settings()))
    for name in SAME:
        if ours.get(name) != measured.get(name):
            return name
    if ours["methods"][spec.method] != measured["methods"].get(spec.method):
        return "options of the method"
    if spec.seed not in measured["seeds"]:
        return "seed"
    if job.wrapping.artifact is None:
        return ""
    if not artifact.is_file():
        return "the artifact is not there"
    theirs = Artifact.load(artifact).tensors
    for name, tensor in job.wrapping.artifact.tensors.items():
        if name.startswith("accuracy/"):  # for the guard, which neither has
            continue
        if name not in theirs or not torch.allclose(tensor, theirs[name], rtol=0, atol=ROUNDING):
            return f"artifact, {name}"
    return ""


def take(spec: JobSpec, job: Job, folder: JobFolder, evaluated: Path, file: Path | None) -> None:
    """Write the records of a method as those of the job."""
    told = json.loads((evaluated / "result.json").read_text())["provenance"]
    lines = [json.loads(line) for line in (evaluated / RECORDS).open()]
    own = [line for line in lines if (line["method"], line["seed"]) == (spec.method, spec.seed)]
    sums = [json.loads(line) for line in (evaluated / MEASURES).open()]
    sums = [line for line in sums if (line["method"], line["seed"]) == (spec.method, spec.seed)]
    records, text, ends = [], "", {}
    for index, line in enumerate(own):
        unit = line["unit"]
        values = {key: line[key] for key in line if key not in ("seed", "method", "unit")}
        record = Record.from_dict({**values, "index": index})
        records.append(record)
        text += json.dumps({"unit": unit, **record.to_dict()}) + "\n"
        ends[unit] = len(text.encode())
    unpacked = [unpack_sums(line["measures"]) for line in sums]
    merged = merge(pair for each in unpacked for pair in each.items())
    adapted = adapt(job.model, spec.method, job.wrapping.artifact, config=job.methods[spec.method])
    origin = describe_origin(spec, job, adapted, job.clean, told["command"], file)
    adapted.unwrap()
    for unknown in ("machine", "versions"):
        origin[unknown] = told.get(unknown, told["settings"].get(unknown))
    if origin["artifact"] is not None:
        origin["artifact"]["sha256"] = digest(Artifact.load(evaluated / ARTIFACT).tensors)
    origin |= {"date": told["date"], "n_batches": len(records), "measured_by": "acclimate eval"}
    folder.make()
    with folder.hold() as is_mine:
        if not is_mine or folder.is_done:
            return
        folder.describe(spec)
        (folder.path / RECORDS).write_text(text)
        with (folder.path / MEASURES).open("w") as out:
            for line in sums:
                kept = {"unit": line["unit"], "bytes": ends[line["unit"]]}
                out.write(json.dumps({**kept, "measures": line["measures"]}) + "\n")
        summary = Result(tuple(records), merged).to_dict()
        content = {"key": spec.key, "n_batches": len(records), "summary": summary}
        folder.write(RESULT, {**content, "provenance": origin})


def main() -> None:
    """Take what is the same, and say what is not."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("evaluated", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--weights", action="append", default=[], metavar="MODEL=FILE")
    asked = parser.parse_args()
    weights = dict(pair.split("=", 1) for pair in asked.weights)
    suite = EXPERIMENTS[asked.experiment].suite("small", None, Settings(weights=weights))
    store = Store.create(asked.store, suite)
    measured = json.loads((asked.evaluated / "job.json").read_text())
    materials = Materials(store.artifacts)
    for name, entry in store.jobs().items():
        spec, folder = entry.spec, store.folder(name)
        if folder.is_done or spec.method not in measured["methods"]:
            continue
        job = load_job(spec, materials, Spent())
        if difference := find_difference(job, spec, measured, asked.evaluated / ARTIFACT):
            print(f"{spec.method}: not the same job: {difference}")
            continue
        take(spec, job, folder, asked.evaluated, materials.path_of(spec))
        print(f"{spec.method}: taken")


if __name__ == "__main__":
    main()
