"""Slow, plain versions of the methods that work on features: loops over samples and classes."""

from __future__ import annotations

import copy
import math

import torch

from tests.reference.oracles import PlainSgd, batch_mode, plain_entropy


def look(model, x):
    """Return features and logits, by a hook that stays for one call."""
    taken = []
    hook = model.head.register_forward_hook(lambda _, inputs, __: taken.append(inputs[0]))
    logits = model(x)
    hook.remove()
    return taken[0], logits


def unit(vector):
    return vector / vector.norm()


def t3a(model, xs, n_supports, log=None):
    """Keep everything that was ever seen in a list, and choose from it anew for each batch."""
    model = copy.deepcopy(model).eval()
    weight = model.head.weight.detach()
    store = []

    def add(feature, logits):
        p = logits.softmax(dim=0)
        store.append((feature, int(logits.argmax()), float(-(p * p.log()).sum())))

    for row in weight:
        add(row, model.head(row).detach())
    for x in xs:
        features, logits = (t.detach() for t in look(model, x))
        for f, z in zip(features, logits, strict=True):
            add(f, z)
        prototypes = []
        for k in range(len(weight)):
            members = sorted((item for item in store if item[1] == k), key=lambda item: item[2])
            if log is not None:
                log.append(len(members))
            total = sum((unit(f) for f, _, _ in members[:n_supports]), torch.zeros_like(weight[0]))
            prototypes.append(unit(total) if members else total)
        yield torch.stack([torch.stack([f @ c for c in prototypes]) for f in features])


def lame(model, xs, kernel="rbf", n_neighbours=5):
    model = copy.deepcopy(model).eval()
    for x in xs:
        features, logits = (t.detach() for t in look(model, x))
        yield lame_batch(features, logits.softmax(dim=1), kernel, n_neighbours).log()


def lame_batch(features, p, kernel, n_neighbours):
    n, n_classes = p.shape
    g = [unit(f) for f in features]
    distance = [[float((a - b).norm()) for b in g] for a in g]
    if kernel == "rbf":
        rank = min(n_neighbours, n) - 1
        sigma = sum(sorted(row)[rank] for row in distance) / n
        w = [[math.exp(-(d**2) / (2 * sigma**2)) for d in row] for row in distance]
    elif kernel == "linear":
        w = [[float(a @ b) for b in g] for a in g]
    else:
        w = [[0.0] * n for _ in range(n)]
        for i in range(n):
            others = sorted((j for j in range(n) if j != i), key=lambda j: distance[i][j])
            for j in others[:n_neighbours]:
                w[i][j] = 1.0
    y = [[float(v) for v in row] for row in p]
    start = [list(row) for row in y]
    old = None
    for _ in range(100):
        new = []
        for i in range(n):
            scores = [
                math.log(start[i][k]) + sum(w[i][j] * y[j][k] for j in range(n))
                for k in range(n_classes)
            ]
            top = max(scores)
            shares = [math.exp(s - top) for s in scores]
            new.append([s / sum(shares) for s in shares])
        y = new
        energy = sum(
            y[i][k] * math.log(y[i][k] / start[i][k]) for i in range(n) for k in range(n_classes)
        )
        energy -= sum(
            w[i][j] * sum(y[i][k] * y[j][k] for k in range(n_classes))
            for i in range(n)
            for j in range(n)
        )
        if old is not None and abs(energy - old) <= 1e-8 * abs(old):
            break
        old = energy
    return torch.tensor(y, dtype=p.dtype)


def shot(model, xs, labels="batch", weight=0.001, queue_size=0, log=None):
    """Entropies and centroid labels; the head stands still."""
    model = batch_mode(model)
    chosen = [p for name, p in model.named_parameters() if not name.startswith("head.")]
    sgd = PlainSgd(chosen, lr=1e-3)
    queue = []
    for x in xs:
        features, logits = look(model, x)
        p = logits.softmax(dim=1)
        loss = plain_entropy(p).mean() - plain_entropy(p.mean(0)[None])[0]
        if labels != "none":
            batch = [
                (unit(torch.cat([f, f.new_ones(1)])), q)
                for f, q in zip(features.detach(), p.detach(), strict=True)
            ]
            found = centroid_labels([*queue, *batch])[-len(batch) :]
            if log is not None:
                log.append((found, p.argmax(dim=1).tolist()))
            if labels == "queue":
                queue = [*queue, *batch][-queue_size:]
            picked = torch.stack([row[k] for row, k in zip(p, found, strict=True)])
            loss = loss - weight * picked.log().mean()
        yield logits.detach()
        sgd.step(torch.autograd.grad(loss, chosen, allow_unused=True))


def centroid_labels(samples):
    n_classes = len(samples[0][1])
    shares = [[float(q[k]) for k in range(n_classes)] for _, q in samples]
    for _ in range(2):
        centroids = {}
        for k in range(n_classes):
            total = sum(row[k] for row in shares)
            if total > 0:
                centroids[k] = (
                    sum(row[k] * g for row, (g, _) in zip(shares, samples, strict=True)) / total
                )
        labels = [
            min(centroids, key=lambda k: float(1 - g @ centroids[k] / centroids[k].norm()))
            for g, _ in samples
        ]
        shares = [[float(k == label) for k in range(n_classes)] for label in labels]
    return labels
