"""Moving prototypes against a plain loop; the classifier against NumPy."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.functional import move_prototypes, prototype_logits


def loop(prototypes, seen, embeddings, y, momentum):
    prototypes, seen = prototypes.clone(), seen.clone()
    for z, label in zip(embeddings, y, strict=True):
        if seen[label]:
            prototypes[label] = momentum * prototypes[label] + (1 - momentum) * z
        else:
            prototypes[label], seen[label] = z, True
    return prototypes, seen


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**31), st.floats(0, 0.999))
def test_batches_equal_the_sample_by_sample_loop(n, n_classes, seed, momentum):
    draws = torch.Generator().manual_seed(seed)
    prototypes = torch.zeros(n_classes, 5, dtype=torch.float64)
    seen = torch.zeros(n_classes, dtype=torch.bool)
    expected = (prototypes, seen)
    for _ in range(3):
        z = torch.randn(n, 5, generator=draws).double()
        y = torch.randint(n_classes, (n,), generator=draws)
        expected = loop(*expected, z, y, momentum)
        prototypes, seen = move_prototypes(prototypes, seen, z, y, momentum)
    assert torch.equal(seen, expected[1])
    assert torch.allclose(prototypes, expected[0], atol=1e-12)


def test_arguments_are_not_changed():
    prototypes, seen = torch.zeros(2, 3), torch.zeros(2, dtype=torch.bool)
    move_prototypes(prototypes, seen, torch.ones(4, 3), torch.tensor([0, 1, 1, 0]))
    assert (prototypes == 0).all()
    assert not seen.any()


def test_classifier_is_cosine_over_temperature():
    draws = torch.Generator().manual_seed(0)
    z, q = torch.randn(6, 5, generator=draws).double(), torch.randn(3, 5, generator=draws).double()
    a, b = z.numpy(), q.numpy()
    norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    assert np.allclose(prototype_logits(z, q, 0.1), a @ b.T / norms / 0.1, atol=1e-12)


def test_zero_features_give_an_even_answer():
    logits = prototype_logits(torch.zeros(2, 4), torch.eye(4)[:3])
    assert (logits == 0).all()


def test_half_precision_is_promoted():
    assert prototype_logits(torch.ones(2, 4).bfloat16(), torch.eye(4)).dtype == torch.float32
