"""Estimators of accuracy against slow versions written from the papers' formulas."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import Tensor

from tests.paths import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

from estimators import (
    accuracy_above,
    average_confidence,
    confidences,
    difference_of_confidences,
    dropout_accuracy,
    find_threshold,
    negative_entropies,
    smooth,
)


def slow_probabilities(row: list[float]) -> list[float]:
    top = max(row)
    powers = [math.exp(value - top) for value in row]
    return [power / sum(powers) for power in powers]


def slow_entropy(p: list[float]) -> float:
    return -sum(value * math.log(value) for value in p if value > 0)


def slow_threshold(scores: list[float], correct: list[bool]) -> float:
    """Try every score, and infinity, from the lowest."""
    error = sum(not each for each in correct)
    best, found = math.inf, math.nan
    for candidate in [*sorted(scores), math.inf]:
        distance = abs(sum(score < candidate for score in scores) - error)
        if distance < best:
            best, found = distance, candidate
    return found


def slow_aetta(predicted: list[int], passes: list[list[list[float]]]) -> float:
    n_classes = len(passes[0][0])
    n_different, n = 0, 0
    mean = [0.0] * n_classes
    for each in passes:
        for row, kind in zip(each, predicted, strict=True):
            p = slow_probabilities(row)
            n_different += p.index(max(p)) != kind
            n += 1
            for k in range(n_classes):
                mean[k] += p[k]
    evenness = slow_entropy([value / n for value in mean]) / math.log(n_classes)
    error = n_different / n / evenness**3
    return 1 - min(max(error, 0), 1 - 1 / n_classes)


def draw(n: int, n_classes: int, seed: int, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, n_classes, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_scores(n_classes: int) -> None:
    logits = draw(20, n_classes, 0)
    slow = [slow_probabilities(row) for row in logits.tolist()]
    assert confidences(logits).tolist() == pytest.approx([max(p) for p in slow], abs=1e-12)
    expected = [-slow_entropy(p) for p in slow]
    assert negative_entropies(logits).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_mean_confidence_and_its_difference(n_classes: int) -> None:
    stream, source = confidences(draw(30, n_classes, 1)), confidences(draw(40, n_classes, 2, 6.0))
    correct = torch.arange(40) % 4 != 0
    mean = sum(stream.tolist()) / 30
    assert float(average_confidence(stream)) == pytest.approx(mean, abs=1e-12)
    expected = 30 / 40 - (sum(source.tolist()) / 40 - mean)
    found = difference_of_confidences(stream, source, correct)
    assert float(found) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("is_correct", [True, False])
def test_difference_stays_an_accuracy(is_correct: bool) -> None:
    low, high = torch.tensor([0.2, 0.3]), torch.tensor([0.8, 0.9])
    stream, source = (high, low) if is_correct else (low, high)
    found = difference_of_confidences(stream, source, torch.tensor([is_correct] * 2))
    assert float(found) == float(is_correct)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n_values", [3, 1000])
def test_threshold_with_and_without_ties(seed: int, n_values: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(n_values, (37,), generator=generator).double() / n_values
    correct = torch.rand(37, generator=generator) < 0.7
    found = find_threshold(scores, correct)
    assert float(found) == slow_threshold(scores.tolist(), correct.tolist())
    stream = torch.randint(n_values, (50,), generator=generator).double() / n_values
    expected = sum(score >= float(found) for score in stream.tolist()) / 50
    assert float(accuracy_above(stream, found)) == pytest.approx(expected, abs=1e-12)


def test_threshold_gives_back_the_source_accuracy_if_scores_differ() -> None:
    scores = torch.linspace(0.1, 0.9, 41)[torch.randperm(41)]
    correct = torch.arange(41) % 3 != 0
    found = accuracy_above(scores, find_threshold(scores, correct))
    assert float(found) == pytest.approx(float(correct.double().mean()), abs=1e-12)


def test_scores_at_the_threshold_count_as_correct() -> None:
    # One of four is wrong, but the two lowest are equal: none below is as near as two below.
    scores = torch.tensor([0.5, 0.5, 0.7, 0.9])
    threshold = find_threshold(scores, torch.tensor([False, True, True, True]))
    assert float(threshold) == 0.5
    assert float(accuracy_above(scores, threshold)) == 1.0


def test_all_source_images_correct() -> None:
    scores, correct = torch.tensor([0.6, 0.4, 0.8]), torch.ones(3)
    threshold = find_threshold(scores, correct)
    assert float(threshold) == pytest.approx(0.4)
    assert float(accuracy_above(torch.tensor([0.3, 0.9]), threshold)) == 0.5


def test_all_source_images_wrong() -> None:
    scores, correct = torch.tensor([0.6, 0.4, 0.8]), torch.zeros(3)
    threshold = find_threshold(scores, correct)
    assert float(threshold) == math.inf
    assert float(accuracy_above(torch.tensor([0.3, 1.0]), threshold)) == 0.0


@pytest.mark.parametrize("n_classes", [2, 7])
@pytest.mark.parametrize("noise", [0.1, 1.0, 8.0])
def test_disagreement_under_dropout(n_classes: int, noise: float) -> None:
    logits = draw(24, n_classes, 3)
    passes = torch.stack([logits + noise * draw(24, n_classes, 10 + k) for k in range(6)])
    predicted = logits.argmax(dim=1)
    expected = slow_aetta(predicted.tolist(), passes.tolist())
    assert float(dropout_accuracy(predicted, passes)) == pytest.approx(expected, abs=1e-10)


def test_one_sided_predictions_are_distrusted() -> None:
    even, one_sided = draw(64, 2, 4), draw(64, 2, 4) + torch.tensor([6.0, 0.0])
    found = []
    for logits in (even, one_sided):
        predicted = logits.argmax(dim=1)
        # One prediction of each pass differs, in both cases.
        passes = logits.repeat(4, 1, 1)
        passes[:, 0] = -passes[:, 0]
        found.append(float(dropout_accuracy(predicted, passes)))
    assert found[1] < found[0]


def test_a_collapsed_model_is_at_chance() -> None:
    passes = torch.tensor([2000.0, 0.0, 0.0, 0.0]).expand(3, 5, 4)
    assert float(dropout_accuracy(torch.zeros(5).long(), passes)) == pytest.approx(0.25)
    # And so is one that never agrees.
    assert float(dropout_accuracy(torch.ones(5).long(), draw(15, 4, 5).view(3, 5, 4) * 0)) == 0.25


def test_moving_average() -> None:
    average, slow = None, 0.0
    for number, value in enumerate([0.9, 0.5, 0.1, 0.7]):
        average = smooth(average, torch.tensor(value, dtype=torch.float64))
        slow = value if number == 0 else 0.6 * slow + 0.4 * value
        assert float(average) == pytest.approx(slow, abs=1e-12)
