"""TFA, TTT++ and their summary of the source, written plainly and slowly.

They share nothing with the package: covariances are summed pair by pair of columns, the contrastive
loss row by row, past features are kept in a Python list, and there is one such list for each space.
"""

from __future__ import annotations

import torch

from tests.reference.oracles import PlainSgd, batch_mode


def mean_of(rows):
    return sum(rows) / len(rows)


def covariance_of(rows):
    centre = mean_of(rows)
    return sum(torch.outer(row - centre, row - centre) for row in rows) / (len(rows) - 1)


def frobenius(first, second):
    d = len(first)
    return ((first - second) ** 2).sum() / (4 * d * d)


def squared(first, second):
    return ((first - second) ** 2).sum() / len(first)


def summarise(rows, size):
    """Mean, covariance, and the mean distances of both between the first block and the others."""
    blocks = [rows[i : i + size] for i in range(0, len(rows) - size + 1, size)]
    first = blocks[0]
    of_mean = [squared(mean_of(first), mean_of(block)) for block in blocks[1:]]
    of_covariance = [frobenius(covariance_of(first), covariance_of(block)) for block in blocks[1:]]
    return {
        "mean": mean_of(rows),
        "covariance": covariance_of(rows),
        "mean_distance": sum(of_mean) / len(of_mean),
        "covariance_distance": sum(of_covariance) / len(of_covariance),
    }


def project(weights, rows):
    hidden = (rows @ weights["0.weight"].T + weights["0.bias"]).clamp_min(0)
    return hidden @ weights["2.weight"].T + weights["2.bias"]


def nt_xent(first, second, temperature):
    """SimCLR's loss, row by row."""
    rows = [row / row.norm() for row in [*first, *second]]
    n = len(first)
    losses = []
    for i, row in enumerate(rows):
        partner = rows[(i + n) % (2 * n)]
        others = [torch.dot(row, other) / temperature for j, other in enumerate(rows) if j != i]
        losses.append(torch.stack(others).exp().sum().log() - torch.dot(row, partner) / temperature)
    return sum(losses) / len(losses)


def align(rows, source, mean_weight):
    of_covariance = frobenius(source["covariance"], covariance_of(rows))
    of_mean = squared(source["mean"], mean_of(rows))
    return (
        of_covariance / source["covariance_distance"]
        + mean_weight * of_mean / source["mean_distance"]
    )


def tttpp(model, xs, encode, source, head, views=None, window=1536, lr=0.01, **weights):
    """TTT++, or TFA if there are no views; yields logits before each update, and how many rows.

    Args:
        encode: (model, x) -> features, logits.
        source: Moments by space, "encoder" and "head".
        head: Weights of the projection head, None for the encoder's space alone.
        views: x -> a view of it, called twice a batch.
    """
    scale = {"s_encoder": 0.05, "s_head": 0.2, "mean": 0.5, "T": 0.5, "contrast": 0.5 / 0.07}
    scale |= weights
    model = batch_mode(model)
    encoder = [p for name, p in model.named_parameters() if not name.startswith("head.")]
    optimizer = PlainSgd(encoder, lr)
    spaces = {"encoder": lambda rows: rows}
    if head is not None:
        spaces["head"] = lambda rows: project(head, rows)
    past = {space: [] for space in spaces}
    for x in xs:
        features, logits = encode(model, x)
        loss = 0.0
        n_rows = len(x)
        for space, function in spaces.items():
            now = list(function(features))
            wanted = window - len(now)
            rows = now
            if 0 < wanted <= len(past[space]):
                rows = past[space][-wanted:] + now
            n_rows = len(rows)
            loss = loss + scale[f"s_{space}"] * align(rows, source[space], scale["mean"])
            past[space] += [row.detach() for row in now]
        if views is not None:
            both = encode(model, torch.cat([views(x), views(x)]))[0]
            first, second = project(head, both).chunk(2)
            loss = loss + scale["contrast"] * nt_xent(first, second, scale["T"])
        yield logits.detach(), n_rows
        optimizer.step(torch.autograd.grad(loss, encoder, allow_unused=True))
