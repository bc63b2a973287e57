"""Plain versions of CoTTA, RoTTA, ROID and MEMO, written from their papers and code.

They share nothing with the package's own: models are private copies, BatchNorm is replaced by a
module that is spelled out, the memory is a list per class. Augmentations are given as functions.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from tests.reference.oracles import PlainAdam, PlainSgd, batch_mode, plain_entropy


class PlainNorm(nn.Module):
    """BatchNorm on kept statistics, or on a mixture of them with the batch's."""

    def __init__(self, layer, share):
        super().__init__()
        self.weight, self.bias, self.eps, self.share = layer.weight, layer.bias, layer.eps, share
        self.mean, self.variance = layer.running_mean.clone(), layer.running_var.clone()
        self.mode = "kept"

    def forward(self, x):
        mean, variance = self.mean, self.variance
        if self.mode != "kept":
            n = x.numel() / x.shape[1]
            of_batch = x.mean(dim=(0, 2, 3))
            squares = ((x - of_batch.view(1, -1, 1, 1)) ** 2).sum(dim=(0, 2, 3))
            divisor = n if self.mode == "robust" else n - 1
            mean = (1 - self.share) * mean + self.share * of_batch
            variance = (1 - self.share) * variance + self.share * squares / divisor
            if self.mode == "robust":
                self.mean, self.variance = mean.detach(), variance.detach()
        out = (x - mean.view(1, -1, 1, 1)) / (variance.view(1, -1, 1, 1) + self.eps).sqrt()
        return out * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


def with_plain_norms(model, share):
    model = copy.deepcopy(model).eval()
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, PlainNorm(layer, share))
    return model


def set_mode(model, mode):
    for layer in model.modules():
        if isinstance(layer, PlainNorm):
            layer.mode = mode


def cross_entropy(target, logits):
    return -(target.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)


def average_into(teacher, student, decay):
    for own, other in zip(teacher.parameters(), student.parameters(), strict=True):
        own.data = decay * own.data + (1 - decay) * other.data


def cotta(model, xs, augment, draws, threshold, n=32, restore=0.01, symmetric=False, sgd=False):
    """Yields the teacher's logits, and whether they are an average."""
    student, teacher, anchor = batch_mode(model), batch_mode(model), batch_mode(model)
    named = dict(student.named_parameters())
    source = {name: p.detach().clone() for name, p in named.items()}
    optimizer = (PlainSgd if sgd else PlainAdam)(list(named.values()))
    for x in xs:
        logits = student(x)
        with torch.no_grad():
            unsure = anchor(x).softmax(dim=1).max(dim=1).values.mean() < threshold
            target = teacher(x)
            if unsure:
                target = sum(teacher(augment(x)) for _ in range(n)) / n
        loss = cross_entropy(target, logits).mean()
        if symmetric:
            loss = 0.5 * loss + 0.5 * cross_entropy(logits, target).mean()
        yield target, bool(unsure)
        optimizer.step(torch.autograd.grad(loss, list(named.values()), allow_unused=True))
        average_into(teacher, student, 0.999)
        for name, p in named.items():
            mask = (torch.rand(p.shape, generator=draws) < restore).to(p.dtype)
            p.data = mask * source[name] + (1 - mask) * p.data


class ListMemory:
    """RoTTA's memory: a list of [image, uncertainty, age] for each class."""

    def __init__(self, capacity, n_classes):
        self.capacity, self.n_classes = capacity, n_classes
        self.lists = [[] for _ in range(n_classes)]
        self.log = {"added": 0, "replaced": 0, "refused": 0}

    def score(self, age, uncertainty):
        timeliness = 1 / (1 + math.exp(-age / self.capacity))
        return timeliness + uncertainty / math.log(self.n_classes)

    def add(self, image, label, uncertainty):
        total = sum(map(len, self.lists))
        if len(self.lists[label]) < self.capacity / self.n_classes:
            if total < self.capacity:
                self.lists[label].append([image, uncertainty, 0])
                self.log["added"] += 1
            else:
                largest = max(map(len, self.lists))
                self.replace(
                    [c for c in self.lists if len(c) == largest], image, label, uncertainty
                )
        else:
            self.replace([self.lists[label]], image, label, uncertainty)
        for of_class in self.lists:
            for item in of_class:
                item[2] += 1

    def replace(self, lists, image, label, uncertainty):
        worst, where, index = -1.0, None, None
        for of_class in lists:
            for i, item in enumerate(of_class):
                if self.score(item[2], item[1]) >= worst:
                    worst, where, index = self.score(item[2], item[1]), of_class, i
        if worst > self.score(0, uncertainty):
            where.pop(index)
            self.lists[label].append([image, uncertainty, 0])
            self.log["replaced"] += 1
        else:
            self.log["refused"] += 1

    def items(self):
        return [item for of_class in self.lists for item in of_class]


