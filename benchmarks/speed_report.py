"""What `speed.py` says beside its figures, and the table it prints them in."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

import acclimate
from acclimate.functional.precision import has_fast_bfloat16
from acclimate.methods.compute import SPEEDS
from acclimate.storage import versions
from speed_cases import PAPER, SAME, TENT

METHOD = {
    "time": "one process, all contenders in turn on the same batches, order rotated each round, "
    "garbage collected before each call; ratios are paired by round, then summarised",
    "memory": "one fresh process a contender: a step on a batch of 2, then unused memory given "
    "back and the peak (VmHWM) reset through /proc/self/clear_refs, then one step on a whole "
    "batch; peak_mb is the peak of the resident set in that step minus the resident set before it",
    "agreement": "swr_nsp-exact and hand-paper on the same stream from the same weights; logits "
    "before each update are compared. Random weights leave no margin between classes: in float32 "
    "rounding, which Adam magnifies, changes them. The share of equal classes is meant for trained "
    "weights, the difference in float64 for all",
    "hyper_parameters": "the library's defaults, which are those for CIFAR, for all nets",
    "images": "uniform noise, unless the agreement names data",
}
_LIBRARIES = (
    "OMP",
    "KMP",
    "GOMP",
    "MKL",
    "MALLOC",
    "DNNL",
    "ONEDNN",
    "TORCH",
    "ATEN",
    "LD_PRELOAD",
)
_FLAGS = ("avx", "amx", "fma", "f16c", "sse4", "asimd", "bf16", "i8mm", "sve")


def describe_machine() -> dict[str, Any]:
    """Return what decides how fast the machine is."""
    file = Path("/proc/cpuinfo")
    known: dict[str, str] = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        key, _, value = line.partition(":")
        known.setdefault(key.strip(), value.strip())
    flags = known.get("flags", known.get("Features", "")).split()
    return {
        "processor": known.get("model name", platform.processor() or platform.machine()),
        "flags": sorted(flag for flag in flags if flag.startswith(_FLAGS) or "bf16" in flag),
        "torch_capability": torch.backends.cpu.get_cpu_capability(),
        "fast_bfloat16": has_fast_bfloat16(torch.device("cpu")),
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def digest_code() -> str:
    """Return a hash of the package's source and of this benchmark's."""
    places = Path(acclimate.__file__).parent, Path(__file__).parent
    files = sorted([*places[0].rglob("*.py"), *places[1].glob("speed*.py")])
    files.append(places[1] / "plain_loops.py")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def describe_run(threads: int, warmup: int, script: str = "speed.py") -> dict[str, Any]:
    """Return what is needed to read and repeat the figures; no absolute path is in it."""
    variables = {
        name: ":".join(Path(part).name for part in value.split(":"))
        for name, value in sorted(os.environ.items())
        if name.startswith(_LIBRARIES)
    }
    arguments = [
        "=".join(Path(part).name if part.startswith("/") else part for part in word.split("="))
        for word in sys.argv[1:]
    ]
    return {
        "command": " ".join(["python", f"benchmarks/{script}", *arguments]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": threads,
        "warmup_rounds": warmup,
        "environment": {"OMP_WAIT_POLICY": None, **variables},
        "machine": describe_machine(),
        "versions": versions(),
        "code_sha256": digest_code(),
        "speeds": {name: speed.to_dict() for name, speed in SPEEDS.items()},
        "load_average": {"start": os.getloadavg(), "end": None},
    }


def make_table(net: str, found: Mapping[str, Any]) -> Table:
    """Return the figures of one net as a table."""
    table = Table(title=f"{net}, batches of {found['batch_size']}, {found['repeats']} rounds")
    table.add_column("contender")
    titles = ("ms", "q1 to q3", "images/s", "× TENT", "× paper", "CPU × TENT", "CPU × paper")
    for title in (*titles, "peak MB", "× TENT"):
        table.add_column(title, justify="right")
    for name, row in found["rows"].items():
        ratios = [
            f"{row['against'][base][clock]['median']:.2f}" if base in row["against"] else "–"
            for clock in ("wall", "cpu")
            for base in (TENT, PAPER)
        ]
        memory = row.get("memory", {})
        table.add_row(
            name,
            f"{row['ms']['median']:.0f}",
            f"{row['ms']['q1']:.0f} to {row['ms']['q3']:.0f}",
            f"{row['images_per_second']:.1f}",
            *ratios,
            f"{memory['peak_mb']:.0f}" if "peak_mb" in memory else memory.get("failed", "–"),
            f"{memory['against_tent']:.2f}" if "against_tent" in memory else "–",
        )
    lines = [f"{name}: {why}" for name, why in found["left_out"].items()]
    overhead = found["rows"].get("swr_nsp-exact", {}).get("against", {}).get(SAME)
    if overhead is not None:
        wall, cpu = (100 * (overhead[clock]["median"] - 1) for clock in ("wall", "cpu"))
        lines.append(f"swr_nsp-exact over {SAME}: wall {wall:+.1f} %, CPU {cpu:+.1f} %")
    if found["agreement"] is not None:
        same = 100 * found["agreement"]["same_class"]
        line = f"swr_nsp-exact and {PAPER} name the same class for {same:.2f} % of samples"
        if "error_difference" in found["agreement"]:
            line += f", errors differ by {found['agreement']['error_difference']:+.2f} points"
        lines.append(line)
    table.caption = "\n".join(lines)
    return table
