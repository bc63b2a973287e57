"""The benchmark of estimators on the built-in model: what a cell has, resuming, the report."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import acclimate
from tests.paths import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import estimate
import estimate_cases
import estimate_report
import estimators

STREAMS = {
    "iid": estimate_cases.Stream("shuffled", 16, ("norm",)),
    "sorted": estimate_cases.Stream("sorted", 16, ("tent",), share=0.5),
}
TINY = dataclasses.replace(
    estimate_cases.CASES["builtin"],
    window=64,
    streams=STREAMS,
    corruptions=("brightness",),
    accuracy={"n_samples": 64, "shifts": ("saturate",), "severities": (5,), "n_runs": 4},
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(estimate_cases.CASES, "builtin", TINY)
        patch.setattr(estimate, "N_PASSES", 2)
        threads = torch.get_num_threads()
        path = tmp_path_factory.mktemp("estimate") / "estimate.jsonl"
        run(path)
        yield path
        torch.set_num_threads(threads)


def run(path: Path) -> None:
    estimate.main(["run", "--model", "builtin", "--images", "128", "--out", str(path)])


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_cells(out: Path) -> None:
    iid, ordered = read(out)
    assert [len(iid["windows"]), len(ordered["windows"])] == [2, 1]
    window = iid["windows"][1]
    names = set(estimate_report.NAMES) - {"ours"}
    assert set(window["estimates"]) == names
    values = [v for each in window["estimates"].values() for v in each.values()]
    assert all(0 <= value <= 1 for value in (*values, *window["truth"].values()))
    assert window["ours"]["n"] == 48  # three of eight batches
    facts = {"data", "model_sha256", "seed", "order", "reset", "versions", "processor", "options"}
    assert facts <= set(iid["facts"])


def test_finished_cells_are_not_measured_again(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = out.read_text()
    lines = whole.splitlines(keepends=True)
    out.write_text(lines[0])
    run(out)
    assert "1 of 2 cells are done" in capsys.readouterr().out
    assert out.read_text().startswith(lines[0])
    found, expected = read(out)[1], json.loads(lines[1])
    assert found["windows"] == expected["windows"]


def test_cells_of_other_code_are_replaced(out: Path) -> None:
    cell = read(out)[0]
    cell["key"]["ours_sha256"] = "other"
    estimate.add_cell(out, cell)
    assert len(read(out)) == 2
    run(out)
    assert all(each["key"]["ours_sha256"] == estimate.digest_of_ours() for each in read(out))


def test_report(out: Path, tmp_path: Path) -> None:
    docs = tmp_path / "page.md"
    docs.write_text(f"before\n{estimate_report.START}\noutdated\n{estimate_report.END}\nafter\n")
    estimate.main(["report", "--out", str(out), "--docs", str(docs)])
    page = docs.read_text()
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "outdated" not in page
    assert "| AETTA |" in page
    summaries = json.loads(out.with_suffix(".json").read_text())["summaries"]
    assert [each["stream"] for each in summaries] == ["iid", "sorted"]
    estimate.main(["report", "--out", str(out), "--docs", str(docs)])
    assert docs.read_text() == page


def test_figures() -> None:
    def window(source: float, adapted: float, guess: tuple[float, float], gain: float) -> Any:
        return {
            "n": 10,
            "truth": {"source": source, "adapted": adapted},
            "estimates": {"ac": dict(zip(("source", "adapted"), guess, strict=True))},
            "ours": {"source": [source, 0, 1], "adapted": [adapted + 0.1, 0, 1], "gain": [gain]},
        }

    key = {"model": "m", "stream": "s", "corruption": "fog", "n_images": 20, "method": "tent"}
    names = ("data", "severity", "model_sha256", "artifact", "calibration", "aetta", "reset")
    more = ("commit", "ours_sha256", "seed", "versions", "processor", "options", "threads")
    facts = dict.fromkeys((*names, *more, "order", "batch_size"))
    windows = [window(0.5, 0.7, (0.6, 0.5), 0.1), window(0.6, 0.58, (0.9, 0.98), 0.1)]
    found = estimate_report.summarise([{"key": key, "facts": facts, "windows": windows}])
    assert found["n_clear"] == 1
    ours, ac = found["estimators"]["ours"], found["estimators"]["ac"]
    assert ours["mean_absolute_error"] == {"source": 0, "tent": 10, "all": 5}
    assert ac["mean_absolute_error"] == {"source": 20, "tent": 30, "all": 25}
    assert ac["mean_error"] == {"source": 20, "tent": 10}
    assert (ours["better_told"], ac["better_told"]) == (100, 0)
    assert (ours["mean_loss"], ac["mean_loss"]) == (1, 11)
    assert found["estimators"]["always_adapted"]["mean_loss"] == 1


@pytest.mark.parametrize("method", ["norm", "tent"])
def test_shared_modules_are_computed_once_and_the_same(method: str) -> None:
    x = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    adapted = acclimate.adapt(estimate_cases.load_model(), method)
    adapted(x)
    predict = estimate.predictor(adapted, x)
    before = predict()
    found = estimate.estimate_by_dropout(adapted.model, predict, TINY)
    passes = []
    for seed in range(estimate.N_PASSES):
        with estimate.dropout_after(adapted.model, TINY.stages, TINY.dropout, seed):
            passes.append(predict())
    assert float(found) == float(
        estimators.dropout_accuracy(before.argmax(dim=1), torch.stack(passes))
    )
    assert not before.equal(passes[0])
    assert not passes[0].equal(passes[1])
    assert before.equal(predict())
