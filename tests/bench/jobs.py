"""Small jobs and readers of what they leave behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from acclimate.bench import JobSpec, Preparing
from acclimate.bench.execute import RunOptions
from acclimate.bench.load import Loader
from acclimate.bench.run_folder import RunFolder
from acclimate.bench.schedule import End, Message, run_job
from tests.paths import ROOT

VOLATILE = ("ms", "peak_memory")
PREPARE = {"images": 48, "parts": {"penalty": {"n_samples": 8}}}


def make_spec(method: str = "tent", **changes: Any) -> JobSpec:
    """Two shifts of 24 images in batches of 4."""
    fields: dict[str, Any] = {
        "model": "tests.bench.models:tiny",
        "corruptions": ("gaussian_noise", "fog"),
        "images": 24,
        "protocol": {"batch_size": 4},
        "prepare": Preparing(**PREPARE),
        **changes,
    }
    return JobSpec(method=method, **fields)


def run_once(
    spec: JobSpec, folder: Path, artifacts: Path | None = None, stop_after: int | None = None
) -> End:
    """Try a job in this process; asked to stop after so many batches."""
    n_batches = -1  # as the first message says where it begins

    def count(message: Message) -> None:
        nonlocal n_batches
        n_batches += message[0] == "progress"

    def is_over() -> bool:
        return stop_after is not None and n_batches >= stop_after

    options = RunOptions(artifacts=artifacts or folder.parent / "artifacts", command="by hand")
    loader = Loader(options.artifacts)
    return run_job(spec, RunFolder(folder), loader, options, count, is_over)


def run_to_failure(spec: JobSpec, folder: Path) -> BaseException:
    """Try a job in this process that fails; return the error that its folder tells of."""
    errors: list[BaseException] = []
    keep = RunFolder.fail_by
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "fail_by", lambda own, e: (errors.append(e), keep(own, e)))
        assert run_once(spec, folder) == "failed"
    (error,) = errors
    told = json.loads((folder / "error.json").read_text())
    assert (told["type"], told["message"]) == (type(error).__name__, str(error))
    assert told.get("code") == getattr(error, "code", None)
    assert told.get("data", {}).keys() == getattr(error, "data", {}).keys()
    return error


def read_lines(folder: Path, name: str = "records.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def stable(folder: Path) -> list[dict[str, Any]]:
    """All records without what differs from run to run."""
    return [
        {name: value for name, value in line.items() if name not in VOLATILE}
        for line in read_lines(folder)
    ]


def sums(folder: Path) -> list[Any]:
    """The sums over samples of each unit; where records end depends on the digits of times."""
    return [(line["unit"], line["measures"]) for line in read_lines(folder, "measures.jsonl")]


def stable_suite(root: Path) -> dict[str, Any]:
    """Records and sums of all jobs of a suite."""
    return {
        folder.name: (stable(folder), sums(folder)) for folder in sorted((root / "jobs").iterdir())
    }


def environment(**more: str) -> dict[str, str]:
    """For processes that load models from the tests."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "ACCLIMATE_TEST_PAUSE": "0.05",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **more,
    }


def read_suite(root: Path, name: str = "records.jsonl") -> list[dict[str, Any]]:
    """Return the lines of all jobs of a folder, each with the method and the seed of its job."""
    found = []
    entries = json.loads((root / "suite.json").read_text())["entries"]
    for entry in entries:
        spec, folder = entry["spec"], root / entry["folder"]
        if (folder / name).is_file():
            own = {"method": spec["method"], "seed": spec.get("seed", 0)}
            found += [{**own, **line} for line in read_lines(folder, name)]
    return found
