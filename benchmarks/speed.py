"""Time and memory of one batch: the library at every speed against loops written by hand.

    python benchmarks/speed.py --nets resnet20 wrn-40-2 --memory --out results/speed.json

All contenders run in one process, in turn, on the same batches; the order is rotated from round to
round, and the first round only warms up. Ratios are taken within a round, then their median: what
else the machine does meanwhile hits numerator and denominator alike. CPU time is that of all
threads. Memory is measured apart, in a fresh process for each contender. The loops by hand are in
`plain_loops.py`; nets, weights and penalties in `speed_cases.py`. Whether the library computes the
same as the paper's loop is checked in the same run.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from speed_cases import (
    CONTENDERS,
    NETS,
    PAPER,
    SAME,
    TENT,
    Batch,
    Case,
    choose_contenders,
    describe_steps,
    load_batches,
    make_case,
    make_contender,
    make_noise,
)
from speed_report import METHOD, describe_run, make_table

#: The largest difference of logits in double precision that rounding can explain.
TOLERANCE = 1e-8


def measure_times(
    case: Case, batches: Sequence[Batch], names: Sequence[str], warmup: int, say: Callable[..., Any]
) -> dict[str, dict[str, Any]]:
    """Return the times of each contender, and its ratios to the loops by hand."""
    contenders = {name: make_contender(name, case) for name in names}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for index, (x, _) in enumerate(batches):
        first = index % len(names)
        for name in [*names[first:], *names[:first]]:
            gc.collect()
            gc.disable()
            wall, cpu = time.perf_counter(), time.process_time()
            contenders[name](x)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            gc.enable()
            say(f"  round {index + 1} of {len(batches)}: {name:16} {1000 * wall:9.1f} ms")
            if index >= warmup:
                seconds[name].append((wall, cpu))
    measured = {name: np.array(values) for name, values in seconds.items()}
    n = len(batches[0][0])
    return {
        name: {
            "ms": summarize(1000 * own[:, 0]),
            "cpu_ms": summarize(1000 * own[:, 1]),
            "images_per_second": n / float(np.median(own[:, 0])),
            "against": {
                base: {
                    "wall": summarize(own[:, 0] / measured[base][:, 0]),
                    "cpu": summarize(own[:, 1] / measured[base][:, 1]),
                }
                for base in (TENT, PAPER, SAME)
                if base in measured
            },
            "steps": describe_steps(contenders[name]),
            "rounds": {
                "wall_ms": (1000 * own[:, 0]).round(2).tolist(),
                "cpu_ms": (1000 * own[:, 1]).round(2).tolist(),
            },
        }
        for name, own in measured.items()
    }


def summarize(values: np.ndarray) -> dict[str, float]:
    """Return the median and the spread of some numbers."""
    marks = {"min": 0, "q1": 25, "median": 50, "q3": 75, "max": 100}
    return {name: float(np.percentile(values, mark)) for name, mark in marks.items()}


def measure_memory(case: Case, batches: Sequence[Batch], name: str) -> dict[str, float]:
    """Return the megabytes that one step takes at its peak; for a fresh process on Linux."""
    contender, x = make_contender(name, case), batches[0][0]
    contender(x[:2])
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _read_status("VmRSS")
    contender(x)
    peak = _read_status("VmHWM")
    return {"peak_mb": peak - before, "before_mb": before, "whole_process_mb": peak}


def _read_status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{key}:"))


def compare_predictions(
    case: Case, batches: Sequence[Batch], say: Callable[..., Any] = lambda _: None
) -> dict[str, Any]:
    """Return how far swr_nsp-exact and the paper's loop agree on a stream.

    Labels, if the batches have any, are for counting errors only.
    """
    own, by_hand = make_contender("swr_nsp-exact", case), make_contender(PAPER, case)
    n_samples, n_same, largest = 0, 0, 0.0
    named: set[int] = set()
    n_wrong = {"swr_nsp-exact": 0, PAPER: 0}
    for index, (x, y) in enumerate(batches):
        say(f"  agreement: batch {index + 1} of {len(batches)}")
        logits, expected = own(x), by_hand(x)
        n_samples += len(x)
        n_same += int((logits.argmax(1) == expected.argmax(1)).sum())
        named |= set(expected.argmax(1).tolist())
        difference = float((logits - expected).abs().max())
        largest = max(largest, difference if difference == difference else float("inf"))
        if y is not None:
            n_wrong["swr_nsp-exact"] += int((logits.argmax(1) != y).sum())
            n_wrong[PAPER] += int((expected.argmax(1) != y).sum())
    found: dict[str, Any] = {
        "batches": len(batches),
        "samples": n_samples,
        "precision": str(batches[0][0].dtype).removeprefix("torch."),
        "same_class": n_same / n_samples,
        "classes_named": len(named),
        "largest_logit_difference": largest,
    }
    if batches[0][1] is not None:
        errors = {name: 100 * n / n_samples for name, n in n_wrong.items()}
        difference = errors["swr_nsp-exact"] - errors[PAPER]
        found |= {"error_percent": errors, "error_difference": difference}
    return found


def compare_in_double(n_batches: int = 20, batch_size: int = 16) -> dict[str, Any]:
    """Return how far both agree on a small net in double precision, where rounding is no excuse."""
    case = make_case("tiny", dtype=torch.float64)
    found = compare_predictions(case, make_noise("tiny", batch_size, n_batches, torch.float64))
    holds = found["largest_logit_difference"] <= TOLERANCE
    return {"net": "tiny", **found, "tolerance": TOLERANCE, "holds": holds}


def run_net(
    net: str, options: argparse.Namespace, counts: Mapping[str, int], say: Callable[..., Any]
) -> dict[str, Any]:
    """Return all figures of one net."""
    say(f"{net}: batches of {counts['batch_size']}")
    case = make_case(net, options.weights, options.artifact)
    names, left_out = choose_contenders(case, options.contenders)
    noise = make_noise(net, counts["batch_size"], counts["repeats"] + options.warmup, torch.float32)
    rows = measure_times(case, noise, names, options.warmup, say)
    for name in names if options.memory else ():
        say(f"  memory: {name}")
        rows[name]["memory"] = _measure_in_fresh_process(net, name, options, counts["batch_size"])
    base = rows.get(TENT, {}).get("memory", {})
    for row in rows.values():
        if "peak_mb" in base and "peak_mb" in row["memory"]:
            row["memory"]["against_tent"] = row["memory"]["peak_mb"] / base["peak_mb"]
    agreement = None
    if counts["agree"]:
        if options.data:
            stream = load_batches(
                options.data, options.corruption, counts["batch_size"], counts["agree"]
            )
            said = {"data": f"{options.data}, {options.corruption}, severity 5, file order"}
        else:
            stream = make_noise(net, counts["batch_size"], counts["agree"], torch.float32)
            said = {"data": "uniform noise"}
        agreement = said | compare_predictions(case, stream, say)
    return {
        "model": case.description,
        **counts,
        "left_out": left_out,
        "rows": rows,
        "agreement": agreement,
    }


def _measure_in_fresh_process(
    net: str, name: str, options: argparse.Namespace, batch_size: int
) -> dict[str, Any]:
    """Return the memory of a contender; a process that fails, or is killed, says so instead."""
    command = [sys.executable, str(Path(__file__).resolve()), "--task", name, "--nets", net]
    command += ["--threads", str(options.threads), "--batch-size", str(batch_size)]
    if options.weights is not None:
        command += ["--weights", str(options.weights), "--artifact", str(options.artifact)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:  # the times took long, and are not to be lost
        return {"failed": f"exit status {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def read_numbers(given: Sequence[str], defaults: Mapping[str, int], low: int = 0) -> dict[str, int]:
    """Return a number a net, from words such as 5 (for all) and wrn-28-10=2.

    >>> read_numbers(["3", "b=1"], {"a": 9, "b": 9})
    {'a': 3, 'b': 1}
    """
    numbers = dict(defaults)
    for word in sorted(given, key=lambda word: "=" in word):  # those for all come first
        net, _, number = word.rpartition("=")
        if (net and net not in numbers) or not number.isdigit() or int(number) < low:
            raise SystemExit(f"expected NUMBER or NET=NUMBER, at least {low}, found {word}.")
        numbers |= dict.fromkeys([net] if net else defaults, int(number))
    return numbers


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    nets = [net for net in NETS if net != "tiny"]
    add("--nets", nargs="+", default=nets, choices=NETS)
    add("--contenders", nargs="+", default=["*"], help="names or patterns such as 'swr_nsp-*'")
    add("--threads", type=int, default=2, help="threads of torch")
    add("--warmup", type=int, default=1, help="rounds before those that count")
    number = "a number for all nets, or NET=NUMBER"
    add("--repeats", nargs="+", default=[], metavar="N", help=f"rounds that count: {number}")
    add("--batch-size", nargs="+", default=[], metavar="N", help=number)
    add("--agree", nargs="+", default=[], metavar="N", help=f"batches to compare: {number}")
    add("--memory", action="store_true", help="measure peak memory too")
    add("--weights", type=Path, help="trained weights of the one net, if it is one of the zoo")
    add("--artifact", type=Path, help="prepared for those weights")
    add("--data", help="corrupted set to compare predictions and errors on, such as cifar10c")
    add("--corruption", default="gaussian_noise", help="of that set")
    add("--out", type=Path, help="where to write the figures as JSON")
    add("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.weights is None) != (options.artifact is None):
        parser.error("--weights and --artifact go together: the artifact belongs to the weights.")
    if options.weights is not None and [bool(NETS[n].zoo_name) for n in options.nets] != [True]:
        parser.error("--weights are of one net of the zoo: name it alone, as --nets resnet20.")
    if options.data and options.weights is None:
        parser.error("--data needs --weights: errors of random weights say nothing.")
    if options.memory and not Path("/proc/self/clear_refs").exists():
        parser.error("--memory needs Linux, which tells the peak of a process in /proc.")
    for pattern in options.contenders:
        if not any(fnmatch(name, pattern) for name in CONTENDERS):
            parser.error(f"no contender {pattern}; there are: {', '.join(CONTENDERS)}")
    options.contenders = [
        name for name in CONTENDERS if any(fnmatch(name, p) for p in options.contenders)
    ]
    return options


def main() -> None:
    """Measure, print tables, and write the figures."""
    options = read_options()
    torch.set_num_threads(options.threads)
    counts = {
        what: read_numbers(
            getattr(options, what), {net: getattr(spec, what) for net, spec in NETS.items()}, low
        )
        for what, low in (("repeats", 1), ("batch_size", 2), ("agree", 0))
    }
    if options.task:
        net = options.nets[0]
        case = make_case(net, options.weights, options.artifact)
        batches = make_noise(net, counts["batch_size"][net], 1, torch.float32)
        print(json.dumps(measure_memory(case, batches, options.task)))
        return
    say = Console(stderr=True, highlight=False, soft_wrap=True).print
    content: dict[str, Any] = {
        "provenance": describe_run(options.threads, options.warmup),
        "method": METHOD,
        "contenders": CONTENDERS,
        "agreement_in_double": compare_in_double(),
        "results": {},
    }
    for net in options.nets:
        own = {what: numbers[net] for what, numbers in counts.items()}
        content["results"][net] = run_net(net, options, own, say)
        Console(width=140).print(make_table(net, content["results"][net]))
        content["provenance"]["load_average"]["end"] = os.getloadavg()
        if options.out:  # after each net: the next may take hours
            options.out.write_text(json.dumps(content, indent=1) + "\n")
    double = content["agreement_in_double"]
    print(f"largest difference of logits in float64: {double['largest_logit_difference']:.1e}")
    if not double["holds"]:
        raise SystemExit(f"swr_nsp-exact and {PAPER} compute different things: see above.")
    rows = [row for found in content["results"].values() for row in found["rows"].values()]
    if any("failed" in row.get("memory", {}) for row in rows):
        raise SystemExit("the memory of some contenders could not be measured: see above.")


if __name__ == "__main__":
    main()
