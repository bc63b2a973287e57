"""Time of reports of many jobs: writes a suite of made-up jobs, and reports on it.

    python benchmarks/report_speed.py /tmp/many --jobs 5000

The jobs are those of settings on 20 groups with five seeds: 15 corruptions of five batches.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from acclimate import report
from acclimate.bench.job import JobSpec
from acclimate.bench.run_folder import FILES, RECORDS, RESULT
from acclimate.bench.suite import Entry, Store, Suite
from acclimate.corruptions import BENCHMARK
from acclimate.metrics import Record
from acclimate.storage import file_digest

SEEDS, GROUPS, BATCHES, SIZE = 5, 20, 5, 200


def write_suite(root: Path, n_jobs: int) -> None:
    """Write the folder of a suite whose jobs are done."""
    entries = []
    for number in range(n_jobs):
        place, seed = divmod(number, SEEDS)
        row, group = divmod(place, GROUPS)
        method = "source" if row == 0 else "tent"
        options = {} if row == 0 else {"lr": 1e-5 * row}
        spec = JobSpec(method=method, options=options, images=1000 + group, seed=seed)
        label = method if row == 0 else f"tent (lr {options['lr']:g})"
        entries.append(
            Entry(spec, label, f"group {group}", {} if row == 0 else {"lr": options["lr"]})
        )
    store = Store.create(root, Suite(title="Many jobs", entries=tuple(entries)))
    draws = np.random.default_rng(0)
    data = {name: {"n": BATCHES * SIZE, "severity": 5, "sha256": "ab" * 32} for name in BENCHMARK}
    for name, entry in store.jobs().items():
        folder = store.folder(name)
        folder.make()
        wrong = draws.binomial(SIZE, 0.3, size=len(BENCHMARK) * BATCHES)
        lines = [
            {"unit": BENCHMARK[i // BATCHES], **make_record(i, int(n)).to_dict()}
            for i, n in enumerate(wrong)
        ]
        (folder.path / RECORDS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        provenance = {
            "data": data,
            "model": {"weights_sha256": "cd" * 32},
            "date": f"2020-01-01T00:{len(name):02}",
            "seed": entry.spec.seed,
        }
        sums = {RECORDS: file_digest(folder.path / RECORDS)}
        content = {"n_batches": len(lines), "provenance": provenance, FILES: sums}
        folder.write(RESULT, content)


def make_record(index: int, n_errors: int) -> Record:
    """Return a record of a batch."""
    domain = BENCHMARK[index // BATCHES]
    numbers = {"entropy": 0.5, "nll": 0.7, "ms": 10.0, "peak_memory": 400_000_000}
    return Record(
        domain=domain,
        index=index,
        n=SIZE,
        n_errors=n_errors,
        n_skipped=0,
        n_restored=0,
        predictions=None,
        by_domain={domain: (SIZE, n_errors)},
        **numbers,
    )


def main() -> None:
    """Write the suite unless it is there, and print the seconds that each step takes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=5000)
    asked = parser.parse_args()
    if not asked.folder.exists():
        write_suite(asked.folder, asked.jobs)
    clock = time.process_time()

    def stop(name: str) -> None:
        nonlocal clock
        print(f"{name:10} {time.process_time() - clock:6.1f} s of processor")
        clock = time.process_time()

    store = Store(asked.folder)
    stop("suite")
    outcomes = store.outcomes()
    stop("reading")
    summary = report.summarize(outcomes, title="Many jobs", entries=store.suite.entries)
    stop("summary")
    report.make_document(summary).to_markdown()
    stop("markdown")
    report.render_csv(summary)
    stop("csv")
    report.render_suite(summary)
    stop("page")


if __name__ == "__main__":
    main()
