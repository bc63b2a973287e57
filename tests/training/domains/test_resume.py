"""Runs on several domains that are cut and gone on with end at the same weights, to the bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from acclimate.training import DomainResult, train
from acclimate.training.checkpoint import last_path, log_path, run_folder
from tests.codes import raises
from tests.paths import ROOT
from tests.training.domains.samples import make_set, make_settings
from tests.training.samples import Cut, assert_same, cut_after


def run(out: Path, changes: dict[str, Any] | None = None, **options: Any) -> DomainResult:
    settings = make_settings(**(changes or {}))
    return train(settings, out, device="cpu", data=make_set(), **options)


def without_time(result: DomainResult) -> list[dict[str, Any]]:
    return [{**figures, "minutes": 0} for figures in result.checks]


Whole = Callable[..., DomainResult]


@pytest.fixture(scope="module")
def run_whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Runs without a cut by what they change, each done once; their files are only to be read."""
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def run_once(**changes: Any) -> DomainResult:
        name = "-".join(map(str, changes.values())).replace(":", "-") or "plain"
        return run(folder / f"{name}.safetensors", changes, keep_last=True)

    return run_once


@pytest.mark.parametrize(
    ("changes", "cuts"),
    [
        ({}, [1]),  # before the first checkpoint: from the beginning
        ({}, [3]),  # between two checks, one step after a checkpoint
        ({}, [4]),  # after a step, before its check
        ({"objective": "erm"}, [3, 5, 6]),
        ({"precision": "bf16-mixed"}, [5]),
    ],
)
def test_a_run_that_was_cut_ends_as_one_that_was_not(
    changes: dict[str, Any], cuts: list[int], run_whole: Whole, tmp_path: Path
) -> None:
    whole = run_whole(**changes)
    out = tmp_path / "cut.safetensors"
    options: dict[str, Any] = {"save_every": 3, "keep_last": True}
    for number, step in enumerate(cuts):
        torch.rand(step)
        with pytest.raises(Cut):
            run(out, changes, resume=number > 0, progress=cut_after(step), **options)
    done: list[int] = []
    parts = run(
        out,
        changes,
        resume=True,
        progress=lambda stage, n, _: done.append(n) if stage == "train" else None,
        **options,
    )
    assert (done[0] > 1) == (cuts[-1] > 2)
    assert_same(whole.path, out)
    assert_same(last_path(whole.path), last_path(out))
    assert without_time(parts) == without_time(whole)
    assert parts.step == whole.step
    assert not run_folder(out).path.exists()
    assert len(log_path(out).read_text().splitlines()) == 3
    again = run(out, changes, resume=True)
    assert again.was_done
    assert again.validation == whole.validation


@pytest.mark.slow
def test_a_process_that_was_killed_is_gone_on_with(run_whole: Whole, tmp_path: Path) -> None:
    out = tmp_path / "killed.safetensors"
    code = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from acclimate.training import train\n"
        "from tests.training.domains.samples import make_set, make_settings\n"
        "run = make_settings(model='tests.training.domains.samples:mortal_cnn')\n"
        "train(run, sys.argv[1], device='cpu', data=make_set(), save_every=1)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(out)],
        env={**os.environ, "KILL_AT": "9"},
        cwd=ROOT,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert run_folder(out).path.exists()
    assert not out.exists()
    changes = {"model": "tests.training.domains.samples:mortal_cnn"}
    run(out, changes, resume=True)
    assert_same(run_whole(**changes).path, out)


def test_nothing_is_overwritten_or_mixed_up(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    with pytest.raises(Cut):
        run(out, save_every=1, progress=cut_after(3))
    with raises("unfinished_run", path=run_folder(out).path):
        run(out)
    with raises("other_settings", differences={"settings.lr": (0.01, 0.02)}):
        run(out, {"lr": 0.02}, resume=True)
    run(out, force=True)
    with raises("already_exists", path=out):
        run(out)
    with raises("other_run", path=out):
        run(out, {"seed": 1}, resume=True)
    with raises("out_of_range", option="save_every", found=0):
        run(out, force=True, save_every=0)
