"""Classes that are represented by features."""

from __future__ import annotations

import torch

from acclimate.functional.centroids import pseudo_labels


def test_shot_labels_with_a_class_missing_or_all_samples_equal():
    directions = torch.eye(3)[[0, 0, 1, 1]]
    p = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.2, 0.8, 0.0], [0.1, 0.9, 0.0]])
    assert pseudo_labels(directions, p, 4).tolist() == [0, 0, 1, 1]
    assert pseudo_labels(directions, p, 2).tolist() == [1, 1]
    equal = pseudo_labels(directions[:1].expand(4, -1), p, 4)
    assert len(set(equal.tolist())) == 1
