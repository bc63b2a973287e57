"""Slow, plain versions of what the methods do, written from the formulas.

They share nothing with the package: probabilities are plain softmaxes, the regulariser goes through
autograd, Adam is spelled out, features are taken by calling the encoder, BatchNorm runs in the
model's training mode on a private copy.
"""

from __future__ import annotations

import copy

import torch


class PlainAdam:
    """Adam, from its paper."""

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        self.parameters, self.lr, self.betas, self.eps = parameters, lr, betas, eps
        self.m = [torch.zeros_like(p) for p in parameters]
        self.v = [torch.zeros_like(p) for p in parameters]
        self.t = 0

    def step(self, gradients):
        self.t += 1
        b1, b2 = self.betas
        for i, (p, g) in enumerate(zip(self.parameters, gradients, strict=True)):
            if g is None:
                continue
            self.m[i] = b1 * self.m[i] + (1 - b1) * g
            self.v[i] = b2 * self.v[i] + (1 - b2) * g * g
            m = self.m[i] / (1 - b1**self.t)
            v = self.v[i] / (1 - b2**self.t)
            p.data = p.data - self.lr * m / (v.sqrt() + self.eps)


class PlainSgd:
    """Gradient descent with momentum 0.9."""

    def __init__(self, parameters, lr=1e-2):
        self.parameters, self.lr = parameters, lr
        self.velocity = [torch.zeros_like(p) for p in parameters]

    def step(self, gradients):
        for i, (p, g) in enumerate(zip(self.parameters, gradients, strict=True)):
            if g is not None:
                self.velocity[i] = 0.9 * self.velocity[i] + g
                p.data = p.data - self.lr * self.velocity[i]


def plain_entropy(p):
    return -(p * p.log()).sum(dim=1)


def batch_mode(model):
    """Put a private copy into the mode in which BatchNorm uses the batch, and dropout is off."""
    model = copy.deepcopy(model).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0
    return model


def tent(model, xs, is_norm_parameter, lr=1e-3, extra=None):
    """Entropy minimisation over scale and shift; yields the logits before each update.

    Args:
        extra: (model, x) -> what is added to the loss, called once an update.
    """
    model = batch_mode(model)
    chosen = [p for name, p in model.named_parameters() if is_norm_parameter(name)]
    adam = PlainAdam(chosen, lr)
    for x in xs:
        logits = model(x)
        loss = plain_entropy(logits.softmax(dim=1)).mean()
        if extra is not None:
            loss = loss + extra(model, x)
        yield logits.detach()
        adam.step(torch.autograd.grad(loss, chosen))


def swr_nsp(model, xs, views, encode, penalty, prototypes, project, anchor="previous", **weights):
    """The paper's eq. 1 to 9; yields the logits before each update.

    Args:
        views: x -> transformed x, called once a batch, in order.
        encode: (model, x) -> features, logits.
        penalty: w by parameter name.
        project: From features to the space of the prototypes.
    """
    scale = {
        "m1": 0.2,
        "m2": 0.25,
        "a1": 0.8,
        "a2": 0.25,
        "s": 0.1,
        "r": 250.0,
        "tau": 0.1,
    } | weights
    model = batch_mode(model)
    named = dict(model.named_parameters())
    parameters = list(named.values())
    source = [p.detach().clone() for p in parameters]
    before_last = None
    optimizer = (PlainSgd if weights.get("sgd") else PlainAdam)(parameters)

    def nearest(features):
        z = project(features)
        cosine = torch.stack([(z @ q) / (z.norm(dim=1) * q.norm()) for q in prototypes], dim=1)
        return (cosine / scale["tau"]).softmax(dim=1)

    for x in xs:
        features, logits = encode(model, x)
        p = logits.softmax(dim=1)
        loss = (
            scale["m1"] * plain_entropy(p).mean() - scale["m2"] * plain_entropy(p.mean(0)[None])[0]
        )
        q = nearest(features)
        loss = loss + scale["a1"] * plain_entropy(q).mean()
        loss = loss - scale["a2"] * plain_entropy(q.mean(0)[None])[0]
        if scale["s"] > 0:
            nth = weights.get("view_of_every", 1)
            q_view = nearest(encode(model, views(x[::nth]))[0])
            target = (q.detach() if weights.get("detach", True) else q)[::nth]
            loss = loss - scale["s"] * (target * q_view.log()).sum(dim=1).mean()
        anchors = source if anchor == "source" else before_last
        if anchors is not None:
            for (name, parameter), old in zip(named.items(), anchors, strict=True):
                loss = loss + scale["r"] * (penalty[name] * (parameter - old) ** 2).sum()
        yield logits.detach()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        before_last = [p.detach().clone() for p in parameters]
        optimizer.step(gradients)
