"""What each option of speed costs in error, and saves in time: the choice of the levels.

    python benchmarks/levels.py --weights cifar10-resnet20.safetensors --out results/levels.json

swr_nsp on CIFAR-10 with a ResNet-20, on the four corruptions that the benchmark holds out for such
choices (speckle noise, Gaussian blur, spatter, saturate): the fifteen it is measured on are not
looked at here. Severity 5, file order, batches of 200, reset before each corruption, logits before
the update. Times are of one thread, on the same batches one after the other; bfloat16 is left out,
since not every machine has it.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

import acclimate
from acclimate import Speed, data, zoo
from acclimate.artifact import Artifact
from acclimate.corruptions import apply
from acclimate.snapshot import fingerprint
from acclimate.storage import versions

HELD_OUT = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
BATCH_SIZE = 200

ROWS = {
    "exact": Speed(),
    "view on a quarter": Speed(view_share=0.25),
    "view on a twentieth (fast)": Speed(view_share=0.05),
    "view every 4th batch": Speed(view_every=4),
    "no view": Speed(view_share=0.0),
    "no view, pinned from 0.5": Speed(view_share=0.0, pinned=0.5),
    "no view, pinned from 0.2 (fastest)": Speed(view_share=0.0, pinned=0.2),
    "no view, pinned from 0.1": Speed(view_share=0.0, pinned=0.1),
    "no view, pinned from 0.04": Speed(view_share=0.0, pinned=0.04),
    "no view, pinned from 0.01": Speed(view_share=0.0, pinned=0.01),
}


def load_domains(n: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return images and labels under each held-out corruption."""
    clean = data.load("cifar10", "test")
    y = torch.as_tensor(clean.labels[:n].copy()).long()
    found = {}
    for name in HELD_OUT:
        images = apply(clean.images[:n], name, 5, seed=0)
        found[name] = (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255, y)
    return found


def main() -> None:
    """Run every row on every corruption."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weights", type=Path, required=True, help="of resnet20-cifar10")
    parser.add_argument("--artifact", type=Path, required=True, help="prepared for that model")
    parser.add_argument("--images", type=int, default=3000, help="of each corruption")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = zoo.load("resnet20-cifar10", arguments.weights)
    artifact = Artifact.load(arguments.artifact)
    adapted = {
        name: acclimate.adapt(copy.deepcopy(model), "swr_nsp", artifact, speed=speed)
        for name, speed in ROWS.items()
    }
    wrong: dict[str, dict[str, int]] = {name: dict.fromkeys(HELD_OUT, 0) for name in ROWS}
    seconds: dict[str, list[float]] = {name: [] for name in ROWS}
    for shift, (x_all, y_all) in load_domains(arguments.images).items():
        batches = list(zip(x_all.split(BATCH_SIZE), y_all.split(BATCH_SIZE), strict=True))
        for method in adapted.values():
            method.reset()
        for x, y in track(batches, shift):
            for name, method in adapted.items():
                start = time.perf_counter()
                logits = method(x)
                seconds[name].append(time.perf_counter() - start)
                wrong[name][shift] += int((logits.argmax(dim=1) != y).sum())
    rows: dict[str, Any] = {}
    exact = seconds["exact"]
    for name, speed in ROWS.items():
        errors = {shift: 100 * n / arguments.images for shift, n in wrong[name].items()}
        ratios = [own / other for own, other in zip(seconds[name], exact, strict=True)]
        rows[name] = {
            "options": asdict(speed),
            "error": statistics.mean(errors.values()),
            "error_by_corruption": errors,
            "ms": 1000 * statistics.median(seconds[name]),
            "time_against_exact": statistics.median(ratios),
            "tensors_moved": len(adapted[name].parameters_moved),
        }
        print(f"{name:36} {rows[name]['error']:6.2f} % {rows[name]['time_against_exact']:5.2f}×")
    if arguments.out:
        provenance = {
            "command": " ".join(["python", *sys.argv]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "data": f"CIFAR-10 test, first {arguments.images} images, {', '.join(HELD_OUT)}, "
            "severity 5, generated with seed 0",
            "model": fingerprint(model)["weights_sha256"],
            "protocol": "file order, batch 200, reset per corruption, logits before the update, "
            "seed 0, 1 thread",
            "versions": versions(),
        }
        arguments.out.write_text(json.dumps({"provenance": provenance, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