def rotta(model, xs, augment, is_norm, capacity=64, every=64, share=0.05, n_classes=4, log=None):
    """Yields the teacher's logits with kept statistics, before the batch is learned from."""
    student, teacher = with_plain_norms(model, share), with_plain_norms(model, share)
    chosen = [p for name, p in student.named_parameters() if is_norm(name)]
    adam, memory, seen = PlainAdam(chosen), ListMemory(capacity, n_classes), 0
    for x in xs:
        set_mode(teacher, "kept")
        with torch.no_grad():
            logits = teacher(x)
            p = logits.softmax(dim=1)
        yield logits
        for image, label, uncertainty in zip(x, p.argmax(dim=1), plain_entropy(p), strict=True):
            memory.add(image, int(label), float(uncertainty))
            seen += 1
            if seen % every:
                continue
            set_mode(student, "robust")
            set_mode(teacher, "robust")
            images = torch.stack([item[0] for item in memory.items()])
            with torch.no_grad():
                target = teacher(images)
            each = cross_entropy(target, student(augment(images)))
            loss = 0.0
            for value, item in zip(each, memory.items(), strict=True):
                age = item[2] / capacity
                loss = loss + value * math.exp(-age) / (1 + math.exp(-age)) / len(each)
            adam.step(torch.autograd.grad(loss, chosen))
            average_into(teacher, student, 0.999)
    if log is not None:
        log.update(memory.log)


def roid(model, xs, augment, is_norm, correct=True):
    """Yields the corrected logits, and how many samples were selected."""
    model = batch_mode(model)
    chosen = [p for name, p in model.named_parameters() if is_norm(name)]
    source = [p.detach().clone() for p in chosen]
    adam, mean = PlainAdam(chosen), None
    for x in xs:
        logits = model(x)
        p = logits.detach().softmax(dim=1)
        n, k = p.shape
        mean = torch.full((k,), 1 / k, dtype=p.dtype) if mean is None else mean
        d = torch.stack([1 - (row @ mean) / (row.norm() * mean.norm()) for row in p])
        c = -plain_entropy(p)
        d, c = ((v - v.min()) / (v.max() - v.min()) for v in (d, c))
        w = (d * c * 3).exp()
        keep = [i for i in range(n) if not d[i] < d.mean()]
        mean = 0.9 * mean + 0.1 * p.mean(dim=0)
        q = logits.softmax(dim=1).clamp(max=0.99)
        ratio = -(q * (q / (1 - q) + 1e-5).log()).sum(dim=1)
        view = model(augment(x[keep]))
        loss = 0.0
        for j, i in enumerate(keep):
            own, other = logits[i : i + 1], view[j : j + 1]
            both = 0.5 * cross_entropy(own, other) + 0.5 * cross_entropy(other, own)
            loss = loss + w[i] * (ratio[i] + both[0]) / n
        prior = p.mean(dim=0)
        smooth = max(1 / n, 1 / k) / prior.max()
        yield logits.detach() * ((prior + smooth) / (1 + smooth * k) if correct else 1.0), len(keep)
        adam.step(torch.autograd.grad(loss, chosen))
        for parameter, old in zip(chosen, source, strict=True):
            parameter.data = 0.99 * parameter.data + 0.01 * old


def memo(model, xs, make_copies, lr=0.005, adam=False):
    """Yields the logits of batches whose images were adapted to one by one."""
    for x in xs:
        rows = []
        for image in x:
            own = with_plain_norms(model, 1 / 17)
            set_mode(own, "mixed")
            parameters = list(own.parameters())
            p = own(make_copies(image)).softmax(dim=1).mean(dim=0)
            loss = -(p * p.log()).sum()
            optimizer = (PlainAdam if adam else PlainSgd)(parameters, lr)
            optimizer.step(torch.autograd.grad(loss, parameters, allow_unused=True))
            rows.append(own(image[None]).detach()[0])
        yield torch.stack(rows)
