"""What the bench engine costs, and what a second worker brings.

    python benchmarks/bench_scaling.py --out results/bench-scaling.json

*Scaling*: a suite of eight equal jobs is run by one worker that is pinned to one core, and by two
workers on two cores, in turn; a run counts from the first job's start to the last one's end, and
again with the loading of torch, which happens once for each worker whatever the suite. *Overhead*:
a job of fifty batches on WRN-40-2 with random weights; everything that is not inside the method's
own calls counts: loading, wrapping, warming up, records, checkpoints, provenance. Preparing an
artifact is not in it: it is work of the method, done once for many jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acclimate.process import tune_process

tune_process()

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from acclimate import zoo  # noqa: E402
from acclimate.bench import Entry, JobSpec, Store, Suite, run_suite  # noqa: E402
from acclimate.bench.provenance import describe_machine  # noqa: E402
from acclimate.storage import versions  # noqa: E402

N_JOBS = 8


def make_equal_jobs(n_images: int) -> Suite:
    """Return eight jobs that differ in the seed only, and take equally long."""
    entries = []
    for seed in range(N_JOBS):
        spec = JobSpec(
            method="tent",
            corruptions=("gaussian_noise",),
            images=n_images,
            protocol={"batch_size": 50},
            seed=seed,
        )
        entries.append(Entry(spec, "tent"))
    return Suite(title="eight equal jobs", entries=tuple(entries))


def run_pinned(n_images: int, n_workers: int, cores: str, out: Path) -> dict[str, float]:
    """Run the suite in a process that may use these cores only; return its times."""
    start = time.perf_counter()
    subprocess.run(
        [
            *("taskset", "-c", cores),
            *(sys.executable, __file__, "--child", str(out)),
            *("--images", str(n_images), "--workers", str(n_workers)),
        ],
        check=True,
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
    )
    whole = time.perf_counter() - start
    own = json.loads((out / "times.json").read_text())
    return {"seconds": own["end"] - own["start"], "with_loading": whole}


def run_child(n_images: int, n_workers: int, out: Path) -> None:
    """Run the suite, and write down when the first job started and the last one ended."""
    times: dict[str, float] = {}

    def note(event: Any) -> None:
        if event.kind == "started":
            times.setdefault("start", time.perf_counter())
        elif event.kind == "finished":
            times["end"] = time.perf_counter()

    suite = make_equal_jobs(n_images)
    if len(run_suite(suite, out, n_workers=n_workers, on_event=note)) != N_JOBS:
        raise SystemExit(f"not all jobs were done; see acclimate bench status {out}")
    (out / "times.json").write_text(json.dumps(times))


def measure_scaling(n_images: int, repeats: int, place: Path) -> dict[str, Any]:
    """Return the times of one worker on one core and of two on two, and their ratios."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    ways = {"one": (1, str(cores[0])), "two": (2, f"{cores[0]},{cores[-1]}")}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for repeat in range(repeats):
        for name, (n_workers, where) in ways.items():
            out = place / f"{name}-{repeat}"
            rows[name].append(run_pinned(n_images, n_workers, where, out))
            print(f"{name} worker(s), run {repeat}: {rows[name][-1]['seconds']:.1f} s", flush=True)
    ratios = {
        key: [two[key] / one[key] for one, two in zip(rows["one"], rows["two"], strict=True)]
        for key in ("seconds", "with_loading")
    }
    return {
        "jobs": N_JOBS,
        "method": "tent",
        "images_each": n_images,
        "batch_size": 50,
        "runs": rows,
        "ratio_two_to_one": {
            key: {"median": statistics.median(own), "all": own} for key, own in ratios.items()
        },
    }


def measure_overhead(n_batches: int, batch_size: int, method: str, place: Path) -> dict[str, Any]:
    """Return what a job on WRN-40-2 spends outside the method's own calls."""
    weights = place / "wrn40-2.safetensors"
    torch.manual_seed(0)
    save_file(zoo.build("wrn40-2-cifar10").state_dict(), weights)
    spec = JobSpec(
        model="wrn40-2",
        weights=str(weights),
        corruptions=("gaussian_noise",),
        # Images of the built-in task are made when they are loaded: few are, and seen often.
        images=batch_size,
        protocol={"batch_size": batch_size, "epochs": n_batches},
        method=method,
    )
    suite = Suite(title="overhead", entries=(Entry(spec, method),))
    (outcome,) = run_suite(suite, place / "overhead", n_workers=1)
    (state,) = Store(place / "overhead").statuses()
    seconds = dict(outcome.provenance["seconds"])
    outside = seconds["total"] - seconds["method"] - seconds.get("artifact", 0.0)
    share = outside / (seconds["total"] - seconds.get("artifact", 0.0))
    print(f"overhead of {state.done} batches on WRN-40-2: {share:.2%} of the job")
    return {
        "net": "wrn40-2, random weights",
        "method": method,
        "batches": n_batches,
        "batch_size": batch_size,
        "threads": outcome.provenance["n_threads"],
        "seconds": seconds,
        "outside_seconds": outside,
        "share": share,
    }


def main() -> None:
    """Measure both, and write the figures with where they come from."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=2000, help="of each of the eight jobs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, default=50, help="of the job on WRN-40-2")
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--method", default="tent", help="of that job")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        run_child(arguments.images, arguments.workers, arguments.child)
        return
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        scaling = measure_scaling(arguments.images, arguments.repeats, place)
        sizes = (arguments.batches, arguments.batch_size)
        overhead = measure_overhead(*sizes, arguments.method, place)
    ratio = scaling["ratio_two_to_one"]["seconds"]["median"]
    print(f"two workers take {ratio:.2f} of the time of one that is pinned to one core")
    if arguments.out is None:
        return
    content = {
        "provenance": {
            "command": " ".join(["python", *sys.argv]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "data": "built-in task, gaussian_noise at severity 5",
            "machine": describe_machine(torch.device("cpu")),
            "versions": versions(),
            "load_average": {"start": load, "end": os.getloadavg()},
        },
        "scaling": scaling,
        "overhead": overhead,
    }
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
