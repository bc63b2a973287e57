"""Plain versions of COME, CMF, PeTTA and TRIBE, written from their papers and code.

They share nothing with the package: masses of opinions are plain exponentials, class statistics of
BatchNorm are lists that a loop fills, filters are numbers and lists. Augmentations are given.
"""

from __future__ import annotations

import copy
import math

import torch

from tests.reference.oracles import PlainAdam, batch_mode, plain_entropy
from tests.reference.oracles_teachers import (
    ListMemory,
    average_into,
    cross_entropy,
    set_mode,
    with_plain_norms,
)

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


# TRIBE -------------------------------------------------------------------------------------------


class PlainBalancedNorm(torch.nn.Module):
    """BatchNorm with a list of statistics for each class, moved by a loop over classes."""

    def __init__(self, layer, n_classes, rate, sharing):
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        self.rate, self.sharing = rate, sharing
        self.means = [layer.running_mean.clone() for _ in range(n_classes)]
        self.variances = [layer.running_var.clone() for _ in range(n_classes)]
        self.labels = None

    def forward(self, x):
        means, variances = self.means, self.variances
        if self.labels is not None:
            means, variances = self.moved(x)
            self.means = [mean.detach() for mean in means]
            self.variances = [variance.detach() for variance in variances]
        k = len(means)
        mean = sum(means) / k
        variance = sum(variances) / k + sum((own - mean) ** 2 for own in means) / (k - 1)
        out = (x - mean.view(1, -1, 1, 1)) / (variance.view(1, -1, 1, 1) + self.eps).sqrt()
        return out * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)

    def moved(self, x):
        """Return the statistics of all classes after the batch: own steps, then the shared one."""
        means, variances = list(self.means), list(self.variances)
        shifts, gains, lost = [], [], []
        for k in sorted(set(self.labels.tolist())):
            members = [image for image, label in zip(x, self.labels, strict=True) if label == k]
            n = len(members)
            m = 1 / n if n > 1 / self.rate else self.rate
            old = means[k].view(-1, 1, 1)
            shift = m * sum((image - old).mean(dim=(1, 2)) for image in members)
            squares = sum(((image - old) ** 2).mean(dim=(1, 2)) for image in members)
            means[k] = means[k] + (1 - self.sharing) * shift
            variances[k] = variances[k] + (1 - self.sharing) * (
                m * (squares - n * variances[k]) - shift**2
            )
            shifts.append(shift)
            gains.append(m * squares - shift**2)
            lost.append(m * n)
        shift, gain, loss = (sum(each) / len(each) for each in (shifts, gains, lost))
        means = [mean + self.sharing * shift for mean in means]
        return means, [own + self.sharing * (gain - loss * own) for own in variances]


def with_balanced_norms(model, n_classes, rate, sharing):
    model = copy.deepcopy(model).eval()
    for name, layer in list(model.named_modules()):
        if isinstance(layer, torch.nn.BatchNorm2d):
            parent, _, own = name.rpartition(".")
            balanced = PlainBalancedNorm(layer, n_classes, rate, sharing)
            setattr(model.get_submodule(parent), own, balanced)
    return model


def set_labels(model, labels):
    for layer in model.modules():
        if isinstance(layer, PlainBalancedNorm):
            layer.labels = labels


