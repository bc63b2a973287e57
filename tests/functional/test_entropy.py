"""Losses against NumPy, and against their limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.functional import (
    cross_entropy_between,
    entropy,
    entropy_of_mean,
    information_maximization,
)
from acclimate.functional.entropy import correlation_loss, soft_likelihood_ratio


def numpy_probs(logits):
    z = np.asarray(logits, dtype=np.float64)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def numpy_entropy(p):
    terms = np.zeros_like(p)
    np.log(p, where=p > 0, out=terms)
    return -(p * terms).sum(axis=-1)


@st.composite
def logits_arrays(draw):
    n, k = draw(st.integers(1, 9)), draw(st.integers(2, 12))
    scale = draw(st.sampled_from([0.0, 0.1, 1.0, 30.0]))
    seed = draw(st.integers(0, 2**31))
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).double() * scale


@settings(deadline=None, max_examples=60)
@given(logits_arrays())
def test_all_equal_numpy(logits):
    p = numpy_probs(logits)
    assert np.allclose(entropy(logits), numpy_entropy(p), atol=1e-10)
    assert np.allclose(entropy_of_mean(logits), numpy_entropy(p.mean(axis=0)), atol=1e-10)
    expected = 0.2 * numpy_entropy(p).mean() - 0.25 * numpy_entropy(p.mean(axis=0))
    assert np.allclose(information_maximization(logits, 0.2, 0.25), expected, atol=1e-10)
    other = logits.flip(0) * 0.5
    between = -(p * np.log(numpy_probs(other))).sum(axis=1)
    assert np.allclose(cross_entropy_between(logits, other), between, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [0.0, 1.0, 1e4, 3e38])
def test_finite_with_finite_gradients_at_the_limits(dtype, size):
    """One-hot, uniform and absurdly sure predictions."""
    size = min(size, torch.finfo(dtype).max)
    logits = torch.full((4, 5), -size, dtype=dtype)
    logits[range(4), [0, 1, 2, 2]] = size
    logits.requires_grad_(True)
    for loss in (
        information_maximization(logits, 0.2, 0.25),
        cross_entropy_between(logits, logits.flip(1) * 0.1).mean(),
    ):
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert loss.dtype == torch.float32
        assert loss.isfinite()
        assert gradient.isfinite().all()


def test_limits_have_their_values():
    uniform, one_hot = torch.zeros(3, 7), torch.eye(7) * 1e6
    assert entropy(uniform).tolist() == pytest.approx([math.log(7)] * 3)
    assert entropy(one_hot).tolist() == [0.0] * 7
    assert float(entropy_of_mean(one_hot)) == pytest.approx(math.log(7))
    assert float(entropy_of_mean(one_hot[:1])) == 0.0


def test_gradients_are_those_of_the_definition():
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double()
    logits.requires_grad_(True)
    for function in (entropy, entropy_of_mean, lambda z: cross_entropy_between(z, z.flip(0))):
        assert torch.autograd.gradcheck(function, (logits,))


def test_the_raw_correlation_is_the_gini_impurity():
    logits = torch.randn(20, 7, generator=torch.Generator().manual_seed(0)).double()
    expected = (1 - logits.softmax(dim=1).square().sum(dim=1)).mean()
    assert (correlation_loss(logits) - expected).abs() < 1e-12


@pytest.mark.parametrize("options", [{}, {"balanced": True}, {"balanced": True, "weighted": True}])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3, 1e30])
def test_correlations_stay_finite_for_any_prediction(options, scale):
    logits = scale * torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    logits[:, 4] = -scale  # a class that nobody predicts
    logits.requires_grad_(True)
    loss = correlation_loss(logits, **options)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert 0 <= loss <= 1
    assert gradient.isfinite().all()


def test_soft_likelihood_ratio_has_a_gradient_where_the_entropy_has_none_left():
    logits = torch.tensor([[6.0, 0.0, -1.0], [3.0, 0.0, 0.0]], dtype=torch.float64)
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(soft_likelihood_ratio(logits, 0.9999).sum(), logits)
    assert gradient[0, 0] < -0.9
    assert torch.autograd.gradcheck(soft_likelihood_ratio, (logits,))
