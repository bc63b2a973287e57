"""Signals of accuracy without labels, and the maps from signals to accuracy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from acclimate.functional.pixels import Grid
from acclimate.functional.signals import _UNLIKELY as UNLIKELY
from acclimate.functional.signals import (
    PIXELS_PER_IMAGE,
    RECORD,
    SIGNALS,
    TARGETS,
    AccuracyMap,
    _fit_variance,
    describe_predictions,
    find_places,
    is_correlated,
    measure_signals,
    mirror_back,
    pick_rows,
)

KINDS = ("mixed", "correlated")


def draws(seed=0):
    return np.random.default_rng(seed)


# Records ------------------------------------------------------------------------------------------


def test_predictions_are_described_one_by_one():
    rows = [[2.0, 0.0, -1.0], [0.0, 0.0, 3.0], [-5.0, 1.0, 0.5], [0.1, 0.2, 0.0]]
    mirrored = [[1.0, 0.0, 0.0], [4.0, 0.0, 3.0], [0.0, 9.0, 0.0], [1.0, 0.0, 0.0]]
    found = describe_predictions(torch.tensor(rows), torch.tensor(mirrored))
    assert found.dtype == torch.float32
    for row, other, described in zip(rows, mirrored, found.tolist(), strict=True):
        best = row.index(max(row))
        confidence = math.exp(row[best]) / sum(math.exp(value) for value in row)
        steady = float(other.index(max(other)) == best)
        assert described == pytest.approx([best, confidence, steady], abs=1e-6)
    unknown = describe_predictions(torch.tensor(rows), None)
    assert torch.equal(unknown[:, :2], found[:, :2])
    assert bool(unknown[:, 2].isnan().all())


def test_large_logits_and_low_precision_are_described():
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], dtype=torch.bfloat16)
    found = describe_predictions(logits, logits)
    assert found.tolist() == [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]


def by_hand(records, n_classes):
    """Return the signals by loops over records and over pairs of records."""
    found = []
    probed = [record for record in records if not math.isnan(record[6])]
    for first, rows in ((0, records), (3, records), (6, probed)):
        classes = [record[first] for record in rows]
        confidences = [record[first + 1] for record in rows]
        third = min(first + 2, 5)
        steady = [record[third] for record in rows if not math.isnan(record[third])]
        n = len(rows)
        n_pairs = n_equal = 0
        for i in range(n):
            for j in range(n):
                if i != j:
                    n_pairs += 1
                    n_equal += classes[i] == classes[j]
        n_repeated = sum(classes[i] == classes[i - 1] for i in range(1, n))
        found.append(sum(confidences) / n if n else math.nan)
        if first < 6:
            found.append(sum(steady) / len(steady) if steady else math.nan)
        found += [
            math.log(n_equal / n_pairs + 1 / n_classes, n_classes) if n_pairs else math.nan,
            n_repeated / (n - 1) if n > 1 else math.nan,
        ]
    found.append(sum(record[0] == record[3] for record in records) / len(records))
    for other in (3, 0):
        n_equal = sum(record[other] == record[6] for record in probed)
        found.append(n_equal / len(probed) if probed else math.nan)
    return found


def random_fact(random, p_unknown):
    """Return 1 or 0, or NaN if it is not known."""
    return math.nan if random.random() < p_unknown else float(random.integers(2))


def random_third(random, n_classes, p_unknown):
    """Return class, confidence and steadiness, as one model predicts."""
    steady = random_fact(random, p_unknown)
    return [float(random.integers(n_classes)), float(np.float32(random.random())), steady]


def random_record(random, n_classes, p_unknown):
    source, adapted, norm = (random_third(random, n_classes, p_unknown) for _ in range(3))
    return [*source, *adapted, *(norm[:2] if random.random() >= p_unknown else 2 * [math.nan])]


@settings(deadline=None, max_examples=50)
@given(
    n=st.integers(1, 40), n_classes=st.integers(2, 7), seed=st.integers(0, 99), p=st.floats(0, 1)
)
def test_signals_are_those_of_loops(n, n_classes, seed, p):
    random = draws(seed)
    records = [random_record(random, n_classes, p) for _ in range(n)]
    found = measure_signals(torch.tensor(records), n_classes)
    assert found.dtype == torch.float64
    assert len(found) == len(SIGNALS)
    assert len(records[0]) == len(RECORD)
    expected = by_hand(records, n_classes)
    assert found.tolist() == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_concentration_of_equal_and_of_spread_predictions():
    """About 0 if all predictions are equal, −1 if they spread evenly; the size has no bias."""
    place = SIGNALS.index("source_concentration")
    for n in (20, 400):
        equal = torch.zeros(n, len(RECORD))
        assert measure_signals(equal, 10)[place] == pytest.approx(math.log(1.1, 10), abs=1e-12)
    different = torch.zeros(10, len(RECORD))
    different[:, 0] = torch.arange(10)
    assert measure_signals(different, 10)[place] == pytest.approx(-1.0, abs=1e-12)
    random = torch.Generator().manual_seed(0)
    means = []
    for n in (8, 200):
        pairs = []
        for _ in range(800):
            records = torch.zeros(n, len(RECORD))
            records[:, 0] = torch.randint(4, (n,), generator=random)
            share = measure_signals(records, 4)[place] * math.log(4)
            pairs.append(math.exp(share) - 1 / 4)
        means.append(sum(pairs) / len(pairs))
    # The share of equal pairs is 1/4 on average, of few records as of many; 5 standard errors.
    assert means == pytest.approx([0.25, 0.25], abs=0.015)


# Pixels -------------------------------------------------------------------------------------------


def test_pixels_are_mirrored_back():
    grid = Grid(2, 2, 3)
    maps = torch.arange(12.0).reshape(2, 2, 3)
    rows = maps.reshape(-1, 1)
    expected = torch.tensor([2.0, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9])[:, None]
    assert torch.equal(mirror_back(rows, grid), expected)
    assert torch.equal(mirror_back(mirror_back(rows, grid), grid), rows)
    assert mirror_back(rows, None) is rows


def test_the_same_pixels_of_every_image_are_picked():
    grid = Grid(3, 8, 16)
    rows = torch.stack(
        [
            torch.tensor([float(image), float(row), float(column)])
            for image in range(3)
            for row in range(8)
            for column in range(16)
        ]
    )
    picked = pick_rows(rows, grid).reshape(3, PIXELS_PER_IMAGE, 3)
    places = find_places(grid).tolist()
    assert len(set(places)) == PIXELS_PER_IMAGE
    for image in range(3):
        for place, found in zip(places, picked[image].tolist(), strict=True):
            assert found == [image, place // 16, place % 16]
    assert len({place % 16 for place in places}) > 8  # of most columns
    assert {place // 16 for place in places} == set(range(8))
    assert pick_rows(rows, None) is rows


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (4, 4), (33, 1), (1, 33), (97, 61)])
def test_places_are_inside_images_of_any_size(shape):
    places = find_places(Grid(1, *shape))
    assert len(places) == PIXELS_PER_IMAGE
    assert int(places.min()) >= 0
    assert int(places.max()) < shape[0] * shape[1]


def test_rows_and_their_mirror_images_are_of_the_same_pixels():
    """A model that looks at each pixel alone predicts the mirrored image as it does the image."""
    grid = Grid(2, 6, 10)
    maps = torch.rand(2, 6, 10, 4, generator=torch.Generator().manual_seed(0))
    mirrored = maps.flip(2).reshape(-1, 4)
    found = pick_rows(mirror_back(mirrored, grid), grid)
    assert torch.equal(found, pick_rows(maps.reshape(-1, 4), grid))


# Maps ---------------------------------------------------------------------------------------------


def windows(n=120, seed=0, noise=0.02):
    """Return signals, accuracies, kinds and shifts that look like those of a calibration."""
    random = draws(seed)
    signals = random.normal(size=(n, len(SIGNALS))) * random.uniform(0.05, 0.3, len(SIGNALS))
    signals += random.uniform(-0.5, 0.8, len(SIGNALS))
    # One signal tells the kinds, with noise that is a share of its scale: how well they can be told
    # does not depend on the number of signals, which changes all draws.
    telling = signals[:, 3]
    blur = 0.73 * telling.std() * random.normal(size=n)
    correlated = telling + blur > np.quantile(telling, 0.6)
    first, second = random.normal(size=(2, 2, len(SIGNALS))) * 0.3
    weights = np.where(correlated[:, None, None], first, second)
    accuracies = 0.5 + np.einsum("nts,ns->nt", weights, signals - signals.mean(0))
    accuracies += noise * random.normal(size=accuracies.shape)
    shifts = [f"shift {number}" for number in random.integers(6, size=n)]
    return signals, accuracies.clip(0, 1), correlated, shifts


def targets_of(accuracies):
    return np.concatenate([accuracies, accuracies[:, 1:] - accuracies[:, :1]], axis=1)


#: Signs of the weights that have one: of confidence and consistency.
SIGNED = {
    "source": {0: 1, 1: 1},
    "adapted": {4: 1, 5: 1},
    "gain": {0: -1, 1: -1, 4: 1, 5: 1},
}


def ridge(rows, targets):
    """Return signed ridge weights by least squares with one row more for each penalty."""
    n_columns = rows.shape[1]
    penalties = np.sqrt(np.array([1e-6] + [1.0] * (n_columns - 1)))
    augmented = np.concatenate([rows, np.diag(penalties)])
    found = []
    for target, signs in zip(targets.T, SIGNED.values(), strict=True):
        low, high = np.full(n_columns, -np.inf), np.full(n_columns, np.inf)
        for place, sign in signs.items():
            (low if sign > 0 else high)[1 + place] = 0.0
        wanted = np.concatenate([target, np.zeros(n_columns)])
        found.append(lsq_linear(augmented, wanted, (low, high), method="bvls", tol=1e-14).x)
    return np.stack(found)


def logistic(rows, truth):
    """Return logistic weights by gradient descent with momentum, until nothing moves."""
    weights, velocity = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    penalty = np.array([0.0] + [1.0] * (rows.shape[1] - 1))
    rate = 1 / (np.linalg.norm(rows, 2) ** 2 / 4 + 1)
    for _ in range(200_000):
        p = 1 / (1 + np.exp(-rows @ weights))
        gradient = rows.T @ (p - truth) + penalty * weights
        if np.abs(gradient).max() < 1e-11:
            break
        velocity = 0.99 * velocity - rate * gradient
        weights = weights + velocity
    return weights


def with_products(rows):
    signals = rows[:, 1:].clip(-4, 4)
    n = signals.shape[1]
    products = [signals[:, i] * signals[:, j] for i in range(n) for j in range(i, n)]
    return np.concatenate([rows[:, :1], signals, np.stack(products, axis=1)], axis=1)


class Plain:
    """The same map, written a second time."""

    def __init__(self, signals, accuracies, correlated):
        self.centre, self.scale = signals.mean(0), signals.std(0) + 1e-3
        rows = self.standardise(signals)
        targets = targets_of(accuracies)
        self.fit(rows, targets, correlated)
        gram = rows.T @ rows + np.diag([1e-6] + [1.0] * (rows.shape[1] - 1))
        self.inverse = np.linalg.inv(gram)
        self.leverages = np.array([row @ self.inverse @ row for row in rows])

    def standardise(self, signals):
        rows = (signals - self.centre) / self.scale
        return np.concatenate([np.ones((len(rows), 1)), rows], axis=1)

    def fit(self, rows, targets, correlated):
        kinds = {"mixed": ~correlated, "correlated": correlated}
        self.weights = {}
        for name, kind in kinds.items():
            chosen = kind if kind.sum() > rows.shape[1] else np.ones_like(kind)
            self.weights[name] = ridge(rows[chosen], targets[chosen])
        self.gate = logistic(with_products(rows), correlated.astype(float))

    def share(self, rows):
        share = 1 / (1 + np.exp(-with_products(rows) @ self.gate))[:, None]
        return np.interp(share, [UNLIKELY, 1 - UNLIKELY], [0.0, 1.0])

    def predict(self, rows):
        share = self.share(rows)
        found = {name: (rows @ weights.T).clip(-1, 1) for name, weights in self.weights.items()}
        return (1 - share) * found["mixed"] + share * found["correlated"]


def left_out_errors(signals, accuracies, correlated, shifts):
    """Return the errors for each shift of a map that was fitted without it."""
    plain, targets = Plain(signals, accuracies, correlated), targets_of(accuracies)
    rows, errors = plain.standardise(signals), np.full_like(targets, np.nan)
    for shift in sorted(set(shifts)):
        inside = np.array([other == shift for other in shifts])
        plain.fit(rows[~inside], targets[~inside], correlated[~inside])
        errors[inside] = plain.predict(rows[inside]) - targets[inside]
    return errors


def plain_variance(errors, disagreement):
    """Return constant and factor of the variance, and how they were found, for each target.

    Of a straight line through squared errors over squared disagreements, by least squares. A line
    that falls is replaced by the mean, one that begins below zero by the one that begins at zero.
    """
    found, ways = [], []
    x = np.array([value**2 for value in disagreement])
    for column in np.asarray(errors).T:
        y = np.array([error**2 for error in column])
        factor, constant = np.polyfit(x, y, 1)
        way = "line"
        if factor < 0:
            constant, factor, way = y.mean(), 0.0, "mean"
        elif constant < 0:
            (factor,) = np.linalg.lstsq(x[:, None], y, rcond=None)[0]
            constant, way = 0.0, "zero"
        found.append([constant, factor])
        ways.append(way)
    return np.array(found), ways


def fit(signals, accuracies, correlated, shifts, size=128):
    return AccuracyMap.fit(
        size,
        signals=torch.from_numpy(signals),
        accuracies=torch.from_numpy(accuracies),
        is_correlated=torch.from_numpy(correlated),
        shifts=shifts,
    )


def test_a_map_is_that_of_a_second_implementation():
    signals, accuracies, correlated, shifts = windows()
    made, plain = (
        fit(signals, accuracies, correlated, shifts),
        Plain(signals, accuracies, correlated),
    )
    assert np.allclose(made.centre.numpy(), plain.centre, rtol=0, atol=1e-12)
    assert np.allclose(made.scale.numpy(), plain.scale, rtol=0, atol=1e-12)
    for weights, name in zip(made.weights.numpy(), KINDS, strict=True):
        assert np.allclose(weights, plain.weights[name], rtol=0, atol=1e-9)
    assert np.allclose(made.gate.numpy(), plain.gate, rtol=0, atol=1e-7)
    assert np.allclose(made.inverse.numpy(), plain.inverse, rtol=0, atol=1e-10)
    assert float(made.reach) == pytest.approx(plain.leverages.max(), abs=1e-10)
    new = windows(seed=1)[0][:10]
    rows = plain.standardise(new)
    mixed, correlated = made.variance.numpy()
    for row, (source, adapted, gain), share in zip(
        new, plain.predict(rows), plain.share(rows), strict=True
    ):
        disagreement = 1 - row[SIGNALS.index("agreement")]
        most = np.clip(disagreement, 0, 1)
        gain = np.clip(gain, -most, most)
        # Two estimates of the source's accuracy, weighted by their precision.
        terms = (1 - share) * mixed + share * correlated
        variances = [constant + factor * disagreement**2 for constant, factor in terms[:2]]
        of_source = np.average([source, adapted - gain], weights=1 / np.array(variances))
        found = made.estimate(torch.from_numpy(row), 128)
        assert [found.source.value, found.adapted.value, found.gain.value] == pytest.approx(
            [np.clip(of_source, 0, 1), np.clip(of_source + gain, 0, 1), gain], abs=1e-8
        )


def test_spread_and_variance_are_of_the_errors_on_shifts_that_were_left_out():
    signals, accuracies, correlated, shifts = windows()
    made = fit(signals, accuracies, correlated, shifts)
    errors = left_out_errors(signals, accuracies, correlated, shifts)
    expected = np.sqrt((errors**2).mean(0))
    assert made.spread.tolist() == pytest.approx(list(expected), abs=1e-8)
    assert made.spread.min() > 0.005
    disagreement = 1 - signals[:, SIGNALS.index("agreement")]
    assert made.variance.shape == (len(KINDS), len(TARGETS), 2)
    for found, kind in zip(made.variance.numpy(), (~correlated, correlated), strict=True):
        expected, _ = plain_variance(errors[kind], disagreement[kind])
        assert np.allclose(found, expected, rtol=0, atol=1e-8)


@settings(deadline=None, max_examples=50)
@given(n=st.integers(3, 60), seed=st.integers(0, 999), share=st.floats(0, 1))
def test_a_variance_is_that_of_a_second_implementation(n, seed, share):
    random = draws(seed)
    disagreement = random.random(n)
    size = np.sqrt(share * 0.04 + (1 - share) * 0.2 * disagreement**2)
    errors = size[:, None] * random.normal(size=(n, len(TARGETS)))
    found = _fit_variance(torch.from_numpy(errors), torch.from_numpy(disagreement))
    expected, _ = plain_variance(errors, disagreement)
    assert found.shape == (len(TARGETS), 2)
    assert np.allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_a_variance_is_a_line_a_mean_or_a_line_through_zero():
    """Neither constant nor factor is negative; each target has its own case."""
    disagreement = np.array([0.1, 0.2, 0.4, 0.6, 0.8])
    x = disagreement**2
    squares = {"line": 0.01 + 0.3 * x, "mean": 0.5 - 0.4 * x, "zero": 0.7 * x**2}
    errors = np.stack([np.sqrt(column) for column in squares.values()], axis=1)
    errors *= np.array([[1], [-1], [1], [-1], [-1]])  # signs do not matter
    expected, ways = plain_variance(errors, disagreement)
    assert ways == list(squares)
    found = _fit_variance(torch.from_numpy(errors), torch.from_numpy(disagreement)).numpy()
    assert np.allclose(found, expected, rtol=0, atol=1e-12)
    assert np.allclose(found[0], [0.01, 0.3], rtol=0, atol=1e-12)
    assert np.allclose(found[1], [squares["mean"].mean(), 0.0], rtol=0, atol=1e-12)
    through_zero = (x * squares["zero"]).sum() / (x**2).sum()
    assert np.allclose(found[2], [0.0, through_zero], rtol=0, atol=1e-12)
    assert through_zero > 0


@pytest.mark.parametrize("disagreement", [0.0, 0.3])
def test_a_variance_without_a_slope_is_a_constant(disagreement):
    """All windows disagree as much, so that nothing tells a slope."""
    errors = torch.from_numpy(draws(2).normal(size=(20, 3)))
    found = _fit_variance(errors, torch.full((20,), disagreement).double())
    assert torch.allclose(found[:, 0], errors.square().mean(dim=0), rtol=0, atol=1e-9)
    assert torch.allclose(found[:, 1], torch.zeros(3).double(), rtol=0, atol=1e-9)


def test_streams_of_one_kind_have_one_variance():
    signals, accuracies, correlated, shifts = windows()
    made = fit(signals, accuracies, np.zeros_like(correlated), shifts)
    assert torch.equal(made.variance[0], made.variance[1])


def test_too_few_windows_of_a_kind_share_one_regression():
    signals, accuracies, correlated, shifts = windows()
    few = np.zeros_like(correlated)
    few[np.flatnonzero(correlated)[: len(SIGNALS) + 1]] = True  # one fewer than needed
    made, plain = fit(signals, accuracies, few, shifts), Plain(signals, accuracies, few)
    rows = plain.standardise(signals)
    targets = targets_of(accuracies)
    assert np.allclose(made.weights[1].numpy(), ridge(rows, targets), rtol=0, atol=1e-9)
    assert np.allclose(made.weights[0].numpy(), ridge(rows[~few], targets[~few]), rtol=0, atol=1e-9)


def test_the_errors_of_one_shift_only_are_those_of_the_fit():
    signals, accuracies, correlated, _ = windows(40)
    made = fit(signals, accuracies, correlated, ["clean"] * 40)
    plain = Plain(signals, accuracies, correlated)
    errors = plain.predict(plain.standardise(signals)) - targets_of(accuracies)
    assert made.spread.tolist() == pytest.approx(list(np.sqrt((errors**2).mean(0))), abs=1e-8)
    assert made.spread.min() > 0
    disagreement = 1 - signals[:, SIGNALS.index("agreement")]
    for found, kind in zip(made.variance.numpy(), (~correlated, correlated), strict=True):
        expected, _ = plain_variance(errors[kind], disagreement[kind])
        assert np.allclose(found, expected, rtol=0, atol=1e-8)
    assert made.variance.sum(dim=-1).min() > 0
    found = made.estimate(made.centre, 128)
    assert found.gain.low < found.gain.value < found.gain.high


def test_a_linear_relation_is_recovered():
    """Without noise, and with many windows, the map is almost exact for new ones."""
    signals, accuracies, correlated, shifts = windows(4000, noise=0.0)
    slopes = np.linspace(-0.2, 0.2, len(SIGNALS))
    slopes[[0, 1, 4, 5]] = 0.1  # confidence and consistency
    accuracies[:, 0] = 0.6 + (signals - signals.mean(0)) @ slopes
    accuracies[:, 1] = accuracies[:, 0] + 0.1
    made = fit(signals, accuracies, correlated, shifts)
    new = signals[:5] + 0.01
    for row in new:
        found = made.estimate(torch.from_numpy(row), 128)
        truth = 0.6 + (row - signals.mean(0)) @ slopes
        assert found.source.value == pytest.approx(truth, abs=1e-3)
        assert found.gain.value == pytest.approx(0.1, abs=1e-3)
        assert found.is_familiar


@pytest.mark.parametrize("target", TARGETS)
def test_maps_are_monotone_in_confidence_and_consistency(target):
    """The weights keep their signs, also where the data would give them the others."""
    names = [SIGNALS[place] for place in SIGNED[target]]
    assert {name.split("_")[1] for name in names} == {"confidence", "consistency"}
    place, is_at_bound = TARGETS.index(target), []
    for seed in range(8):
        made = fit(*windows(seed=seed))
        for kind in made.weights:
            found = kind[place, [1 + each for each in SIGNED[target]]]
            signed = found * torch.tensor(list(SIGNED[target].values())).double()
            assert (signed >= 0).all()
            is_at_bound += (signed == 0).tolist()
    assert any(is_at_bound)
    assert not all(is_at_bound)


# Estimates ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made():
    return fit(*windows())


def halves(made, row, n_samples):
    """Return half the width of each interval, from the formula."""
    whole = np.concatenate([[1.0], (row - made.centre.numpy()) / made.scale.numpy()])
    leverage = whole @ made.inverse.numpy() @ whole
    noise = max(0.0, 1 / n_samples - 1 / made.size) / 4
    share = made.estimate(torch.from_numpy(row), n_samples).correlation
    first, second = made.variance.numpy()
    constant, factor = (first + share * (second - first)).T
    disagreement = 1 - row[SIGNALS.index("agreement")]
    variance = constant + factor * disagreement**2
    return 1.959964 * np.sqrt(variance * (1 + leverage) + noise), leverage


@pytest.mark.parametrize("n_samples", [32, 100, 128, 1000])
def test_intervals(made, n_samples):
    row = made.centre.numpy() + 0.1 * made.scale.numpy()
    found = made.estimate(torch.from_numpy(row), n_samples)
    widths, leverage = halves(made, row, n_samples)
    assert found.n_samples == n_samples
    assert found.is_familiar == (leverage <= float(made.reach))
    most = np.clip(1 - row[SIGNALS.index("agreement")], 0, 1)
    for interval, half, low, high in zip(
        (found.source, found.adapted, found.gain),
        widths,
        (0, 0, -most),
        (1, 1, most),
        strict=True,
    ):
        assert interval.low == pytest.approx(max(interval.value - half, low), abs=1e-9)
        assert interval.high == pytest.approx(min(interval.value + half, high), abs=1e-9)


def test_fewer_images_than_calibrated_are_less_certain_and_more_are_not_more_certain(made):
    row = made.centre
    width = {
        n: made.estimate(row, n).gain.high - made.estimate(row, n).gain.low
        for n in (32, 64, 128, 512)
    }
    assert width[32] > width[64] > width[128] == width[512]


def test_extrapolation_is_recognised_and_less_certain(made):
    inside = made.estimate(made.centre, 128)
    far = made.estimate(made.centre + 50 * made.scale, 128)
    assert inside.is_familiar
    assert not far.is_familiar
    assert "unlike any calibrated shift" in str(far)
    assert "unlike" not in str(inside)
    for estimate in (inside, far):
        for interval in (estimate.source, estimate.adapted):
            assert 0 <= interval.low <= interval.value <= interval.high <= 1
        assert -1 <= estimate.gain.low <= estimate.gain.value <= estimate.gain.high <= 1


def test_every_calibrated_window_is_familiar():
    signals, accuracies, correlated, shifts = windows()
    made = fit(signals, accuracies, correlated, shifts)
    # The window with the largest leverage is on the border, where rounding decides.
    inner = AccuracyMap(**{**vars(made), "reach": made.reach * (1 + 1e-9)})
    assert all(inner.estimate(torch.from_numpy(row), 128).is_familiar for row in signals)


def test_the_kinds_of_streams_are_told_apart():
    signals, accuracies, correlated, shifts = windows(600)
    made = fit(signals, accuracies, correlated, shifts)
    found = [made.estimate(torch.from_numpy(row), 128).correlation for row in signals]
    assert np.mean([p for p, is_true in zip(found, correlated, strict=True) if is_true]) > 0.7
    assert np.mean([p for p, is_true in zip(found, correlated, strict=True) if not is_true]) < 0.3


def test_a_map_survives_as_tensors(made):
    tensors = made.to_tensors()
    again = AccuracyMap.from_tensors(made.size, tensors)
    assert again.size == made.size
    for name, tensor in again.to_tensors().items():
        assert torch.equal(tensor, tensors[name]), name
    row = made.centre + 0.3 * made.scale
    assert again.estimate(row, 77) == made.estimate(row, 77)


@pytest.mark.parametrize("n_classes", [2, 10])
def test_a_stream_is_correlated_if_its_order_matters(n_classes):
    predicted = torch.from_numpy(draws(3).integers(0, n_classes, 256))
    assert not is_correlated(predicted)
    assert is_correlated(predicted.sort().values)
    assert not is_correlated(torch.zeros_like(predicted))  # one class: equal in any order
