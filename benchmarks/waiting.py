"""How long a step waits for its images: the share of the time that is spent on reading.

    python benchmarks/waiting.py --out results/waiting.json

A folder of image files is streamed through `norm` (the cheapest method, so the hardest case),
`tent` and `swr_nsp`, as `acclimate adapt` does it: decoded by threads, one batch ahead. What is
measured is the time between the end of a step and the arrival of the next batch. The first batch,
for which nothing can be read ahead, counts too, and is also given on its own.

Two folders are made: 32×32 PNG for a ResNet-20, and 320×256 JPEG, resized and cropped to 224, for a
ResNet-50 (from torchvision, random weights).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acclimate.process import tune_process

tune_process()

import torch  # noqa: E402
from PIL import Image  # noqa: E402

import acclimate  # noqa: E402
from acclimate import Penalty, Prototypes, zoo  # noqa: E402
from acclimate.builtin import SPLITS, render  # noqa: E402
from acclimate.storage import versions  # noqa: E402
from acclimate.streams.folder import FolderStream  # noqa: E402

# model, images, height, width, suffix, size of the input, of the resize, batch
CASES: dict[str, tuple[str, int, tuple[int, int], str, int, int | None, int]] = {
    "resnet20": ("resnet20-cifar10", 8000, (32, 32), ".png", 32, None, 200),
    "resnet50": ("torchvision:resnet50", 192, (256, 320), ".jpg", 224, 256, 32),
}


def make_folder(root: Path, n: int, size: tuple[int, int], suffix: str) -> None:
    """Write computer-made images in the size and format asked for."""
    images, _ = render(n, SPLITS["test"])
    for number, pixels in enumerate(images):
        image = Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BICUBIC)
        image.save(root / f"{number:05}{suffix}")


def measure(name: str, method: str, root: Path) -> dict[str, Any]:
    """Stream the folder once through a method."""
    model_name, _, _, _, size, resize, batch_size = CASES[name]
    model = zoo.build(model_name)
    draws = torch.Generator().manual_seed(0)
    artifact = None
    if method == "swr_nsp":
        n = 16
        source = [(torch.rand(n, 3, size, size, generator=draws), torch.arange(n) % 10)]
        parts = [Penalty(n_samples=n), Prototypes(source="classifier")]
        artifact = acclimate.prepare(model, source, parts=parts)
    adapted = acclimate.adapt(model, method, artifact)
    adapted(torch.rand(batch_size, 3, size, size, generator=draws))  # warm up
    stream = iter(FolderStream(root, size, batch_size, resize=resize))
    waited = worked = first = 0.0
    while True:
        start = time.perf_counter()
        batch = next(stream, None)
        arrived = time.perf_counter()
        waited += arrived - start
        if batch is None:
            break
        first = first or waited
        adapted(batch[1])
        worked += time.perf_counter() - arrived
    share = waited / (waited + worked)
    print(f"{name:9} {method:8} waited {waited:6.3f} s of {waited + worked:7.2f} s: {share:.2%}")
    found = {"waited": waited, "waited_for_first": first, "worked": worked, "share": share}
    return {"net": name, "method": method, **found}


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--nets", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = []
    for name in arguments.nets:
        with tempfile.TemporaryDirectory() as folder:
            make_folder(Path(folder), *CASES[name][1:4])
            results += [measure(name, m, Path(folder)) for m in ("norm", "tent", "swr_nsp")]
    if arguments.out:
        provenance = {
            "command": " ".join(["python", *sys.argv]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "threads": arguments.threads,
            "cores": os.cpu_count(),
            "load": list(os.getloadavg()),
            "data": "images made by acclimate.builtin; weights random",
            "versions": versions(),
        }
        text = json.dumps({"provenance": provenance, "results": results}, indent=1)
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
