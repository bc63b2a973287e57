"""The label filter by brute force: all paths of labels, and the updates as they are documented."""

from __future__ import annotations

import itertools
import math

from acclimate.functional import label_filter

START = {"stay": label_filter._FIRST_STAY, "n": label_filter._MEAN_START}


def start(n_classes):
    """Return the state before the first image."""
    even = [1 / n_classes] * n_classes
    return {**START, "last": even, "mean": even}


def probabilities(row):
    """Return the softmax of a row of logits, no class excluded."""
    top = max(row)
    shares = [math.exp(value - top) for value in row]
    shares = [max(share / sum(shares), label_filter._SMALLEST) for share in shares]
    return [share / sum(shares) for share in shares]


def filter_labels(rows, state=None):
    """Return probabilities of each label, given all images of the batch, and the next state.

    First the parameters of each step are replayed. They depend on the images before, and for each
    step the probability of a repeated label is that of all paths so far that ended in one.
    """
    n_classes = len(rows[0])
    state = start(n_classes) if state is None else state
    stay, mean, n, before = state["stay"], state["mean"], state["n"], state["last"]
    steps, last = [], before
    for row in rows:
        p = probabilities(row)
        floor = [max(share, label_filter._FLOOR / n_classes) for share in mean]
        anew = [share / sum(floor) for share in floor]
        evidence = [share / low for share, low in zip(p, floor, strict=True)]
        steps.append((stay, anew, evidence))
        joint = {}  # by the label before, the label now, and whether it was drawn anew
        for old, new in itertools.product(range(n_classes), repeat=2):
            joint[old, new, True] = last[old] * (1 - stay) * anew[new] * evidence[new]
            joint[old, new, False] = last[old] * stay * (old == new) * evidence[new]
        total = sum(joint.values())
        last = [
            sum(value for (_, new, _), value in joint.items() if new == k) / total
            for k in range(n_classes)
        ]
        repeated = sum(value for (*_, is_anew), value in joint.items() if not is_anew) / total
        stay = stay + (repeated - stay) / label_filter._STAY_MEMORY
        stay = min(max(stay, label_filter._LOWEST), label_filter._HIGHEST)
        counts = 1 - label_filter._REPEATS * stay
        n = min(n + counts, label_filter._MEAN_MEMORY)
        mean = [m + (share - m) * counts / n for m, share in zip(mean, p, strict=True)]
    found = [[0.0] * n_classes for _ in rows]
    for path in itertools.product(range(n_classes), repeat=len(rows)):
        weight = sum(before[old] * _follow(old, path, steps) for old in range(n_classes))
        for place, label in enumerate(path):
            found[place][label] += weight
    found = [[value / sum(row) for value in row] for row in found]
    return found, {"stay": stay, "mean": mean, "n": n, "last": last}


def _follow(old, path, steps):
    """Return the probability of a path and its evidence, after a label."""
    weight = 1.0
    for new, (stay, anew, evidence) in zip(path, steps, strict=True):
        weight *= ((1 - stay) * anew[new] + stay * (old == new)) * evidence[new]
        old = new
    return weight
