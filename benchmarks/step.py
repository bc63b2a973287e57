"""Time of one swr_nsp step: the library against a hand-written loop of the same arithmetic.

    python benchmarks/step.py --threads 2 --out results/step.json

The loop is what a person writes who needs this method for this one net: BatchNorm switched to batch
statistics once, the net cut into encoder and head, one backward for both losses, the regulariser's
gradient added tensor by tensor, torch's Adam; no checks, no state, nothing to undo. The transforms
are the library's, since a person would not write them again. Both run in turn in one process, on
the same batches; after the last one their logits are compared.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import acclimate
from acclimate.functional.views import VIEW_SETS, apply_views
from penalty import NETS, make_case


class Plain:
    """The hand-written loop."""

    def __init__(self, model: nn.Sequential, artifact: acclimate.Artifact, seed: int) -> None:
        model = copy.deepcopy(model).train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.track_running_stats = False
                module.running_mean = module.running_var = None
        self.encoder, self.head = model[:-1], model[-1]
        self.named = dict(model.named_parameters())
        self.optimizer = torch.optim.Adam(self.named.values(), lr=1e-3)
        self.penalty = {k: float(v) for k, v in artifact.part("penalty").items()}
        self.prototypes = F.normalize(artifact.part("prototypes")["embedding"], dim=1)
        self.previous: dict[str, Tensor] | None = None
        self.draws = torch.Generator().manual_seed(seed)

    def __call__(self, x: Tensor) -> Tensor:
        features = self.encoder(x)
        logits = self.head(features)
        view = self.encoder(apply_views(VIEW_SETS["test"], x, None, self.draws))
        loss = infomax(logits, 0.2, 0.25)
        near = F.normalize(features, dim=1) @ self.prototypes.T / 0.1
        near_view = F.normalize(view, dim=1) @ self.prototypes.T / 0.1
        loss = loss + infomax(near, 0.8, 0.25)
        target = near.detach().softmax(dim=1)
        loss = loss - 0.1 * (target * near_view.log_softmax(dim=1)).sum(dim=1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            if self.previous is not None:
                for name, p in self.named.items():
                    p.grad += 2 * 250 * self.penalty[name] * (p - self.previous[name])
            self.previous = {name: p.clone() for name, p in self.named.items()}
        self.optimizer.step()
        return logits.detach()


def infomax(logits: Tensor, confidence: float, diversity: float) -> Tensor:
    """Return weighted mean entropy minus weighted entropy of the mean."""
    log_p = logits.log_softmax(dim=1)
    p = log_p.exp()
    mean = p.mean(dim=0)
    return -confidence * (p * log_p).sum(dim=1).mean() + diversity * (mean * mean.log()).sum()


def measure(name: str, batch_size: int, repeats: int) -> dict[str, Any]:
    """Time both contenders in turn on the same batches."""
    model, _ = make_case(name, 64)
    draws = torch.Generator().manual_seed(0)
    source = [(torch.rand(64, 3, 32, 32, generator=draws), torch.arange(64) % 10)]
    options = acclimate.PenaltyOptions(n_samples=64)
    artifact = acclimate.prepare(model, source, penalty=options)
    contenders = {
        "hand-written": Plain(model, artifact, seed=0),
        "acclimate": acclimate.adapt(model, "swr_nsp", artifact, seed=0),
    }
    wall: dict[str, list[float]] = {key: [] for key in contenders}
    cpu: dict[str, list[float]] = {key: [] for key in contenders}
    last: dict[str, Tensor] = {}
    for index in range(repeats + 1):  # the first round warms up
        x = torch.rand(batch_size, 3, 32, 32, generator=draws)
        order = list(contenders) if index % 2 else list(reversed(contenders))
        for key in order:
            start, start_cpu = time.perf_counter(), time.process_time()
            last[key] = contenders[key](x)
            if index:
                wall[key].append(time.perf_counter() - start)
                cpu[key].append(time.process_time() - start_cpu)
    ratios = [a / b for a, b in zip(cpu["acclimate"], cpu["hand-written"], strict=True)]
    wall_ratios = [a / b for a, b in zip(wall["acclimate"], wall["hand-written"], strict=True)]
    return {
        "net": name,
        "wall_ms": {key: [round(1000 * v, 1) for v in values] for key, values in wall.items()},
        "cpu_ms": {key: [round(1000 * v, 1) for v in values] for key, values in cpu.items()},
        "median_cpu_ratio": statistics.median(ratios),
        "median_wall_ratio": statistics.median(wall_ratios),
        "largest_logit_difference": float((last["acclimate"] - last["hand-written"]).abs().max()),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=NETS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = []
    for name in arguments.nets:
        result = measure(name, arguments.batch_size, arguments.repeats)
        results.append(result)
        for key in ("hand-written", "acclimate"):
            print(f"{name:10} {key:13} {statistics.median(result['wall_ms'][key]):9.1f} ms wall")
        print(
            f"{name:10} ratio: CPU {result['median_cpu_ratio']:.3f}, "
            f"wall {result['median_wall_ratio']:.3f}; logits differ by at most "
            f"{result['largest_logit_difference']:.1e} after {arguments.repeats + 1} steps"
        )
    if arguments.out:
        provenance = {
            "command": " ".join(["python", *sys.argv]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "threads": arguments.threads,
            "batch_size": arguments.batch_size,
            "data": "uniform noise, 3×32×32",
            "weights": "random, seed 0",
            "versions": {"acclimate": acclimate.__version__, "torch": torch.__version__},
            "machine": {"cores": os.cpu_count(), "processor": platform.machine()},
        }
        content = json.dumps({"provenance": provenance, "results": results}, indent=1) + "\n"
        arguments.out.write_text(content)


if __name__ == "__main__":
    main()
