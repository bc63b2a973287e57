"""Time and memory of the SWR penalties: batched gradient cosines against the plain loop.

    python benchmarks/penalty.py --threads 2 --out results/penalty-2-threads.json

The loop is what the formula says: two passes of batch size 1 a sample, one cosine a parameter. It
runs on a part of the samples, and its time is extrapolated. All contenders run in turn, in one
process, in another order each round; ratios are taken within a round. Wall time is meant for idle
cores; on a busy machine CPU time is nearer to the truth. Memory is measured apart, in a fresh
process for each contender. Whether all compute the same is checked in the same run: with the loop
on its samples, in single precision, on a few of them in double precision, and between the speeds on
all samples. The nets have random weights, with running statistics of the images.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acclimate._version import __version__
from acclimate.functional.precision import has_fast_bfloat16
from acclimate.functional.swr_nsp import penalties
from penalty_cases import CONTENDERS, NETS, Cosines, make_case, run_exact, run_loop

METHOD = {
    "time": "one process, all contenders in turn on the same samples, order rotated each round, "
    "garbage collected before each; the loop's seconds are times samples / loop_samples",
    "memory": "one fresh process a contender: a run on 2 samples, then the peak of the resident "
    "set (VmHWM) reset through /proc/self/clear_refs, then a run on all samples (the loop: on its "
    "part); extra_mb is the peak minus the resident set before it, samples included in neither",
    "agreement": "of penalties (scaled to [0, 1] over the model), largest absolute difference",
}
_FEW = 4  # samples in double precision, and to warm up


def vector(cosines: Cosines) -> Tensor:
    """Return the penalties of all parameters."""
    return torch.stack(list(penalties(cosines).values()))


def measure_times(net: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return seconds of all contenders, run in turn, and how far they agree."""
    model, samples = make_case(net, arguments.samples)
    n_loop = min(arguments.loop_samples, arguments.samples)
    part = tuple(tensor[:n_loop] for tensor in samples)
    names = list(CONTENDERS)
    seconds: dict[str, Any] = {who: {"wall": [], "cpu": []} for who in names}
    found = {}
    for run in CONTENDERS.values():  # the first run pays for what torch sets up once
        run(model, *(tensor[:_FEW] for tensor in samples))
    for index in range(arguments.repeats):
        for who in names[index % len(names) :] + names[: index % len(names)]:
            gc.collect()
            factor = arguments.samples / n_loop if who == "loop" else 1.0
            wall, cpu = time.perf_counter(), time.process_time()
            found[who] = CONTENDERS[who](model, *(part if who == "loop" else samples))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            seconds[who]["wall"].append(factor * wall)
            seconds[who]["cpu"].append(factor * cpu)
            print(f"  round {index + 1}: {who:6} {wall:7.2f} s", file=sys.stderr, flush=True)
    exact, fast = vector(found["exact"]), vector(found["fast"])
    on_part = vector(run_exact(model, *part)) - vector(found["loop"])
    few = [t[:_FEW].double() if t.is_floating_point() else t[:_FEW] for t in samples]
    model.double()
    in_double = vector(run_exact(model, *few)) - vector(run_loop(model, *few))
    return {
        "seconds": seconds,
        "agreement": {
            "exact_loop_float32": on_part.abs().max().item(),
            "exact_loop_float64": in_double.abs().max().item(),
            "fast_exact": (fast - exact).abs().max().item(),
            "fast_exact_rank_correlation": rank_correlation(fast, exact),
        },
    }


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Return Spearman's correlation of two vectors without ties."""
    ranks = torch.stack([values.argsort().argsort().double() for values in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def measure_memory(net: str, arguments: argparse.Namespace, who: str) -> dict[str, Any]:
    """Return the megabytes one run adds to this process at its peak; on Linux."""
    n_samples = arguments.samples
    if who == "loop":
        n_samples = min(arguments.loop_samples, n_samples)
    model, samples = make_case(net, n_samples)
    CONTENDERS[who](model, *(tensor[:2] for tensor in samples))
    gc.collect()
    # Memory that the process holds unused would be taken first, and not be counted.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _read_status("VmRSS")
    CONTENDERS[who](model, *samples)
    return {"extra_mb": _read_status("VmHWM") - before}


def _read_status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{key}:"))


def in_fresh_process(arguments: argparse.Namespace, *task: str) -> dict[str, Any]:
    """Run this file again with a task; return what it prints."""
    command = [sys.executable, str(Path(__file__).resolve()), "--task", *task]
    for name in ("threads", "samples", "loop_samples", "repeats"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
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
        "fast_bfloat16": has_fast_bfloat16(torch.device("cpu")),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY"),
        "load_average_at_start": list(os.getloadavg()),
        "threads": arguments.threads,
        "samples": arguments.samples,
        "loop_samples": min(arguments.loop_samples, arguments.samples),
        "repeats": arguments.repeats,
        "method": METHOD,
    }


def add_ratios(found: dict[str, Any]) -> None:
    """Add how many times less each speed takes than the loop, by round."""
    loop = found["seconds"]["loop"]
    found["times_less_than_loop"] = {
        who: {
            clock: [a / b for a, b in zip(loop[clock], found["seconds"][who][clock], strict=True)]
            for clock in ("wall", "cpu")
        }
        for who in ("exact", "fast")
    }


def spread(values: list[float]) -> str:
    """Return the median, and the smallest and largest value."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def show(results: dict[str, Any], n_samples: int) -> None:
    """Print one line a net and contender: median (smallest to largest)."""
    print(f"{n_samples} samples; the loop is extrapolated")
    heads = ("wall s", "CPU s", "× less wall", "× less CPU")
    print(f"{'net':9} {'':6}" + "".join(f"{head:>24}" for head in heads) + f"{'extra MB':>10}")
    for net, found in results.items():
        for who in CONTENDERS:
            ratios = found["times_less_than_loop"].get(who, {})
            cells = [spread(found["seconds"][who][clock]) for clock in ("wall", "cpu")]
            cells += [spread(ratios[clock]) if ratios else "" for clock in ("wall", "cpu")]
            line = "".join(f"{cell:>24}" for cell in cells)
            print(f"{net:9} {who:6}{line}{found['extra_mb'][who]:10.0f}")
        agreement = found["agreement"]
        print(
            f"{'':9} penalties: exact − loop {agreement['exact_loop_float32']:.1e} (float32), "
            f"{agreement['exact_loop_float64']:.1e} (float64); fast − exact "
            f"{agreement['fast_exact']:.1e}, "
            f"rank correlation {agreement['fast_exact_rank_correlation']:.5f}"
        )


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--samples", type=int, default=1024, help="samples, N in the paper")
    parser.add_argument("--loop-samples", type=int, default=64, help="samples the loop runs on")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, all contenders in each")
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=["wrn-40-2"])
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.task:
        kind, net, *who = arguments.task
        measure = measure_memory if kind == "memory" else measure_times
        print(json.dumps(measure(net, arguments, *who)))
        return
    origin, results = provenance(arguments), {}
    for net in arguments.nets:
        found = in_fresh_process(arguments, "times", net)
        found["extra_mb"] = {
            who: in_fresh_process(arguments, "memory", net, who)["extra_mb"] for who in CONTENDERS
        }
        add_ratios(found)
        results[net] = found
    show(results, arguments.samples)
    if arguments.out:
        text = json.dumps({"provenance": origin, "results": results}, indent=2)
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
