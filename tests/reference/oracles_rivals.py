"""Plain versions of COME, CMF, PeTTA and TRIBE, written from their papers and code.

They share nothing with the package: masses of opinions are plain exponentials, class statistics of
BatchNorm are lists that a loop fills, filters are numbers and lists. Augmentations are given.
"""

from __future__ import annotations

import torch

from tests.reference.oracles import PlainAdam, batch_mode, plain_entropy
from tests.reference.oracles_teachers import cross_entropy

# COME --------------------------------------------------------------------------------------------


def opinion_entropy(z):
    """Entropy of the opinion of one row of logits, whose length has no gradient."""
    length = sum(value * value for value in z).sqrt()
    z = [value / length * length.item() for value in z]
    evidence = [value.exp() for value in z]
    total = sum(evidence) + len(z)
    masses = [value / total for value in evidence] + [len(z) / total]
    return -sum(mass * mass.log() for mass in masses)


def come(model, xs, is_trained, lr=1e-3):
    """TENT with the entropy of opinions; yields the logits before each update."""
    model = batch_mode(model)
    chosen = [p for name, p in model.named_parameters() if is_trained(name)]
    adam = PlainAdam(chosen, lr)
    for x in xs:
        logits = model(x)
        yield logits.detach()
        loss = sum(opinion_entropy(z) for z in logits) / len(logits)
        adam.step(torch.autograd.grad(loss, chosen, allow_unused=True))


# CMF ---------------------------------------------------------------------------------------------


def roid_loss(model, logits, x, mean, augment):
    """ROID's loss on a batch, sample by sample, and its new mean prediction."""
    p = logits.detach().softmax(dim=1)
    n = len(p)
    d = torch.stack([1 - (row @ mean) / (row.norm() * mean.norm()) for row in p])
    c = -plain_entropy(p)
    d, c = ((v - v.min()) / (v.max() - v.min()) for v in (d, c))
    keep = [i for i in range(n) if not d[i] < d.mean()]
    q = logits.softmax(dim=1).clamp(max=0.99)
    view = model(augment(x[keep]))
    loss = 0.0
    for j, i in enumerate(keep):
        ratio = -(q[i] * (q[i] / (1 - q[i]) + 1e-5).log()).sum()
        own, other = logits[i : i + 1], view[j : j + 1]
        both = 0.5 * cross_entropy(own, other) + 0.5 * cross_entropy(other, own)
        loss = loss + (d[i] * c[i] * 3).exp() * (ratio + both[0]) / n
    return loss, 0.9 * mean + 0.1 * p.mean(dim=0)


def cmf(model, xs, augment, is_norm, drift=0.005, alpha=0.99, gamma=0.99, log=None):
    """Yields the corrected logits before each update; logs variance and share kept."""
    model = batch_mode(model)
    chosen = [p for name, p in model.named_parameters() if is_norm(name)]
    source = [p.detach().clone() for p in chosen]
    hidden = [p.detach().clone() for p in chosen]
    q = drift * sum(p.numel() for p in chosen) / 38400
    adam, mean, variance = PlainAdam(chosen), None, 0.0
    for x in xs:
        logits = model(x)
        n, k = logits.shape
        prior = logits.detach().softmax(dim=1).mean(dim=0)
        smooth = max(1 / n, 1 / k) / prior.max()
        yield logits.detach() * ((prior + smooth) / (1 + smooth * k))
        mean = torch.full((k,), 1 / k, dtype=logits.dtype) if mean is None else mean
        loss, mean = roid_loss(model, logits, x, mean, augment)
        adam.step(torch.autograd.grad(loss, chosen))
        variance = alpha * alpha * variance + q
        beta = (1 - q) / (variance + 1 - q)
        if beta < 0.89:
            beta = 0.89
        if beta >= 0.9999:
            beta = 1.0
        variance = beta * variance
        for i, p in enumerate(chosen):
            recovered = alpha * hidden[i] + (1 - alpha) * source[i]
            hidden[i] = beta * recovered + (1 - beta) * p.data
            p.data = gamma * p.data + (1 - gamma) * hidden[i]
        if log is not None:
            log.append((variance, beta))
