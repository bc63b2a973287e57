"""Metrics as slow loops, written apart from the package."""

from __future__ import annotations

import math

#: Samples whose confidences differ by less than 1 / 3840 may not be told apart.
N_FINE = 3840


class Oracle:
    """Every sample is kept, and every measure is a loop over them in plain Python."""

    def __init__(self, logits, y):
        self.y = y.tolist()
        self.samples = []  # (confidence, is correct)
        self.predicted, self.nll, self.entropy = [], 0.0, 0.0
        for row, label in zip(logits.tolist(), self.y, strict=True):
            powers = [math.exp(value - max(row)) for value in row]
            p = [power / sum(powers) for power in powers]
            best = p.index(max(p))
            self.predicted.append(best)
            self.samples.append((p[best], best == label))
            self.nll -= math.log(p[label]) / len(self.y)
            self.entropy -= sum(q * math.log(q) for q in p if q > 0) / len(self.y)

    @property
    def confidence(self):
        return sum(confidence for confidence, _ in self.samples) / len(self.samples)

    @property
    def error_by_class(self):
        by_class = {}
        for label, predicted in zip(self.y, self.predicted, strict=True):
            by_class.setdefault(label, []).append(predicted != label)
        return {label: sum(wrong) / len(wrong) for label, wrong in sorted(by_class.items())}

    @property
    def ece(self):
        total = 0.0
        for k in range(15):
            own = [s for s in self.samples if min(int(15 * s[0]), 14) == k]
            total += self.gap(own)
        return total / len(self.samples)

    @property
    def adaptive_ece(self):
        ordered = sorted(self.samples)
        ends = [k * len(ordered) // 15 for k in range(16)]
        gaps = [self.gap(ordered[ends[k] : ends[k + 1]]) for k in range(15)]
        return sum(gaps) / len(ordered)

    @property
    def doubt(self):
        """How far samples that are not told apart can move the adaptive error at most.

        Where an edge leaves j of the m samples of a fine bin on one side, their sum of gaps is
        wrong by j (m − j) / m ≤ m / 4 times the spread of gaps, and that counts on both sides.
        """
        counts = {}
        for confidence, _ in self.samples:
            fine = min(int(N_FINE * confidence), N_FINE - 1)
            counts[fine] = counts.get(fine, 0) + 1
        ordered = sorted(self.samples)
        total = 0.0
        for end in [k * len(ordered) // 15 for k in range(1, 15)]:
            if end == 0:
                continue
            below, above = (min(int(N_FINE * ordered[i][0]), N_FINE - 1) for i in (end - 1, end))
            total += counts[below] / 2 if below == above else 0
        return total * (1 + 1 / N_FINE) / len(ordered)

    @staticmethod
    def gap(samples):
        return abs(sum(c for c, _ in samples) - sum(correct for _, correct in samples))
