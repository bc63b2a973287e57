"""How much memory a step on whole street scenes takes: the peak of one SWR step.

    python benchmarks/dense_memory.py --out results/dense-memory.json

DeepLabV3+ with a ResNet-50 (random weights) predicts images of 1024 × 2048 pixels and adapts in the
setting of the paper's supplement: swr, preset cityscapes, batches of two images, and of one. Every
case runs in a process of its own, whose largest resident set is read after the first step; that of
the process before the step is given beside it. A case that needs more than `--limit` gigabytes is
ended by its own limit, and reported as such.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import acclimate
from acclimate import Penalty, Speed
from acclimate.metrics.cost import find_resident_peak
from acclimate.storage import versions
from dense_net import DeepLab

#: By name: what is changed against the plain step.
CASES = {
    "plain": Speed(),
    "checkpoint": Speed(checkpoint=True),
    "crop 512": Speed(crop=512),
    "crop 512, checkpoint": Speed(crop=512, checkpoint=True),
}


def make_model() -> DeepLab:
    """Return the model; the same in every process."""
    torch.manual_seed(0)
    return DeepLab().eval()


def write_artifact(path: Path) -> None:
    """Prepare the model; elsewhere than where the memory of a step is measured."""
    draws = torch.Generator().manual_seed(0)
    images, masks = torch.rand(2, 3, 64, 64, generator=draws), torch.zeros(2, 64, 64).long()
    source = [(images, masks)]
    acclimate.prepare(make_model(), source, parts=[Penalty(n_samples=2)]).save(path)


def run_case(name: str, artifact: Path, batch_size: int, height: int, width: int) -> dict[str, Any]:
    """Take one step, and return what it took."""
    prepared = acclimate.Artifact.load(artifact)
    adapted = acclimate.adapt(make_model(), "swr", prepared, preset="cityscapes", speed=CASES[name])
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(batch_size, 3, height, width, generator=draws)
    before = find_resident_peak()
    with adapted.paused():
        adapted(x[:1])  # the looks at the model that the first batch takes
    predicted = find_resident_peak()
    start = time.perf_counter()
    adapted(x)
    return {
        "seconds": time.perf_counter() - start,
        "peak_bytes": find_resident_peak(),
        "peak_of_prediction_bytes": predicted,
        "peak_before_bytes": before,
        "updates": adapted.counts.updates,
    }


def start_case(
    name: str, artifact: Path, batch_size: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run a case in a process of its own."""
    limit = int(arguments.limit * 2**30)
    command = [sys.executable, __file__, "--case", name]
    command += ["--batch-size", str(batch_size), "--threads", str(arguments.threads)]
    command += ["--artifact", str(artifact)]
    command += ["--size", *map(str, arguments.size)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return {"peak_bytes": None, "error": last[0][:200]}


def run_all(artifact: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the cases one after the other, and print their peaks."""
    rows = []
    for batch_size in arguments.batch_sizes:
        for name in arguments.cases:
            found = start_case(name, artifact, batch_size, arguments)
            rows.append({"case": name, "batch_size": batch_size, **found})
            peak = found["peak_bytes"]
            shown = (
                f"more than {arguments.limit:g} GiB" if peak is None else f"{peak / 2**30:.2f} GiB"
            )
            took = "" if peak is None else f" in {found['seconds']:.0f} s"
            print(f"batch of {batch_size}, {name:21} peak {shown}{took}", flush=True)
    return rows


def main() -> None:
    """Run all cases, print the peaks, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, nargs=2, default=[1024, 2048], help="height and width")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--limit", type=float, default=16.0, help="gigabytes a case may take")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--artifact", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.case is not None:
        case = (arguments.case, arguments.artifact, arguments.batch_size)
        print(json.dumps(run_case(*case, *arguments.size)))
        return
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / "deeplab.acclimate"
        write_artifact(artifact)
        rows = run_all(artifact, arguments)
    report = {
        "what": __doc__.split("\n")[0],
        "model": "DeepLabV3+, ResNet-50, output stride 16, 19 classes, random weights",
        "size": arguments.size,
        "threads": arguments.threads,
        "limit_gib": arguments.limit,
        "rows": rows,
        "versions": versions(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
