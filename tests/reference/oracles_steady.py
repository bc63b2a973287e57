"""A slow, plain version of `steady`: every batch since the start is kept, and mixed anew."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from acclimate.functional import stream_norm
from acclimate.methods import steady as constants
from tests.functional import label_oracle
from tests.reference.oracles_prototype_methods import look


class World:
    """The stream as all layers see it: the sizes of the batches that they remember."""

    def __init__(self):
        self.sizes, self.benefit, self.tolerance = [], None, stream_norm.TOLERANCE
        self.mode, self.weights, self.share, self.keeps = "source", [], 0.0, False

    def weigh(self, n):
        """Return the weights of all batches, one of n images included, and the effective number."""
        weights = []
        for number, size in enumerate([*self.sizes, n]):
            own = size / (size + stream_norm.MEMORY) if number else 1.0
            weights = [weight * (1 - own) for weight in weights] + [own]
        return weights, 1 / sum(w**2 / s for w, s in zip(weights, [*self.sizes, n], strict=True))

    def trust(self):
        if self.benefit is None or self.benefit > -self.tolerance:
            return 1.0
        return (self.tolerance / self.benefit) ** 2

    def look(self, model, x, n=None, trusting=False, keeps=False):
        """Return features and logits with the mixture; n images have the weight of the batch."""
        n = len(x) if n is None else n
        self.weights, effective = self.weigh(n)
        self.share = stream_norm.LARGEST * effective / (effective + stream_norm.PRIOR)
        self.share *= 1.0 if trusting else self.trust()
        self.mode, self.keeps = "mixture", keeps
        found = look(model, x)
        self.mode = "source"
        if keeps:
            self.sizes.append(n)
        return found


class Mixing(nn.Module):
    """BatchNorm with the mixture, written out."""

    def __init__(self, layer, world):
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.mean, self.variance = layer.running_mean.clone(), layer.running_var.clone()
        self.eps, self.world, self.seen = layer.eps, world, []

    def forward(self, x):
        mean, variance, world = self.mean, self.variance, self.world
        if world.mode == "mixture":
            own = x.mean((0, 2, 3))
            square = x.square().mean((0, 2, 3))
            seen = [*self.seen, (own, square)]
            if world.keeps:
                self.seen.append((own.detach(), square.detach()))
            first = sum(w * m for w, (m, _) in zip(world.weights, seen, strict=True))
            second = sum(w * s for w, (_, s) in zip(world.weights, seen, strict=True))
            mean = (1 - world.share) * mean + world.share * first
            variance = (1 - world.share) * variance + world.share * (second - first**2)
        shape = (1, -1, 1, 1)
        normal = (x - mean.view(shape)) / (variance.view(shape) + self.eps) ** 0.5
        return normal * self.weight.view(shape) + self.bias.view(shape)


def replace_layers(module, world):
    """Replace all BatchNorm layers of a private copy; return whether there is any."""
    found = False
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, Mixing(child, world))
            found = True
        else:
            found |= replace_layers(child, world)
    return found


class RateAdam:
    """Adam, with a rate for each tensor that is given with each step."""

    def __init__(self, parameters):
        self.parameters, self.t = parameters, 0
        self.m = [torch.zeros_like(p) for p in parameters]
        self.v = [torch.zeros_like(p) for p in parameters]

    def step(self, gradients, rates):
        self.t += 1
        for i, (p, g, rate) in enumerate(zip(self.parameters, gradients, rates, strict=True)):
            self.m[i] = 0.9 * self.m[i] + 0.1 * g
            self.v[i] = 0.999 * self.v[i] + 0.001 * g**2
            m, v = self.m[i] / (1 - 0.9**self.t), self.v[i] / (1 - 0.999**self.t)
            p.data = p.data - rate * m / (v**0.5 + 1e-8)


def entropy(p):
    return -(p * p.log()).sum(dim=-1)


def steady(model, xs, penalty, prototypes, project, log=None, loss=0.0, **options):
    """Yield logits of each batch and the weights after it.

    Args:
        penalty: w by parameter name.
        project: From features to the space of the prototypes.
        loss: Of confidence on source images, by statistics of a stream.
        log: A list that takes the events: ("benefit", …), ("held", …), ("reached", …).
        options: Those of the config; all that are used.
    """
    log = [] if log is None else log
    world, model = World(), copy.deepcopy(model).eval()
    world.tolerance += max(0.0, loss)
    named = dict(model.named_parameters())
    parameters = list(named.values())
    has_batch_norm = replace_layers(model, world)
    source = [p.detach().clone() for p in parameters]
    sizes = [float((p.detach() ** 2).mean()) ** 0.5 for p in parameters]
    smallest = constants._SMALLEST_SIZE * sorted(sizes)[(len(sizes) - 1) // 2]
    sizes = [max(size, smallest) for size in sizes]
    damped = [
        size / (1 + options["damping"] * float(penalty[name].mean()))
        for name, size in zip(named, sizes, strict=True)
    ]
    adam, means, labels = RateAdam(parameters), {}, None
    pace, n_seen = 1.0, 0

    def nearest(features):
        z = project(features)
        cosine = torch.stack([(z @ q) / (z.norm(dim=1) * q.norm()) for q in prototypes], dim=1)
        return (cosine / options["temperature"]).softmax(dim=1)

    def sharpen(name, p, confidence, diversity):
        """Return the loss. The entropy of the mean is linearised: its gradient, not its value."""
        own = p.mean(dim=0)
        mean = own.detach()
        if name in means:
            share = len(p) / (len(p) + constants.FULL_BATCH)
            mean = (1 - share) * means[name] + share * mean
        means[name] = mean
        return confidence * entropy(p).mean() + diversity * ((mean.log() + 1) * own).sum()

    for number, x in enumerate(xs):
        step = -(-len(x) // stream_norm.PROBE)
        if has_batch_norm:
            with torch.no_grad():
                sure = look(model, x[::step])[1].softmax(dim=1).amax(dim=1)
                here = world.look(model, x[::step], n=len(x), trusting=True)[1]
            gain = float((here.softmax(dim=1).amax(dim=1) - sure).mean())
            n = len(x[::step])
            old = gain if world.benefit is None else world.benefit
            world.benefit = (old * stream_norm._PROBE_MEMORY + gain * n) / (
                stream_norm._PROBE_MEMORY + n
            )
            log.append(("benefit", world.benefit))
        if number:
            learned = [p.detach().clone() for p in parameters]
            with torch.no_grad():
                here = world.look(model, x[::step])[1].argmax(dim=1)
                _put(parameters, source)
                p = world.look(model, x[::step])[1].softmax(dim=1)
                _put(parameters, learned)
            changed = [int(a) != int(b) for a, b in zip(here, p.argmax(dim=1), strict=True)]
            drift = sum(changed) / len(changed)
            unsure = 1 - float(p.amax(dim=1).mean())
            allowed = max(constants._DRIFT * unsure, constants._SMALLEST_DRIFT)
            if drift > allowed:
                kept = allowed / drift
                shrunk = [a + kept * (b - a) for a, b in zip(source, learned, strict=True)]
                _put(parameters, shrunk)
                pace = max(constants._SLOWEST, kept * pace)
                log.append(("held", kept))
            else:
                pace = min(1.0, constants._RECOVERY * pace)
        views = [world.look(model, x, keeps=True)]
        if options["mirror"]:
            views.append(world.look(model, x.flip(-1)))
        p = sum(logits.softmax(dim=1) for _, logits in views) / len(views)
        near = [nearest(features) for features, _ in views]
        loss = sharpen("main", p, options["main_confidence"], options["main_diversity"])
        loss = loss + sharpen(
            "aux", sum(near) / len(near), options["aux_confidence"], options["aux_diversity"]
        )
        if len(near) == 2:
            for target, q in (near, near[::-1]):
                cross = -(target.detach() * q.log()).sum(dim=1).mean()
                loss = loss + options["consistency"] * cross / 2
        answer = p.detach().log()
        rate = options["lr"] * pace * min(1.0, len(x) / constants.FULL_BATCH)
        n_seen += len(x)
        rate *= min(1.0, n_seen / constants._FIRST) * world.trust()
        if options["filter_labels"]:
            found, labels = label_oracle.filter_labels(answer.tolist(), labels)
            answer = torch.tensor(found, dtype=x.dtype).log()
            rate *= max(0.0, 1 - labels["stay"] / constants._CORRELATED) ** 2
        gradients = torch.autograd.grad(loss, parameters)
        adam.step(gradients, [rate * scale for scale in damped])
        for name, parameter, start, size in zip(named, parameters, source, sizes, strict=True):
            reach = options["reach"] * size * math.sqrt(parameter.numel())
            moved = parameter.detach() - start
            distance = float((moved**2).sum()) ** 0.5
            if distance > reach:
                parameter.data = start + moved * reach / distance
                log.append(("reached", name))
        yield answer, {name: p.detach().clone() for name, p in named.items()}


def _put(parameters, values):
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value.clone()
