"""Predictions corrected by the affinities of samples."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.functional.affinity import affinities, corrected_log_probs


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 9),
    n_classes=st.integers(2, 5),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 50.0, 1e4]),
    kernel=st.sampled_from(["rbf", "knn", "linear"]),
    seed=st.integers(0, 99),
)
def test_lame_gives_probabilities_whatever_comes(n, n_classes, scale, kernel, seed):
    draws = torch.Generator().manual_seed(seed)
    log_p = (scale * torch.randn(n, n_classes, generator=draws)).log_softmax(dim=1)
    features = scale * torch.randn(n, 6, generator=draws)
    log_y = corrected_log_probs(log_p, affinities(features, kernel))
    assert log_y.isfinite().all()
    assert (log_y.exp().sum(dim=1) - 1).abs().max() < 1e-5


def test_lame_lowers_its_energy():
    draws = torch.Generator().manual_seed(0)
    log_p = torch.randn(20, 4, generator=draws).double().log_softmax(dim=1)
    w = affinities(torch.randn(20, 6, generator=draws).double())

    def energy(log_y):
        y = log_y.exp()
        return float((y * (log_y - log_p)).sum() - (y * (w @ y)).sum())

    steps = [energy(log_p)] + [energy(corrected_log_probs(log_p, w, n)) for n in range(1, 8)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] - steps[-1] > 1


def test_lame_gives_equal_samples_equal_labels():
    features = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 4)
    p = torch.tensor([[0.9, 0.1]] * 3 + [[0.4, 0.6]] + [[0.2, 0.8]] * 3 + [[0.6, 0.4]])
    y = corrected_log_probs(p.log(), affinities(features, n_neighbours=3)).argmax(dim=1)
    assert y.tolist() == [0] * 4 + [1] * 4