def tribe(
    model, xs, augment, is_norm, rate=0.01, sharing=0.0, max_entropy=0.05, n_classes=4, log=None
):
    """Yields the teacher's logits before each update; logs how many predictions were sure.

    Student and teacher are two networks whose scales and shifts are set equal after each step.
    """
    nets = [with_balanced_norms(model, n_classes, rate, sharing) for _ in range(3)]
    student, teacher, anchor = nets
    own, other = (
        [p for name, p in net.named_parameters() if is_norm(name)] for net in (student, teacher)
    )
    adam = PlainAdam(own)
    for x in xs:
        set_labels(teacher, None)
        logits = teacher(x).detach()
        yield logits
        for net in nets:
            set_labels(net, logits.argmax(dim=1))
        t, s, a = teacher(x), student(augment(x)), anchor(x).detach()
        chosen = [
            i
            for i, p in enumerate(t.detach().softmax(dim=1))
            if float(-(p * p.log()).sum()) < max_entropy * math.log(n_classes)
        ]
        if log is not None:
            log.append(len(chosen))
        if not chosen:
            continue
        loss = 0.0
        for i in chosen:
            label = int(t[i].argmax())
            loss = loss - s[i].log_softmax(dim=0)[label] / len(chosen)
            loss = loss + 0.5 * ((t[i] - a[i]) ** 2).mean() / len(chosen)
        gradients = torch.autograd.grad(loss, [*own, *other])
        both = zip(gradients[: len(own)], gradients[len(own) :], strict=True)
        adam.step([left + right for left, right in both])
        for p, twin in zip(own, other, strict=True):
            twin.data = p.data.clone()


# PeTTA -------------------------------------------------------------------------------------------


def class_moments(features, labels, n_classes):
    """Means and unbiased variances of the features of each class, by loops."""
    means, variances = [], []
    for k in range(n_classes):
        rows = [row for row, label in zip(features, labels, strict=True) if label == k]
        mean = sum(rows) / len(rows)
        means.append(mean)
        variances.append(sum((row - mean) ** 2 for row in rows) / (len(rows) - 1))
    return means, variances


def petta(
    model,
    xs,
    augment,
    is_norm,
    moments,
    encode,
    capacity=64,
    symmetric=True,
    share=0.05,
    lr=1e-3,
    rate=0.001,
    log=None,
):
    """Yields the teacher's logits with kept statistics; logs the drift of each batch.

    Args:
        moments: Lists of class means and class variances of the source's features.
        encode: (model, x) -> features.
    """
    student, teacher, source = (with_plain_norms(model, share) for _ in range(3))
    chosen = [(name, p) for name, p in student.named_parameters() if is_norm(name)]
    origin = {name: p.detach().clone() for name, p in chosen}
    (means, variances), n_classes = moments, len(moments[0])
    moving = [mean.clone() for mean in means]
    adam, memory = PlainAdam([p for _, p in chosen], lr), ListMemory(capacity, n_classes)
    for x in xs:
        set_mode(teacher, "kept")
        with torch.no_grad():
            logits, features = teacher(x), encode(teacher, x)
        yield logits
        p = logits.softmax(dim=1)
        labels = p.argmax(dim=1).tolist()
        terms = []
        for k in sorted(set(labels)):
            terms += ((moving[k] - means[k]) ** 2 / (variances[k] + 1e-6)).tolist()
            own = [row for row, label in zip(features, labels, strict=True) if label == k]
            moving[k] = 0.95 * moving[k] + 0.05 * sum(own) / len(own)
        drift = 1 - math.exp(-sum(terms) / len(terms))
        for image, label, uncertainty in zip(x, labels, plain_entropy(p), strict=True):
            memory.add(image, label, float(uncertainty))
        images = torch.stack([item[0] for item in memory.items()])
        for net in (student, teacher, source):
            set_mode(net, "robust")
        with torch.no_grad():
            t, a = teacher(images), source(images)
        s = student(images)
        v = student(augment(images))
        loss = cross_entropy(t, v).mean()
        if symmetric:
            pairs = ((t, s), (s, t), (t, v), (v, t))
            loss = sum(0.25 * cross_entropy(*pair) for pair in pairs).mean()
        loss = loss + cross_entropy(a, v).mean()
        for name, own in chosen:
            cosine = (own * origin[name]).sum() / (own.norm() * origin[name].norm())
            loss = loss - 10 * drift * cosine / len(chosen)
        adam.step(torch.autograd.grad(loss, [p for _, p in chosen]))
        average_into(teacher, student, 1 - rate * (1 - drift))
        if log is not None:
            log.append(drift)
