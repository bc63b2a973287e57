"""Kill `eval`, `bench run`, `adapt` and `train` at random moments, and check what they resume to.

    python benchmarks/kills.py --kills 20 --out results/kills.json

Each command is run once to its end. Then it is started again and again in a new place, killed by
`SIGKILL` after a random time, and resumed, until it has been killed so many times while it worked.
When a run gets to its end in spite of that, its result is compared with the undisturbed one, bit
for bit but for times and memory, and the next run begins. The last one is then left alone, and
compared, too. The script ends with status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # loaded by the first step of an optimiser, which takes a second
from PIL import Image

from acclimate.bench.provenance import describe_origin
from acclimate.builtin import SPLITS, render
from acclimate.cli.main import main as call_command
from acclimate.storage import digest, read_file, write_atomically

VOLATILE = ("ms", "peak_memory")
SUITE = """
[job]
model = "builtin"
data = "builtin"
corruptions = ["contrast", "pixelate"]
images = 40
protocol = { batch_size = 8 }
prepare = { images = 32, parts = { penalty = { n_samples = 16 } } }
[[rows]]
method = ["source", "tent", "swr_nsp"]
[[rows]]
method = "tent"
protocol = { stream = "continual" }
"""


@dataclass(frozen=True)
class Case:
    """A command that is killed.

    Attributes:
        words: Its arguments, for a place to write to.
        resume: Arguments that resume it.
        read: Returns what it has written there, without what may differ.
    """

    words: Callable[[Path], list[str]]
    resume: tuple[str, ...]
    read: Callable[[Path], Any]


def read_jobs(out: Path) -> Any:
    """Return records and sums of all jobs of a suite."""
    found = {}
    for folder in sorted((out / "jobs").iterdir()):
        lines = [json.loads(line) for line in (folder / "records.jsonl").open()]
        stable = [{k: v for k, v in line.items() if k not in VOLATILE} for line in lines]
        sums = [json.loads(line) for line in (folder / "measures.jsonl").open()]
        found[folder.name] = (stable, [(line["unit"], line["measures"]) for line in sums])
    return found


def read_predictions(out: Path) -> Any:
    """Return the table and the state of the method."""
    tensors, card = read_file(out.with_suffix(".state"), "state")
    return out.with_suffix(".csv").read_bytes(), digest(tensors), card


def read_weights(out: Path) -> Any:
    """Return the digest of the weights, and the losses."""
    tensors, card = read_file(out.with_suffix(".safetensors"), "zoo")
    return digest(tensors), card["training"]["loss"]


def make_cases(folder: Path) -> dict[str, Case]:
    """Return the commands; what they read is written into the folder."""
    images, _ = render(60, SPLITS["test"])
    (folder / "photos").mkdir()
    for number, pixels in enumerate(images):
        Image.fromarray(pixels).save(folder / "photos" / f"{number:03}.png")
    (folder / "suite.toml").write_text(SUITE)
    model = ["--model", "builtin", "--device", "cpu"]
    evaluate = [*model, "--data", "builtin", "--images", "40", "--batch-size", "8"]
    evaluate += ["--corruptions", "contrast,pixelate", "--method", "source,tent,swr_nsp"]
    evaluate += ["--source-images", "32", "--checkpoint-every", "2"]
    train = ["--model", "acclimate.builtin:untrained_model", "--device", "cpu", "--data", "builtin"]
    train += ["--images", "96", "--epochs", "2", "--batch-size", "16"]
    adapt = [str(folder / "photos"), *model, "--method", "tent", "--batch-size", "6"]
    bench = [str(folder / "suite.toml"), "--workers", "0", "--checkpoint-every", "2"]
    return {
        "eval": Case(lambda out: ["eval", *evaluate, "--out", str(out)], ("--resume",), read_jobs),
        "bench run": Case(lambda out: ["bench", "run", *bench, "--out", str(out)], (), read_jobs),
        "adapt": Case(
            lambda out: [
                *("adapt", *adapt, "--out", f"{out}.csv", "--state", f"{out}.state"),
            ],
            ("--resume",),
            read_predictions,
        ),
        "train": Case(
            lambda out: ["train", *train, "--out", f"{out}.safetensors", "--save-every", "2"],
            ("--resume",),
            read_weights,
        ),
    }


def start(words: Sequence[str]) -> int:
    """Run a command in a forked process, which has loaded torch; return its number."""
    number = os.fork()
    if number:
        return number
    status = 1
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        sys.argv = ["acclimate", *words]
        call_command()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        os._exit(status)


def run_to_end(words: Sequence[str]) -> float:
    """Run a command; return the seconds it took."""
    begun = time.monotonic()
    _, status = os.waitpid(start(words), 0)
    if status != 0:
        raise SystemExit(f"acclimate {' '.join(words)}: status {status}")
    return time.monotonic() - begun


def kill_case(case: Case, folder: Path, n_kills: int, draws: random.Random) -> dict[str, Any]:
    """Kill a command so many times; return what was found."""
    uncut = folder / "uncut"
    run_to_end(case.words(uncut))  # the first run also loads what others find loaded
    shutil.rmtree(uncut, ignore_errors=True)
    for path in folder.glob("uncut.*"):
        path.unlink()
    seconds = run_to_end(case.words(uncut))
    expected = case.read(uncut)
    n_killed = n_ended = n_resumed = n_different = n_runs = 0
    while n_killed < n_kills:
        out = folder / f"run-{n_runs}"
        n_runs += 1
        is_over = False
        n_before = n_killed
        while not is_over:
            words = [*case.words(out), *(case.resume if n_killed > n_before else ())]
            if n_killed >= n_kills:
                run_to_end(words)
                is_over = True
                continue
            number = start(words)
            time.sleep(draws.uniform(0, 0.9 * seconds))
            ended, status = os.waitpid(number, os.WNOHANG)
            if ended == 0:
                os.kill(number, signal.SIGKILL)
                _, status = os.waitpid(number, 0)
            if os.WIFSIGNALED(status):
                n_killed += 1
            elif status == 0:
                is_over = True
            else:
                raise SystemExit(f"acclimate {' '.join(words)}: status {status}")
        n_ended += 1
        n_resumed += n_killed > n_before
        n_different += case.read(out) != expected
    return {
        "kills": n_killed,
        "runs": n_ended,
        "runs_killed_at_least_once": n_resumed,
        "different": n_different,
        "seconds_undisturbed": round(seconds, 2),
    }


def main() -> None:
    """Kill all commands, and write down what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="Of each command.")
    parser.add_argument("--seed", type=int, default=0, help="Of the moments.")
    parser.add_argument("--only", default="", help="The commands that contain this.")
    parser.add_argument("--out", type=Path, help="Where to write what was found.")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        cases = make_cases(Path(folder))
        for name, case in cases.items():
            if asked.only in name:
                place = Path(folder, name.replace(" ", "-"))
                place.mkdir()
                found[name] = kill_case(case, place, asked.kills, random.Random(asked.seed))
                print(name, json.dumps(found[name]), flush=True)
    command = f"python benchmarks/kills.py --kills {asked.kills} --seed {asked.seed}"
    content = {**describe_origin(command, torch.device("cpu")), "commands": found}
    if asked.out is not None:
        write_atomically(asked.out, (json.dumps(content, indent=1) + "\n").encode())
    if any(own["different"] for own in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
