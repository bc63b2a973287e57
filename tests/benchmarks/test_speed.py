"""The loops by hand that the library's speed is measured against, and what the benchmark writes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.paths import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import plain_loops
import speed
import speed_cases as cases

on_linux = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux's /proc"
)


@pytest.fixture(autouse=True)
def no_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not tidy up all that the tests have left, which takes seconds, before each step."""
    nothing = dict.fromkeys(("collect", "disable", "enable"), lambda: None)
    monkeypatch.setattr(speed, "gc", SimpleNamespace(**nothing))


@pytest.fixture(scope="module")
def case() -> cases.Case:
    return cases.make_case("tiny", dtype=torch.float64)


def largest_difference(
    first: cases.Step, second: cases.Step, n_batches: int, batch_size: int = 8
) -> float:
    batches = cases.make_noise("tiny", batch_size, n_batches, torch.float64)
    return max(float((first(x) - second(x)).abs().max()) for x, _ in batches)


# --- the loops -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["norm", "tent"])
def test_loops_by_hand_are_the_library(case: cases.Case, method: str) -> None:
    by_hand, own = (
        cases.make_contender(name, case) for name in (f"hand-{method}", f"{method}-exact")
    )
    assert largest_difference(by_hand, own, 3) <= 1e-8


@pytest.mark.slow
def test_the_paper_by_hand_is_the_library_over_a_long_stream() -> None:
    found = speed.compare_in_double(n_batches=20, batch_size=8)
    assert found["largest_logit_difference"] <= 1e-8
    assert found["holds"]
    assert found["same_class"] == 1.0
    assert found["classes_named"] > 5  # agreement on one class would be cheap
    assert (found["batches"], found["samples"], found["precision"]) == (20, 160, "float64")


def test_in_single_precision_they_begin_alike_but_for_rounding() -> None:
    """After the first step rounding grows with the steps, by how much depends on the machine."""
    stream = cases.make_noise("tiny", 16, 1, torch.float32)
    found = speed.compare_predictions(cases.make_case("tiny"), stream)
    # Logits are below 1: this allows for a thousand roundings, and any other difference is larger.
    assert found["largest_logit_difference"] < 1e-4
    assert 0 <= found["same_class"] <= 1
    assert (found["precision"], found["samples"]) == ("float32", 16)


def test_the_same_arithmetic_by_hand_is_the_paper(case: cases.Case) -> None:
    same, paper = (cases.make_contender(name, case) for name in (cases.SAME, cases.PAPER))
    assert largest_difference(same, paper, 4) <= 1e-8


@pytest.mark.parametrize("changed", ["penalty", "prototypes", "seed"])
def test_every_ingredient_shows_within_three_batches(case: cases.Case, changed: str) -> None:
    """A comparison that nothing could upset would be worth nothing."""
    prepared, seed = case.prepared, 0
    if changed == "penalty":
        prepared = replace(prepared, penalty=dict.fromkeys(prepared.penalty, 0.0))
    elif changed == "prototypes":
        prepared = replace(prepared, prototypes=prepared.prototypes.roll(1, dims=1))
    else:
        seed = 1
    other = plain_loops.Paper(case.model, prepared, seed)
    assert largest_difference(other, cases.make_contender("swr_nsp-exact", case), 3) > 1e-4


def test_a_projector_is_part_of_the_paper_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    net = cases.NETS["tiny"]
    wide = replace(net, build=lambda: cases.WideResNet(10, 1, n_classes=40))
    monkeypatch.setitem(cases.NETS, "tiny", wide)
    case = cases.make_case("tiny", dtype=torch.float64)
    assert case.description["projector_depth"] == 2
    paper, own = (cases.make_contender(name, case) for name in (cases.PAPER, "swr_nsp-exact"))
    assert largest_difference(paper, own, 4) <= 1e-8


def test_loops_leave_the_model_alone(case: cases.Case) -> None:
    before = {name: tensor.clone() for name, tensor in case.model.state_dict().items()}
    x = cases.make_noise("tiny", 4, 1, torch.float64)[0][0]
    for name in ("hand-norm", cases.TENT, cases.PAPER, cases.SAME):
        assert not cases.make_contender(name, case)(x).requires_grad
    after = case.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(p.grad is None and p.requires_grad for p in case.model.parameters())


# --- cases and contenders --------------------------------------------------------------------


def test_penalties_of_random_weights_are_those_of_a_trained_net() -> None:
    assert len(cases.PROFILE) == 59  # the tensors of a ResNet-20
    found = cases.make_case("resnet20").prepared.penalty
    assert tuple(found.values()) == cases.PROFILE


