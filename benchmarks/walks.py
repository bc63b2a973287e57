"""How far one has to walk through the source to follow a call: files, functions, switches, depth.

    python benchmarks/walks.py                   # the table; the commands take about a minute
    python benchmarks/walks.py --only tent eval  # some rows
    python benchmarks/walks.py --show tent       # and the files that one call visits

A call is traced with `sys.setprofile`. Only functions of acclimate count. A switch is a call or a
return from one file to another. The call is made once before it is traced, so that what happens
only once (imports, caches, looking at the model) is left out of calls of an adapted model.
Commands run in this process, without worker processes, the second time in a new folder.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import acclimate
from acclimate.testing.models import tiny_batches, tiny_model

SOURCE = str(Path(acclimate.__file__).parent)
TESTING = str(Path(SOURCE) / "testing")  # where the model is, which belongs to the user


class Walk:
    """What was visited while a function ran."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.functions: set[tuple[str, str]] = set()
        self.switches = self.depth = 0
        self._stack: list[str] = []

    def trace(self, call: Callable[[], Any]) -> Walk:
        """Run a function and note what it visits."""
        sys.setprofile(self._note)
        try:
            call()
        finally:
            sys.setprofile(None)
        return self

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if not file.startswith(SOURCE) or file.startswith(TESTING):
            return
        if event == "call":
            self.files[file] += 1
            self.functions.add((file, frame.f_code.co_qualname))
            self.switches += bool(self._stack) and self._stack[-1] != file
            self._stack.append(file)
            self.depth = max(self.depth, len(self._stack))
        elif event == "return" and self._stack:
            left = self._stack.pop()
            self.switches += bool(self._stack) and self._stack[-1] != left

    def row(self) -> tuple[int, int, int, int]:
        """Return the four numbers."""
        return len(self.files), len(self.functions), self.switches, self.depth


def trace_call(method: str) -> Walk:
    """Trace one call of an adapted model, the third."""
    model = tiny_model("batch_norm")
    artifact = acclimate.prepare(model, tiny_batches(8), method=method)
    adapted = acclimate.adapt(model, method, artifact)
    batches = [x for x, _ in tiny_batches(3, seed=1)]
    for x in batches[:2]:
        adapted(x)
    return Walk().trace(lambda: adapted(batches[2]))


def trace_prepare() -> Walk:
    """Trace the preparation of all default parts."""
    model, source = tiny_model("batch_norm"), tiny_batches(8)
    parts = [acclimate.Penalty(n_samples=64), acclimate.Prototypes(), acclimate.Features()]
    acclimate.prepare(model, source, parts=parts)
    return Walk().trace(lambda: acclimate.prepare(model, source, parts=parts))


SUITE = """
title = "Two jobs"
job = { model = "builtin", data = "builtin", corruptions = ["fog"], images = 400 }
rows = [{ method = "source" }, { method = "tent" }]
"""


def run_command(*words: str) -> None:
    """Run a command of acclimate in this process, in the current folder, and drop its output."""
    from acclimate.cli.main import app

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        app(list(words), standalone_mode=False)


def trace_command(*words: str) -> Walk:
    """Trace a command, run for the second time, in a new folder."""
    walk = Walk()
    for run in (lambda call: call(), walk.trace):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("suite.toml").write_text(SUITE)
            run(lambda: run_command(*words))
    return walk


EVAL = (
    *("eval", "--model", "builtin", "--data", "builtin", "--method", "source,tent"),
    *("--corruptions", "fog", "--images", "400"),
)
BENCH = ("bench", "run", "suite.toml", "--workers", "0", "--out", "suite")
REPRODUCE = ("reproduce", "table-2", "--scale", "smoke", "--workers", "0")


#: What is traced, and the goal: files, functions, switches, depth.
WALKS: dict[str, tuple[Callable[[], Walk], tuple[int, int, int, int]]] = {
    "tent": (lambda: trace_call("tent"), (8, 25, 20, 7)),
    "swr_nsp": (lambda: trace_call("swr_nsp"), (14, 50, 50, 8)),
    "prepare": (trace_prepare, (22, 90, 110, 8)),
    "eval": (lambda: trace_command(*EVAL), (35, 150, 300, 10)),
    "bench": (lambda: trace_command(*BENCH), (45, 220, 700, 12)),
    "reproduce": (lambda: trace_command(*REPRODUCE), (65, 320, 3000, 15)),
}


def main() -> None:
    """Trace, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--show", choices=WALKS, help="list the files that this call visits")
    parser.add_argument("--only", choices=WALKS, nargs="+", help="trace these calls")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    heads = "".join(f"{head:>14}" for head in ("files", "functions", "switches", "depth"))
    print(f"{'call':10}{heads}   (found / goal)")
    for name in arguments.only or WALKS:
        trace, goal = WALKS[name]
        walk = trace()
        cells = [f"{found} / {wanted}" for found, wanted in zip(walk.row(), goal, strict=True)]
        print(f"{name:10}" + "".join(f"{cell:>14}" for cell in cells))
        if arguments.show == name:
            for file, n in walk.files.most_common():
                print(f"    {n:5} calls  {Path(file).relative_to(SOURCE)}")


if __name__ == "__main__":
    main()
