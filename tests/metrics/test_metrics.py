"""Metrics against slow loops over samples, and against torchmetrics where it has them."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.metrics import Collector, Metric, Sums, cost
from tests.codes import raises
from tests.metrics.oracle import N_FINE, Oracle
from tests.torchmetrics_compat import classification

MEANS = ("nll", "entropy", "confidence", "ece", "adaptive_ece")


def draw(n, n_classes, scale=2.0, seed=0, dtype=torch.float64):
    """Logits with labels that agree with them more often than chance."""
    random = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, n_classes, generator=random, dtype=dtype)
    noisy = logits + 2 * torch.randn(n, n_classes, generator=random, dtype=dtype)
    return logits, noisy.argmax(1)


def measure(logits, y):
    sums = Sums(logits.shape[1])
    sums.update(logits, y)
    return sums


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 120),
    n_classes=st.integers(2, 12),
    scale=st.floats(0.1, 30.0),
    seed=st.integers(0, 10_000),
)
def test_every_measure_is_that_of_the_loop(n, n_classes, scale, seed):
    logits, y = draw(n, n_classes, scale, seed)
    sums, oracle = measure(logits, y), Oracle(logits, y)
    wrong = [
        predicted != label for predicted, label in zip(oracle.predicted, oracle.y, strict=True)
    ]
    assert (sums.n, sums.n_errors) == (n, sum(wrong))
    assert sums.error == sum(wrong) / n
    assert sums.error_by_class == oracle.error_by_class
    assert sums.histogram == tuple(oracle.predicted.count(k) for k in range(n_classes))
    assert sums.class_shares == tuple(oracle.predicted.count(k) / n for k in range(n_classes))
    for name in ("nll", "entropy", "confidence", "ece"):
        assert getattr(sums, name) == pytest.approx(getattr(oracle, name), abs=1e-12), name
    assert abs(sums.adaptive_ece - oracle.adaptive_ece) <= oracle.doubt + 1e-12


@pytest.mark.parametrize(("n_classes", "scale"), [(2, 1.0), (10, 2.0), (10, 6.0), (100, 3.0)])
def test_calibration_is_that_of_torchmetrics(n_classes, scale):
    logits, y = draw(3000, n_classes, scale, seed=n_classes, dtype=torch.float32)
    metric = classification.MulticlassCalibrationError(n_classes, n_bins=15, norm="l1")
    # The certain ones are left out: they are in the last bin here, and in a bin of their own there.
    # So are those at the edge of a bin, which rounding may put on either side.
    confidences = logits.double().softmax(1).amax(1)
    places = 15 * confidences
    kept = (confidences < 1 - 1e-6) & ((places - places.round()).abs() > 1e-4)
    assert int(kept.sum()) > 1500
    logits, y = logits[kept], y[kept]
    metric.update(logits.softmax(1), y)
    assert measure(logits, y).ece == pytest.approx(float(metric.compute()), abs=1e-6)


def with_confidences(confidences, correct):
    """Two classes; the first is predicted with the confidence asked for."""
    p = torch.tensor(confidences, dtype=torch.float64)
    logits = torch.stack([p.log(), (1 - p).log()], dim=1)
    return logits, 1 - torch.tensor(correct, dtype=torch.long)


@pytest.mark.parametrize("n", [1, 7, 15, 29, 400])
def test_adaptive_calibration_is_exact_where_samples_can_be_told_apart(n):
    random = torch.Generator().manual_seed(n)
    fine = N_FINE // 2 + 1 + torch.randperm(N_FINE // 2 - 2, generator=random)[:n]
    confidences = ((fine + 0.5) / N_FINE).tolist()
    correct = torch.randint(2, (n,), generator=random).tolist()
    logits, y = with_confidences(confidences, correct)
    oracle = Oracle(logits, y)
    assert oracle.doubt == 0
    assert measure(logits, y).adaptive_ece == pytest.approx(oracle.adaptive_ece, abs=1e-12)


def test_adaptive_calibration_of_many_samples_is_close():
    logits, y = draw(2000, 10, 1.0, seed=5)
    oracle = Oracle(logits, y)
    assert oracle.doubt < 0.01
    assert measure(logits, y).adaptive_ece == pytest.approx(oracle.adaptive_ece, abs=oracle.doubt)
    # It is another number than that of equal width, so that one cannot pass for the other.
    assert abs(oracle.adaptive_ece - oracle.ece) > 1e-4


def test_certain_predictions_are_in_the_last_bin():
    sums = measure(*with_confidences([1.0, 1.0, 0.95], [1, 0, 1]))
    assert sums.ece == pytest.approx((2.95 - 2) / 3, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_merging_is_one_pass(sizes, seed):
    logits, y = draw(sum(sizes) + 1, 5, seed=seed)
    sizes = [*sizes, 1]
    merged = Sums(5)
    for own_logits, own_y in zip(logits.split(sizes), y.split(sizes), strict=True):
        merged = merged + measure(own_logits, own_y)
    once = measure(logits, y)
    for name in ("n_by_class", "n_errors_by_class", "n_predicted", "n_by_bin", "n_correct_by_bin"):
        assert getattr(merged, name).tolist() == getattr(once, name).tolist()
    for name in MEANS:
        assert getattr(merged, name) == pytest.approx(getattr(once, name), abs=1e-12)


def test_measures_survive_a_file():
    once = measure(*draw(50, 5))
    again = Sums.from_dict(json.loads(json.dumps(once.to_dict(), allow_nan=False)))
    assert again.to_dict() == once.to_dict()
    assert again.summary() == once.summary()
    assert again.error_by_class == once.error_by_class
    assert again.histogram == once.histogram
    packed = once.to_dict()
    with raises("count_mismatch", expected=3840, found=4096):
        Sums.from_dict({**packed, "n_bins": 4096})
    missing = {*packed} - {"bins", "n_bins"}
    with raises("wrong_fields", missing=lambda found: {*found} == missing, unknown=()):
        Sums.from_dict({name: packed[name] for name in ("bins", "n_bins")})


def test_logits_that_are_no_numbers_are_not_hidden():
    logits, y = draw(6, 3)
    logits[2] = math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # casting it to a number of a bin would give one
        sums = measure(logits, y)
    assert sums.n == 6
    assert all(math.isnan(getattr(sums, name)) for name in MEANS)
    assert sums.summary()["ece"] is None
    again = Sums.from_dict(json.loads(json.dumps(sums.to_dict(), allow_nan=False)))
    assert all(math.isnan(getattr(again, name)) for name in MEANS)
    assert again.error == sums.error


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_precisions_are_measured_as_they_are(dtype):
    logits, y = draw(40, 4, dtype=torch.float32)
    sums, oracle = measure(logits.to(dtype), y), Oracle(logits.to(dtype).float(), y)
    for name in ("nll", "entropy", "confidence", "ece"):
        assert getattr(sums, name) == pytest.approx(getattr(oracle, name), abs=1e-6)


def test_size_does_not_grow_with_samples():
    collector = Collector()
    sizes = []
    for number in range(200):
        collector.update(*draw(16, 10, seed=number), ["a"] * 8 + ["b"] * 8)
        sizes.append(len(pickle.dumps(collector)))
    assert len(collector.sums) == 2
    assert len(set(sizes)) == 1
    assert sizes[0] < 2 * 100_000


def test_gradients_do_not_enter():
    logits, y = draw(4, 3)
    measure(logits.requires_grad_(), y)
    assert logits.grad is None


@pytest.mark.parametrize(
    ("y", "code", "data"),
    [
        (torch.tensor([0, 1, 2]), "wrong_shape", {"found": (3,)}),
        (torch.tensor([[0], [1], [2], [0]]), "wrong_shape", {"found": (4, 1)}),
        (torch.tensor([0.0, 1.0, 2.0, 0.0]), "wrong_dtype", {"found": "float32"}),
        (torch.tensor([True, False, True, False]), "wrong_dtype", {"found": "bool"}),
        ([0, 1, 2, 0], "wrong_type", {"option": "y", "found": "list"}),
        (torch.tensor([0, 1, 3, 0]), "wrong_labels", {"found": (3,), "n_classes": 3}),
        (torch.tensor([0, 1, -1, 0]), "wrong_labels", {"found": (-1,), "n_classes": 3}),
    ],
)
def test_labels_that_do_not_fit(y, code, data):
    sums = Sums(3)
    with raises(code, **data):
        sums.update(torch.zeros(4, 3), y)
    assert sums.n == 0


def test_measures_that_cannot_be():
    with raises("wrong_shape", found=(4, 2)):
        Sums(3).update(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))
    with raises("incompatible_sums"):
        Sums(3) + Sums(4)
    for name in ("error", "class_shares", *MEANS):
        with raises("no_samples_measured"):
            getattr(Sums(3), name)


def test_metrics_of_torchmetrics_fit_the_protocol():
    metric: Metric = classification.MulticlassCalibrationError(3)
    collector = Collector(metric)
    logits, y = draw(30, 3, dtype=torch.float32)
    collector.update(logits, y, ["a"] * 30)
    expected = classification.MulticlassCalibrationError(3)
    expected.update(logits.softmax(1), y)
    found = collector._by_domain["a"].compute()
    assert float(found) == pytest.approx(float(expected.compute()), abs=1e-6)


CHILD = """
import runpy, sys, types
sys.modules["torch"] = types.ModuleType("torch")  # the real one would take all the memory
sys.modules["torch"].device = object
find = runpy.run_path(sys.argv[1])["find_resident_peak"]
before = find()
held = b"1" * 64_000_000
during = find()
del held
print(before, during, find())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell")
def test_memory_is_the_peak_of_this_process_alone():
    """Asked in a small process that a large one starts, which getrusage mixes up on Linux."""
    source = Path(cost.__file__)
    held = torch.ones(200_000_000, dtype=torch.uint8)
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(source)], capture_output=True, text=True, check=True
    )
    del held
    before, during, after = (int(word) for word in run.stdout.split())
    assert 1_000_000 < before < 100_000_000
    assert 60_000_000 < during - before < 70_000_000
    assert after - before > 60_000_000
    own = cost.find_peak_memory(torch.device("cpu"))
    assert own is not None
    assert own > 200_000_000