def test_what_acts_alike_is_run_once(case: cases.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "has_fast_bfloat16", lambda _: False)
    names, left_out = cases.choose_contenders(case)
    assert [name for name in names if name.startswith("swr_nsp")] == [
        f"swr_nsp-{level}" for level in ("exact", "fast", "fastest")
    ]
    assert left_out["norm-fast"] == left_out["norm-fastest"]
    assert left_out["tent-fast"] == "acts as tent-exact on this machine"
    monkeypatch.setattr(cases, "has_fast_bfloat16", lambda _: True)
    names, left_out = cases.choose_contenders(case)
    assert "tent-fast" in names
    assert left_out["tent-fastest"] == "acts as tent-fast on this machine"


def test_norm_needs_batch_norm(case: cases.Case) -> None:
    without = replace(case, model=torch.nn.Linear(3, 3))
    names, left_out = cases.choose_contenders(without, ["hand-norm", "norm-exact", "hand-tent"])
    assert names == ["hand-tent"]
    assert set(left_out.values()) == {"the model has no BatchNorm"}


def test_numbers_can_be_given_for_all_nets_and_for_one() -> None:
    assert speed.read_numbers(["b=1", "3"], {"a": 9, "b": 9}) == {"a": 3, "b": 1}
    assert speed.read_numbers([], {"a": 9}) == {"a": 9}
    for word in ("c=1", "many", "a=", "0"):
        with pytest.raises(SystemExit, match="NET=NUMBER"):
            speed.read_numbers([word], {"a": 9}, low=1)


# --- measuring -------------------------------------------------------------------------------


