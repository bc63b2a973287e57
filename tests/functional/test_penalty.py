"""Penalties against NumPy, the closed form of SWR against autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.functional import add_penalty_gradient, penalties, penalty_term
from acclimate.terms.swr import ActiveSwr


@settings(deadline=None)
@given(
    st.lists(st.floats(-1, 1), min_size=2, max_size=20).filter(lambda v: max(v) - min(v) > 1e-6),
    st.sampled_from([1.0, 2.0, 3.0]),
)
def test_min_max_then_power(values, exponent):
    cosines = {str(i): torch.tensor(v, dtype=torch.float64) for i, v in enumerate(values)}
    found = penalties(cosines, exponent)
    array = np.array(values)
    expected = ((array - array.min()) / (array.max() - array.min())) ** exponent
    assert np.allclose([float(v) for v in found.values()], expected, atol=1e-12)
    assert min(found.values()) == 0
    assert max(found.values()) == 1


def test_the_scale_is_common_to_all_units():
    cosines = {"a": torch.tensor([0.0, 0.5]), "b": torch.tensor([[1.0]])}
    found = penalties(cosines)
    assert found["a"].tolist() == [0.0, 0.25]
    assert found["b"].tolist() == [[1.0]]


def test_cases_the_paper_does_not_speak_of():
    nan = float("nan")
    unmeasured = penalties({"a": torch.tensor(0.2), "b": torch.tensor(nan), "c": torch.tensor(0.6)})
    assert [float(v) for v in unmeasured.values()] == [0.0, 1.0, 1.0]
    constant = penalties({"a": torch.tensor(0.3), "b": torch.tensor(0.3)})
    assert [float(v) for v in constant.values()] == [1.0, 1.0]
    nothing = penalties({"a": torch.tensor(nan), "b": torch.tensor(nan)})
    assert [float(v) for v in nothing.values()] == [1.0, 1.0]


def tensors(seed):
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(*s, generator=draws).double() for s in ((4, 3, 2, 2), (4,), (5, 4))]


@pytest.mark.parametrize("kind", ["tensor", "channel", "parameter"])
def test_closed_form_is_the_autograd_gradient(kind):
    parameters, anchors = tensors(0), tensors(1)
    draws = torch.Generator().manual_seed(2)
    shapes = {
        "channel": [(len(p), *[1] * (p.dim() - 1)) for p in parameters],
        "parameter": [p.shape for p in parameters],
    }
    weights = [torch.tensor(w).double() for w in (0.0, 0.4, 1.0)]
    if kind in shapes:
        weights = [torch.rand(shape, generator=draws).double() for shape in shapes[kind]]
    for parameter in parameters:
        parameter.requires_grad_(True)
    expected = torch.autograd.grad(penalty_term(parameters, anchors, weights, 250.0), parameters)
    names = ["a", "b", "c"]
    swr = ActiveSwr(dict(zip(names, weights, strict=True)), 250.0, "previous")
    swr.after_update(dict(zip(names, anchors, strict=True)))
    found = [torch.ones_like(p) for p in parameters]
    found = swr.add_gradients(names, found, parameters)
    for left, right in zip(expected, found, strict=True):
        assert torch.allclose(left + 1, right, rtol=1e-13, atol=1e-13)


def test_value_is_the_weighted_squared_distance():
    parameters, anchors = tensors(0), tensors(1)
    weights = [torch.tensor(w).double() for w in (0.0, 0.4, 1.0)]
    value = 250 * sum(
        float(w) * ((p.numpy() - a.numpy()) ** 2).sum()
        for p, a, w in zip(parameters, anchors, weights, strict=True)
    )
    assert float(penalty_term(parameters, anchors, weights, 250.0)) == pytest.approx(value)


def test_without_anchor_or_penalty_nothing_is_added():
    parameters = tensors(0)
    found = [torch.zeros_like(p) for p in parameters]
    swr = ActiveSwr({"a": torch.tensor(1.0)}, 250.0, "previous")
    swr.after_update({"b": parameters[1] + 1})
    result = swr.add_gradients(["a", "b", "c"], found, parameters)
    assert all((g == 0).all() for g in result)


def test_gradients_that_share_memory_are_left_alone():
    """Autograd may return one tensor for two parameters, or an expanded one."""
    shared = torch.ones(1).expand(3)
    parameter, zero = torch.full((3,), 2.0), torch.zeros(3)
    found = add_penalty_gradient([shared, shared], [parameter, parameter], [zero, zero], [0.5, 1.0])
    assert [g.tolist() for g in found] == [[2.0] * 3, [3.0] * 3]
    assert shared.tolist() == [1.0] * 3
