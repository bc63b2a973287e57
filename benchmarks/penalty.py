"""Time and memory of the SWR penalties: batched gradient cosines against the plain loop.

    python benchmarks/penalty.py --threads 1 --out results/penalty-1-thread.json
    python benchmarks/penalty.py --threads 2 --out results/penalty-2-threads.json

The loop is what the formula says: two passes of batch size 1 a sample, one cosine a parameter. Both
contenders run in turn, in one process, on the same CIFAR-sized nets with random weights; CPU time
is the fair measure on a busy machine, wall time only on an idle one. Memory is the peak of a fresh
process each. The largest difference between the two penalty vectors is reported beside the times.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate._version import __version__
from acclimate.functional.gradients import gradient_cosines
from acclimate.functional.penalty import penalties

Cosines = dict[str, Tensor]


class ResNetBlock(nn.Module):
    """Two convolutions and a shortcut without parameters (option A)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.stride, self.n_new = stride, n_out - n_in

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.n_new:
            x = x[:, :, :: self.stride, :: self.stride]
            x = F.pad(x, (0, 0, 0, 0, self.n_new // 2, self.n_new - self.n_new // 2))
        return F.relu(y + x)


class WideBlock(nn.Module):
    """Normalisation and ReLU first, then the convolution, twice (Wide ResNet)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(n_in)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if n_in != n_out else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.norm1(x))
        y = self.conv2(self.relu(self.norm2(self.conv1(h))))
        return y + (x if self.shortcut is None else self.shortcut(h))


def _stages(block: Callable[[int, int, int], nn.Module], width: int, depth: int) -> list[nn.Module]:
    blocks, n_in = [], 16
    for stage in range(3):
        for index in range(depth):
            n_out = width * 2**stage
            blocks.append(block(n_in, n_out, 2 if stage and not index else 1))
            n_in = n_out
    return blocks


def _net(name: str) -> nn.Sequential:
    stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
    relu, pool = nn.ReLU(inplace=True), (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if name == "resnet20":
        blocks = _stages(ResNetBlock, 16, 3)
        return nn.Sequential(stem, nn.BatchNorm2d(16), relu, *blocks, *pool, nn.Linear(64, 10))
    blocks = _stages(WideBlock, 32, 6)
    return nn.Sequential(stem, *blocks, nn.BatchNorm2d(128), relu, *pool, nn.Linear(128, 10))


NETS = ("resnet20", "wrn-40-2")


def make_case(name: str, n_samples: int) -> tuple[nn.Module, tuple[Tensor, Tensor, Tensor]]:
    """Return a net in evaluation mode, and samples with a grey, blurred view of each."""
    torch.manual_seed(0)
    model = _net(name)
    coarse = torch.rand(n_samples, 3, 8, 8)
    x = F.interpolate(coarse, size=32, mode="bilinear") + 0.1 * torch.randn(n_samples, 3, 32, 32)
    grey = 0.7 * x.mean(1, keepdim=True) + 0.3 * x
    x_transformed = F.avg_pool2d(grey, 3, 1, 1)
    with torch.no_grad():
        model.train()
        for part in x[:32].split(8):
            model(part)
    return model.eval(), (x, x_transformed, torch.randint(0, 10, (n_samples,)))


def run_loop(model: nn.Module, x: Tensor, x_transformed: Tensor, y: Tensor) -> Cosines:
    """Return mean cosines by two passes of batch size 1 a sample."""
    named = dict(model.named_parameters())
    sums = {name: torch.zeros((), dtype=torch.float64) for name in named}
    for sample, view, label in zip(x, x_transformed, y, strict=True):
        first, second = (
            torch.autograd.grad(
                F.cross_entropy(model(image[None]), label[None]), list(named.values())
            )
            for image in (sample, view)
        )
        for name, a, b in zip(named, first, second, strict=True):
            sums[name] += F.cosine_similarity(a.flatten(), b.flatten(), dim=0)
    return {name: total / len(x) for name, total in sums.items()}


def run_batched(model: nn.Module, x: Tensor, x_transformed: Tensor, y: Tensor) -> Cosines:
    """Return mean cosines by the package's function, with its defaults."""
    sums = gradient_cosines(model, model, x, x_transformed, y)
    return {name: found.total / len(x) for name, found in sums.items()}


CONTENDERS: dict[str, Callable[..., Cosines]] = {"loop": run_loop, "batched": run_batched}


def measure_times(name: str, n_samples: int, repeats: int) -> dict[str, Any]:
    """Return CPU and wall seconds of both contenders, run in turn, and how far they differ."""
    model, samples = make_case(name, n_samples)
    short = tuple(tensor[:4] for tensor in samples)
    seconds: dict[str, Any] = {who: {"cpu": [], "wall": []} for who in CONTENDERS}
    vectors = {}
    for run in CONTENDERS.values():  # the first run pays for what torch sets up once
        run(model, *short)
    for _ in range(repeats):
        for who, run in CONTENDERS.items():
            cpu, wall = time.process_time(), time.perf_counter()
            cosines = run(model, *samples)
            seconds[who]["cpu"].append(time.process_time() - cpu)
            seconds[who]["wall"].append(time.perf_counter() - wall)
            vectors[who] = torch.stack(list(penalties(cosines).values()))
    difference = (vectors["loop"] - vectors["batched"]).abs().max().item()
    return {"seconds": seconds, "largest_penalty_difference": difference}


def measure_memory(name: str, n_samples: int, who: str) -> dict[str, Any]:
    """Return the megabytes one run adds to this process at its peak."""
    model, samples = make_case(name, n_samples)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize()
    CONTENDERS[who](model, *samples)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"extra_mb": (peak - before) / 1e6}


def in_fresh_process(arguments: argparse.Namespace, *task: str) -> dict[str, Any]:
    """Run this file again with a task; return what it prints."""
    command = [sys.executable, str(Path(__file__).resolve()), "--task", *task]
    command += ["--threads", str(arguments.threads), "--samples", str(arguments.samples)]
    command += ["--repeats", str(arguments.repeats)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def provenance(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what is needed to read and repeat the figures."""
    model = "unknown"
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if "model name" in line), model)
    return {
        "command": " ".join(["python", "benchmarks/penalty.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "acclimate": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": model,
        "cpus": os.cpu_count(),
        "load_average_at_start": list(os.getloadavg()),
        "threads": arguments.threads,
        "samples": arguments.samples,
        "repeats": arguments.repeats,
    }


def show(results: dict[str, Any]) -> None:
    """Print one line a net and contender: median (smallest to largest)."""
    print(f"{'net':10} {'':8} {'CPU s':>22} {'wall s':>22} {'extra MB':>9}")
    for net, found in results.items():
        for who in CONTENDERS:
            cells = [
                f"{statistics.median(times):7.2f} ({min(times):.2f}–{max(times):.2f})"
                for times in found["seconds"][who].values()
            ]
            print(f"{net:10} {who:8} {cells[0]:>22} {cells[1]:>22} {found['extra_mb'][who]:9.0f}")
        cpu, wall = found["loop_over_batched_cpu"], found["batched_over_loop_wall"]
        print(
            f"{'':10} {cpu:.2f}× less CPU time, {wall:.2f}× the wall time, "
            f"penalties differ by at most {found['largest_penalty_difference']:.1e}"
        )


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--samples", type=int, default=128, help="samples, N in the paper")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender, in turn")
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.task:
        kind, net, *who = arguments.task
        measure = measure_memory if kind == "memory" else measure_times
        print(json.dumps(measure(net, arguments.samples, *(who or [arguments.repeats]))))
        return
    origin, results = provenance(arguments), {}
    for net in arguments.nets:
        found = in_fresh_process(arguments, "times", net)
        found["extra_mb"] = {
            who: in_fresh_process(arguments, "memory", net, who)["extra_mb"] for who in CONTENDERS
        }
        medians = {
            (who, clock): statistics.median(found["seconds"][who][clock])
            for who in CONTENDERS
            for clock in ("cpu", "wall")
        }
        found["loop_over_batched_cpu"] = medians["loop", "cpu"] / medians["batched", "cpu"]
        found["batched_over_loop_wall"] = medians["batched", "wall"] / medians["loop", "wall"]
        results[net] = found
    show(results)
    if arguments.out:
        arguments.out.write_text(json.dumps({"provenance": origin, "results": results}, indent=2))


if __name__ == "__main__":
    main()