def test_ratios_are_paired_by_round_and_orders_rotate(
    case: cases.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of doubling length: ratios of medians would be other than medians of ratios."""
    now, order = [0.0], []
    factors = {"hand-tent": 1.0, "hand-paper": 3.0, "norm-exact": 0.5}

    def make(name: str, _: cases.Case) -> cases.Step:
        def step(x: Tensor) -> Tensor:
            order.append(name)
            now[0] += factors[name] * 2.0 ** ((len(order) - 1) // 3)
            return x

        return step

    monkeypatch.setattr(speed, "make_contender", make)
    clock = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: 2 * now[0])
    monkeypatch.setattr(speed, "time", clock)
    batches = [(torch.zeros(10), None)] * 4
    rows = speed.measure_times(case, batches, list(factors), 1, lambda _: None)
    assert [order[3 * index] for index in range(4)] == [*factors, "hand-tent"]
    assert rows["hand-paper"]["rounds"]["wall_ms"] == [6000, 12000, 24000]  # not the warm-up
    assert rows["hand-paper"]["ms"] == {
        "min": 6000,
        "q1": 9000,
        "median": 12000,
        "q3": 18000,
        "max": 24000,
    }
    assert rows["hand-paper"]["cpu_ms"]["median"] == 24000
    assert rows["hand-paper"]["against"]["hand-tent"]["wall"]["max"] == 3
    assert rows["norm-exact"]["against"]["hand-paper"]["cpu"]["min"] == pytest.approx(1 / 6)
    assert rows["norm-exact"]["images_per_second"] == 5
    assert "hand-same" not in rows["hand-tent"]["against"]


def test_errors_are_counted_where_there_are_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    own, by_hand = torch.eye(4), torch.eye(4)[[0, 1, 2, 2]]
    answers = {"swr_nsp-exact": own, cases.PAPER: by_hand}
    monkeypatch.setattr(speed, "make_contender", lambda name, _: lambda x: answers[name])
    y = torch.tensor([0, 1, 0, 3])
    found = speed.compare_predictions(None, [(torch.zeros(4, 1), y)])  # type: ignore[arg-type]
    assert found["same_class"] == 0.75
    assert found["error_percent"] == {"swr_nsp-exact": 25.0, cases.PAPER: 50.0}
    assert found["error_difference"] == -25.0
    answers["swr_nsp-exact"] = own * float("nan")
    found = speed.compare_predictions(None, [(torch.zeros(4, 1), None)])  # type: ignore[arg-type]
    assert found["largest_logit_difference"] == float("inf")
    assert "error_percent" not in found


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the script on a tiny net; return what it wrote."""
    words = ["--nets", "tiny", "--batch-size", "4", "--repeats", "1", "--agree", "tiny=1"]
    words += ["--threads", "1"]
    words += ["--contenders", "hand-tent", "*-exact", "--out", str(tmp_path / "out.json")]
    if Path("/proc/self/clear_refs").exists():
        words.append("--memory")
        monkeypatch.setattr(speed, "_measure_in_fresh_process", lambda *_: {"peak_mb": 2.0})
    short = partial(speed.compare_in_double, n_batches=2, batch_size=4)
    monkeypatch.setattr(speed, "compare_in_double", short)
    monkeypatch.setattr(sys, "argv", ["speed.py", *words])
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    monkeypatch.setenv("LD_PRELOAD_NOTE", "/somewhere/libfast.so")
    speed.main()
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return found


def test_the_record_says_all(written: dict[str, Any], tmp_path: Path) -> None:
    assert written.keys() == {
        "provenance",
        "method",
        "contenders",
        "agreement_in_double",
        "results",
    }
    said = written["provenance"]
    assert said["command"].startswith("python benchmarks/speed.py --nets tiny")
    assert said["threads"] == 1
    assert said["environment"]["MALLOC_ARENA_MAX"] == "2"
    assert said["environment"]["LD_PRELOAD_NOTE"] == "libfast.so"
    assert "OMP_WAIT_POLICY" in said["environment"]
    assert {"processor", "flags", "fast_bfloat16", "cores"} <= said["machine"].keys()
    assert said["load_average"].keys() == {"start", "end"}
    assert {"date", "versions", "speeds", "warmup_rounds"} <= said.keys()
    assert len(said["code_sha256"]) == 64
    assert str(tmp_path) not in json.dumps(written)
    assert written["agreement_in_double"]["holds"] is True
    result = written["results"]["tiny"]
    assert result["model"]["weights"].startswith("random, seed 0")
    assert len(result["model"]["weights_sha256"]) == 64
    assert (result["batch_size"], result["repeats"], result["agree"]) == (4, 1, 1)
    assert list(result["rows"]) == ["hand-tent", "norm-exact", "tent-exact", "swr_nsp-exact"]
    for name, row in result["rows"].items():
        assert {"min", "q1", "median", "q3", "max"} == row["ms"].keys() == row["cpu_ms"].keys()
        assert row["against"]["hand-tent"].keys() == {"wall", "cpu"}
        assert len(row["rounds"]["wall_ms"]) == 1
        assert row["images_per_second"] > 0
        if "memory" in row:
            assert row["memory"]["against_tent"] == 1
        assert (row["steps"] is None) == name.startswith("hand")
    steps = result["rows"]["swr_nsp-exact"]["steps"]
    assert steps["batches"] == 2
    assert steps["skipped"] == {}
    assert steps["share_of_parameters_moved"] == 1
    assert result["agreement"]["samples"] == 4
    assert result["agreement"]["data"] == "uniform noise"


@on_linux
def test_peak_memory_is_that_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that takes 64 MB, after a larger one that must not count."""
    sizes = iter([100, 64])
    held: list[Tensor] = []

    def step(x: Tensor) -> Tensor:
        held[:] = [torch.ones(next(sizes) * 250_000)]  # of 4 bytes
        held.clear()
        return x

    monkeypatch.setattr(speed, "make_contender", lambda *_: step)
    found = speed.measure_memory(None, [(torch.zeros(4), None)], "any")  # type: ignore[arg-type]
    assert found["peak_mb"] == pytest.approx(64, abs=8)
    assert found["whole_process_mb"] == pytest.approx(found["before_mb"] + found["peak_mb"])


@on_linux
@pytest.mark.slow
def test_peak_memory_comes_from_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--nets", "tiny", "--threads", "1", "--memory"]
    monkeypatch.setattr(sys, "argv", ["speed.py", *words])
    options = speed.read_options()
    found = speed._measure_in_fresh_process("tiny", cases.PAPER, options, 256)
    # Of each image the first layers alone keep 16 channels of 16×16 numbers, in both views.
    assert found["peak_mb"] > 256 * 2 * 4 * 16 * 16 * 16 * 3 / 1e6


@on_linux
def test_a_process_that_dies_costs_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(speed, "compare_in_double", partial(speed.compare_in_double, 1, 4))
    words = ["--nets", "tiny", "--batch-size", "4", "--repeats", "1", "--agree", "0", "--memory"]
    words += ["--threads", "1", "--contenders", "hand-*", "--out", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", ["speed.py", *words])
    with pytest.raises(SystemExit, match="memory of some contenders"):
        speed.main()
    row = json.loads((tmp_path / "out.json").read_text())["results"]["tiny"]["rows"]["hand-tent"]
    assert row["memory"] == {"failed": "exit status 1"}
    assert row["ms"]["median"] > 0
    assert "exit status 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--weights a.pt", "go together"),
        ("--nets resnet20 wrn-40-2 --weights a.pt --artifact b", "one net of the zoo"),
        ("--nets resnet50 --weights a.pt --artifact b", "one net of the zoo"),
        ("--data cifar10c", "needs --weights"),
        ("--contenders tant-exact", "no contender tant-exact"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    words: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["speed.py", *words.split()])
    with pytest.raises(SystemExit):
        speed.read_options()
    assert reason in capsys.readouterr().err
