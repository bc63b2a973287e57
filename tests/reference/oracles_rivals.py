"""Plain versions of COME, CMF, PeTTA and TRIBE, written from their papers and code.

They share nothing with the package: masses of opinions are plain exponentials, class statistics of
BatchNorm are lists that a loop fills, filters are numbers and lists. Augmentations are given.
"""

from __future__ import annotations

import torch

from tests.reference.oracles import PlainAdam, batch_mode

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
