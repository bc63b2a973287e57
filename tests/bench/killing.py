"""Runs a suite again and again in a forked process that is killed at random moments.

    python -m tests.bench.killing SUITE.toml OUT N_KILLS SEED

What is slow to load is loaded once, before the first fork. Prints how many were killed while they
were at work, and the folder of each job that a kill has cut.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # loaded by the first step of an optimiser, which takes a second

from acclimate.bench import Store, Suite, run_suite


def count_records(out: Path) -> int:
    """Return how many lines there are in the records of all jobs."""
    return sum(path.read_bytes().count(b"\n") for path in out.glob("jobs/*/records.jsonl"))


def run_forked(suite: Suite, out: Path) -> int:
    """Run what is left of the suite in a forked process; return its number."""
    number = os.fork()
    if number:
        return number
    try:
        run_suite(suite, out, n_workers=0, checkpoint_every=2)
        os._exit(0)
    finally:
        os._exit(1)


def kill_at_random(suite: Suite, out: Path, draws: random.Random) -> bool:
    """Run, and kill after some batches and some milliseconds; say whether it was still at work."""
    n_batches, delay = draws.randrange(10), draws.uniform(0, 0.01)
    number = run_forked(suite, out)
    lowest = count_records(out)
    while os.waitpid(number, os.WNOHANG) == (0, 0):
        found = count_records(out)
        lowest = min(lowest, found)  # what came after the last checkpoint is cut off first
        if found >= lowest + n_batches:
            time.sleep(delay)
            os.kill(number, signal.SIGKILL)
            _, status = os.waitpid(number, 0)
            return os.WIFSIGNALED(status)
        time.sleep(0.001)
    return False


def main() -> None:
    """Kill so many times, then let it run to its end."""
    torch.set_num_threads(1)
    suite, out = Suite.load(sys.argv[1]), Path(sys.argv[2])
    n_kills, draws = int(sys.argv[3]), random.Random(int(sys.argv[4]))
    n_killed, cut, failed = 0, [], []
    for _ in range(n_kills):
        n_killed += kill_at_random(suite, out, draws)
        if (out / "suite.json").is_file():
            statuses = Store(out).statuses()
            cut += [own.folder for own in statuses if own.state == "interrupted"]
            failed += [own.folder for own in statuses if own.state == "failed"]
    _, status = os.waitpid(run_forked(suite, out), 0)
    print(json.dumps({"killed": n_killed, "status": status, "cut": cut, "failed": failed}))


if __name__ == "__main__":
    main()
