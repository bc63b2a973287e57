"""Processes killed at random: the records are those of a suite that nobody disturbed.

Many kills hit a process that runs a suite by itself, forked from one that has loaded torch, as
loading would take most of the time. The others hit the real thing, `acclimate bench run` with two
workers: one of the workers, all processes by Ctrl-C, and the command together with one worker.
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
from acclimate.bench.run_folder import RunFolder
from tests.bench.jobs import ROOT, environment, read_lines, stable_suite
from tests.bench.processes import CLI, Launch, find_children, is_running, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/stat").exists(), reason="children are looked for in /proc"
    ),
    # Seconds on a free core; several processes may have to share a busy one.
    pytest.mark.timeout(900),
]

# Short jobs, so that the kills get through several of them.
MANY = """
[job]
model = "tests.bench.models:tiny"
corruptions = ["gaussian_noise", "fog"]
images = 20
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
terms.swr = true
"""

# Long jobs: with the pause below each takes 45 seconds, so that none is done before the last kill
# even where a worker takes ten times longer to start than on a free core.
PAUSE = "0.3"
FEW = """
[job]
model = "tests.bench.models:slow"
corruptions = ["gaussian_noise"]
images = 600
protocol = { batch_size = 4, stream = "continual" }
[[rows]]
method = ["bn_ema", "norm"]
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


def test_ten_kills_of_a_suite_at_work(tmp_path: Path) -> None:
    suite, out = tmp_path / "suite.toml", tmp_path / "out"
    suite.write_text(MANY)
    command = [sys.executable, "-m", "tests.bench.killing", str(suite), str(out), "10", "7"]
    done = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["killed"], said["status"], said["failed"]) == (10, 0, []), said
    assert len(said["cut"]) > 5
    assert len(set(said["cut"])) > 2  # jobs of several methods
    check_same(suite, out, tmp_path / "uncut")


def test_the_command_and_its_workers_are_killed_and_interrupted(
    tmp_path: Path, launch: Launch
) -> None:
    suite, out = tmp_path / "suite.toml", tmp_path / "out"
    suite.write_text(FEW)
    draws = random.Random(3)
    command = [*CLI, str(suite), "--out", str(out), "--workers", "2", "--retries", "9"]
    command += ["--checkpoint-every", "2"]
    jobs = [out / name for name in Store(out, Suite.load(suite)).jobs()]

    def count(job: Path) -> int:
        return len(read_lines(job)) if (job / "records.jsonl").is_file() else 0

    def wait_for_more() -> None:
        """Wait until every job has some more records than now."""
        due = {job: count(job) + draws.randrange(1, 4) for job in jobs}
        wait_until(lambda: all(count(job) >= n for job, n in due.items()))

    def check_checkpoint(job: Path) -> None:
        """Check that there is one after the last record: nothing is lost."""
        assert RunFolder(job).state == "interrupted"
        place = json.loads((job / "checkpoint.json").read_text())
        assert place["n_batches"] == count(job) >= 2

    # A worker that is killed is replaced, and its job is taken up again.
    first = launch(command, ACCLIMATE_TEST_PAUSE=PAUSE)
    wait_for_more()
    os.kill(draws.choice(find_children(first.pid)), signal.SIGKILL)
    wait_for_more()
    # Ctrl-C reaches all processes of a terminal.
    os.killpg(first.pid, signal.SIGINT)
    _, said = first.communicate(timeout=300)
    assert first.returncode != 0
    assert said.count("tried again: ") == 1
    assert "was terminated by SIGKILL" in said
    assert "Run the same command again to resume." in said
    with pytest.raises(ProcessLookupError):
        os.killpg(first.pid, 0)
    for job in jobs:
        check_checkpoint(job)

    # A dead parent reaches none of them: a worker notices, writes a checkpoint, and ends.
    second = launch(command, ACCLIMATE_TEST_PAUSE=PAUSE)
    wait_for_more()
    killed, left = draws.sample(find_children(second.pid), 2)
    (own,) = [job for job in jobs if job in find_open_folders(left)]
    for number in (second.pid, killed):
        os.kill(number, signal.SIGKILL)
    assert second.wait() == -signal.SIGKILL
    wait_until(lambda: not is_running(left))
    check_checkpoint(own)

    # What two workers have begun, another engine brings to its end.
    assert len(run_suite(Suite.load(suite), out, n_workers=0)) == len(jobs)
    check_same(suite, out, tmp_path / "uncut")


def find_open_folders(number: int) -> set[Path]:
    """Return the folders of the files that a process has open."""
    links = Path(f"/proc/{number}/fd").iterdir()
    return {link.readlink().parent for link in links}
