"""Slow, plain versions of the methods that work on BatchNorm statistics.

Layers are exchanged on a private copy and normalise channel by channel (the instance-aware ones
image by image), losses are double loops over classes, the memory is a list of pairs.
"""

from __future__ import annotations

import copy
import math

import torch

from tests.reference.oracles import PlainAdam, plain_entropy


class Mixed(torch.nn.Module):
    """BatchNorm with a mixture of its running statistics and the batch's."""

    def __init__(self, layer, batch_share, keeps=False):
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        self.mean, self.variance = layer.running_mean.clone(), layer.running_var.clone()
        self.batch_share, self.keeps = batch_share, keeps

    def forward(self, x):
        out = []
        for c in range(x.shape[1]):
            values = x[:, c].flatten()
            n = len(values)
            center = values.sum() / n
            spread = ((values - center) ** 2).sum() / (n - 1)
            if self.keeps:  # no gradient flows through what is kept
                center, spread = center.detach(), spread.detach()
            a = self.batch_share(len(x))
            mean = (1 - a) * self.mean[c] + a * center
            variance = (1 - a) * self.variance[c] + a * spread
            if self.keeps:
                self.mean[c], self.variance[c] = mean, variance
            normal = (x[:, c] - mean) / (variance + self.eps).sqrt()
            out.append(normal * self.weight[c] + self.bias[c])
        return torch.stack(out, dim=1)


class InstanceAware(torch.nn.Module):
    """Instance-aware BatchNorm, image by image; it can also learn, with momentum 0.01."""

    def __init__(self, layer):
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        self.mean, self.variance = layer.running_mean.clone(), layer.running_var.clone()
        self.k, self.learns = layer.shrinkage, False

    def forward(self, x):
        mean, variance = self.mean, self.variance
        if self.learns:
            values = x.transpose(0, 1).flatten(1)
            mean = values.mean(1)
            variance = ((values - mean[:, None]) ** 2).sum(1) / (values.shape[1] - 1)
            self.mean = 0.99 * self.mean + 0.01 * mean.detach()
            self.variance = 0.99 * self.variance + 0.01 * variance.detach()
        return torch.stack([self.one(image, mean, variance) for image in x])

    def one(self, image, mean, variance):
        values = image.flatten(1)
        count = values.shape[1]
        if count > 1:
            own = values.mean(1)
            own_variance = ((values - own[:, None]) ** 2).sum(1) / (count - 1)
            far = self.k * ((variance + self.eps) / count).sqrt()
            far_variance = self.k * (variance + self.eps) * math.sqrt(2 / (count - 1))
            mean = mean + shrink(own - mean, far)
            variance = variance + shrink(own_variance - variance, far_variance)
            variance = torch.where(variance > 0, variance, 0.0 * variance)
        normal = (values - mean[:, None]) / (variance + self.eps).sqrt()[:, None]
        return (normal * self.weight[:, None] + self.bias[:, None]).view(image.shape)


def shrink(value, threshold):
    nothing = 0.0 * value
    above = torch.where(value > threshold, value - threshold, nothing)
    return torch.where(value < -threshold, value + threshold, above)


def exchanged(model, kind, make):
    """Return a private copy in evaluation mode whose layers of a kind are exchanged."""
    model = copy.deepcopy(model).eval()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, kind):
                setattr(parent, name, make(child))
    return model


def alpha_bn(model, xs, batch_share):
    model = exchanged(model, torch.nn.BatchNorm2d, lambda layer: Mixed(layer, batch_share))
    for x in xs:
        yield model(x).detach()


def bn_ema(model, xs, momentum=0.1):
    model = exchanged(
        model, torch.nn.BatchNorm2d, lambda layer: Mixed(layer, lambda n: momentum, keeps=True)
    )
    for x in xs:
        yield model(x).detach()


def raw_correlation(p):
    n_classes = p.shape[1]
    total = 0.0
    for i in range(n_classes):
        for j in range(n_classes):
            if i != j:
                total = total + (p[:, i] * p[:, j]).sum()
    return total / len(p)


def balanced_correlation(p, weighted=False):
    n_classes = p.shape[1]
    w = torch.ones(len(p), dtype=p.dtype)
    if weighted:
        w = 1 + (-plain_entropy(p.detach())).exp()
        w = len(p) * w / w.sum()
    total = 0.0
    for i in range(n_classes):
        row = [(w * p[:, i] * p[:, j]).sum() for j in range(n_classes)]
        total = total + sum(row[j] for j in range(n_classes) if j != i) / sum(row)
    return total / n_classes


def core(model, xs, is_norm_parameter, source_share, loss_of, temperature=1.0):
    model = exchanged(
        model, torch.nn.BatchNorm2d, lambda layer: Mixed(layer, lambda n: 1 - source_share)
    )
    chosen = [p for name, p in model.named_parameters() if is_norm_parameter(name)]
    adam = PlainAdam(chosen)
    for x in xs:
        logits = model(x)
        yield logits.detach()
        loss = loss_of((logits / temperature).softmax(dim=1))
        adam.step(torch.autograd.grad(loss, chosen))


def note(model, xs, kind, generator, size, every, lr=1e-4, fifo=False, log=None):
    """Sample by sample; `log` counts what happened to new samples."""
    log = {} if log is None else log
    model = exchanged(model, kind, InstanceAware)
    layers = [layer for layer in model.modules() if isinstance(layer, InstanceAware)]
    chosen = [p for layer in layers for p in (layer.weight, layer.bias)]
    adam = PlainAdam(chosen, lr)
    memory, seen, n = [], {}, 0
    for x in xs:
        answers = []
        for image in x:
            logits = model(image[None]).detach()
            answers.append(logits)
            label = int(logits.argmax())
            seen[label] = seen.get(label, 0) + 1
            if fifo:
                memory = [*memory, (image, label)][-size:]
            else:
                happened = keep(memory, (image, label), seen[label], size, generator)
                log[happened] = log.get(happened, 0) + 1
            n += 1
            if n % every == 0:
                log["update"] = log.get("update", 0) + 1
                for layer in layers:
                    layer.learns = True
                p = model(torch.stack([image for image, _ in memory])).softmax(dim=1)
                for layer in layers:
                    layer.learns = False
                adam.step(torch.autograd.grad(plain_entropy(p).mean(), chosen))
        yield torch.cat(answers)


def keep(memory, item, n_seen, size, generator):
    """Put an item into the class-balanced memory, or not; say what happened."""
    label = item[1]
    if len(memory) < size:
        memory.append(item)
        return "added"
    counts = {}
    for _, other in memory:
        counts[other] = counts.get(other, 0) + 1
    largest = [k for k in sorted(counts) if counts[k] == max(counts.values())]
    happened, victim = "same", label
    if label not in largest:
        happened = "other"
        victim = largest[int(torch.randint(len(largest), (), generator=generator))]
    elif torch.rand((), generator=generator) > counts[label] / n_seen:
        return "dropped"
    places = [i for i, (_, other) in enumerate(memory) if other == victim]
    memory[places[int(torch.randint(len(places), (), generator=generator))]] = item
    return happened
