"""Twenty processes killed at random: the records are those of a suite that nobody disturbed.

Sixteen kills hit a process that runs a suite by itself, forked from one that has loaded torch, as
loading would take most of the time. Four hit the real thing, `acclimate bench run` with two
workers: two of them a worker, which the engine replaces, two all processes at once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from acclimate.bench import Store, Suite, run_suite
from tests.bench.jobs import ROOT, environment, stable_suite
from tests.bench.killing import count_records
from tests.bench.test_local import CLI, wait_until

pytestmark = [
    pytest.mark.skipif(
        not Path("/proc/self/stat").exists(), reason="children are looked for in /proc"
    ),
    # Half a minute on a free core; several processes may have to share a busy one.
    pytest.mark.timeout(900),
]

MANY = """
[job]
model = "tests.bench.models:tiny"
corruptions = ["gaussian_noise", "fog"]
images = 120
protocol = { batch_size = 4 }
prepare = { images = 48, parts = { penalty = { n_samples = 8 } } }
[[rows]]
method = "norm"
[[rows]]
method = ["tent", "rotta"]
protocol = { stream = "continual" }
[[rows]]
method = "swr_nsp"
[[rows]]
method = "tent"
regularizer = true
"""

# No method with an optimiser: the first step of one takes a second to load what it needs.
FEW = """
[job]
model = "tests.bench.models:slow"
corruptions = ["gaussian_noise"]
images = 80
protocol = { batch_size = 4, stream = "continual" }
[[rows]]
method = ["bn_ema", "norm"]
seed = [0, 1, 2]
"""


def check_same(suite: Path, out: Path, uncut: Path) -> None:
    entries = Suite.load(suite).entries
    assert [own.state for own in Store(out).statuses()] == ["done"] * len(entries)
    assert len(run_suite(Suite.load(suite), uncut, n_workers=0)) == len(entries)
    found, expected = stable_suite(out), stable_suite(uncut)
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name] == expected[name], name
    assert not list(out.glob("jobs/*/*.state"))
    assert not list(out.glob("jobs/*/.*.part"))


def test_sixteen_kills_of_a_suite_at_work(tmp_path: Path) -> None:
    suite, out = tmp_path / "suite.toml", tmp_path / "out"
    suite.write_text(MANY)
    command = [sys.executable, "-m", "tests.bench.killing", str(suite), str(out), "16", "7"]
    done = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["killed"], said["status"]) == (16, 0), said
    assert said["left"].get("cut", 0) > 8
    assert "failed" not in said["left"]
    check_same(suite, out, tmp_path / "uncut")


def find_children(number: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended in between
            continue
        if int(fields[1]) == number and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def test_four_kills_of_the_command_and_its_workers(tmp_path: Path, launch) -> None:
    suite, out = tmp_path / "suite.toml", tmp_path / "out"
    suite.write_text(FEW)
    draws = random.Random(3)
    command = [*CLI, str(suite), "--out", str(out), "--workers", "2", "--retries", "9"]
    command += ["--checkpoint-every", "2"]

    def wait_for_more() -> None:
        n = count_records(out) + draws.randrange(2, 12)
        wait_until(lambda: count_records(out) >= n)

    for n_workers_killed in (2, 0):
        process = launch(command)
        for _ in range(n_workers_killed):
            wait_for_more()
            os.kill(draws.choice(find_children(process.pid)), signal.SIGKILL)
        wait_for_more()
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert "done" not in [own.state for own in Store(out).statuses()][4:]
    last = launch(command)
    _, said = last.communicate(timeout=500)
    assert last.returncode == 0, said
    check_same(suite, out, tmp_path / "uncut")
