"""The selective methods once more, slowly: one sample at a time, autograd and nothing else.

Nothing here is shared with the package: probabilities and entropies are written out, samples are
chosen in plain loops, BatchNorm runs in the training mode of a private copy.
"""

from __future__ import annotations

import math

import torch

from tests.reference.oracles import PlainAdam, PlainSgd, batch_mode


def probabilities(z):
    """Softmax of one row of logits."""
    e = (z - z.max()).exp()
    return e / e.sum()


def plain_entropy(p):
    """Entropy of one prediction."""
    return -sum(q * q.log() for q in p)


def softmax_entropy(z):
    """Entropy of the softmax of one row of logits."""
    return plain_entropy(probabilities(z))


def cosine(a, b):
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def norm_parameters_of(model, is_norm_parameter):
    return {name: p for name, p in model.named_parameters() if is_norm_parameter(name)}


def make_optimizer(parameters, sgd, lr):
    return PlainSgd(parameters, lr) if sgd else PlainAdam(parameters, lr)


def eata(
    model,
    xs,
    is_norm_parameter,
    max_entropy=0.4,
    max_similarity=0.4,
    fisher=None,
    fisher_weight=0.0,
    reset_every=None,
    sgd=False,
    lr=1e-3,
    log=None,
    extra=None,
    measure=softmax_entropy,
):
    """ETA, EATA (with a Fisher), RDumb (with resets); yields the logits before each update.

    Args:
        measure: One row of logits -> the entropy to minimise.
        extra: (model, x) -> what is added to the loss, called once an update.
        log: A list that takes, for every batch: chosen, too unsure, too alike, whether it reset.
    """
    model = batch_mode(model)
    named = norm_parameters_of(model, is_norm_parameter)
    chosen_parameters = list(named.values())
    source = {name: p.detach().clone() for name, p in named.items()}
    optimizer = make_optimizer(chosen_parameters, sgd, lr)
    moving, n_updates = None, 0
    for x in xs:
        logits = model(x)
        limit = max_entropy * math.log(logits.shape[1])
        terms, picked, unsure, alike, reset = [], [], 0, 0, False
        for z in logits:
            p = probabilities(z)
            h = measure(z)
            if not h.item() < limit:
                unsure += 1
            elif moving is not None and not abs(cosine(p.detach(), moving)).item() < max_similarity:
                alike += 1
            else:
                terms.append(math.exp(limit - h.item()) * h)
                picked.append(p.detach())
        yield logits.detach()
        if picked:
            mean = sum(picked) / len(picked)
            moving = mean if moving is None else 0.9 * moving + 0.1 * mean
            loss = sum(terms) / len(terms)
            for name, p in named.items():
                if fisher is not None:
                    loss = loss + fisher_weight * (fisher[name] * (p - source[name]) ** 2).sum()
            if extra is not None:
                loss = loss + extra(model, x)
            optimizer.step(torch.autograd.grad(loss, chosen_parameters))
            n_updates += 1
            if reset_every and n_updates % reset_every == 0:
                reset = True
                for name, p in named.items():
                    p.data = source[name].clone()
                optimizer = make_optimizer(chosen_parameters, sgd, lr)
                moving = None
        if log is not None:
            log.append((len(picked), unsure, alike, reset))


def sar(
    model,
    xs,
    is_norm_parameter,
    max_entropy=0.4,
    radius=0.05,
    recover_below=0.2,
    lr=1e-3,
    log=None,
    measure=softmax_entropy,
):
    """SAR: climb, gradient up there, step from below; yields the logits before each update.

    Args:
        log: A list that takes, for every batch: chosen first, chosen second, whether it recovered.
    """
    model = batch_mode(model)
    named = norm_parameters_of(model, is_norm_parameter)
    parameters = list(named.values())
    source = [p.detach().clone() for p in parameters]
    optimizer = PlainSgd(parameters, lr)
    average = None

    def reliable(logits, among):
        limit = max_entropy * math.log(logits.shape[1])
        entropies = [measure(z) for z in logits]
        return {i: entropies[i] for i in among if entropies[i].item() < limit}

    for x in xs:
        logits = model(x)
        first = reliable(logits, range(len(x)))
        second, recovered = {}, False
        if first:
            gradients = torch.autograd.grad(sum(first.values()) / len(first), parameters)
            length = math.sqrt(sum((g * g).sum().item() for g in gradients))
            below = [p.detach().clone() for p in parameters]
            for p, g in zip(parameters, gradients, strict=True):
                p.data = p.data + radius * g / length
            second = reliable(model(x), first)
            if second:
                loss = sum(second.values()) / len(second)
                gradients = torch.autograd.grad(loss, parameters)
                value = loss.item()
                average = value if average is None else 0.9 * average + 0.1 * value
            for p, old in zip(parameters, below, strict=True):
                p.data = old
        yield logits.detach()
        if second:
            optimizer.step(gradients)
            if average < recover_below:
                recovered, average = True, None
                for p, old in zip(parameters, source, strict=True):
                    p.data = old.clone()
                optimizer = PlainSgd(parameters, lr)
        if log is not None:
            log.append((len(first), len(second), recovered))


def shuffle_one(image, order, n):
    """Put the n × n patches of an image (channels, height, width) into an order."""
    _channels, height, width = image.shape
    h, w = height // n, width // n
    result = torch.empty_like(image)
    for place, origin in enumerate(order.tolist()):
        for row in range(h):
            for column in range(w):
                result[:, place // n * h + row, place % n * w + column] = image[
                    :, origin // n * h + row, origin % n * w + column
                ]
    return result


def deyo(
    model,
    xs,
    is_norm_parameter,
    draws,
    max_entropy=0.5,
    weight_entropy=0.4,
    min_drop=0.2,
    sgd=False,
    lr=1e-3,
    log=None,
    measure=softmax_entropy,
):
    """DeYO with shuffled patches; yields the logits before each update.

    Args:
        draws: n -> the orders of the patches of n images.
        log: A list that takes, for every batch: sure, chosen.
    """
    source = model
    model = batch_mode(model)
    parameters = list(norm_parameters_of(model, is_norm_parameter).values())
    optimizer = make_optimizer(parameters, sgd, lr)
    for x in xs:
        logits = model(x)
        most = math.log(logits.shape[1])
        rows = [probabilities(z) for z in logits]
        entropies = [measure(z) for z in logits]
        sure = [i for i in range(len(x)) if entropies[i].item() < max_entropy * most]
        terms = []
        if sure:
            orders = draws(len(sure))
            images = [shuffle_one(x[i], o, 4) for i, o in zip(sure, orders, strict=True)]
            with torch.no_grad():
                if len(sure) == 1:  # its own statistics mean nothing: the source's
                    alone = batch_mode(source).eval()
                    alone.load_state_dict(dict(model.named_parameters()), strict=False)
                    others = alone(torch.stack(images))
                else:
                    others = model(torch.stack(images))
            for i, z in zip(sure, others, strict=True):
                label = max(range(len(z)), key=lambda k: rows[i][k].item())
                drop = rows[i][label].item() - probabilities(z)[label].item()
                if drop > min_drop:
                    weight = math.exp(weight_entropy * most - entropies[i].item()) + math.exp(drop)
                    terms.append(weight * entropies[i])
        yield logits.detach()
        if terms:
            optimizer.step(torch.autograd.grad(sum(terms) / len(terms), parameters))
        if log is not None:
            log.append((len(sure), len(terms)))


def rpl(model, xs, is_norm_parameter, exponent=0.8, lr=1e-3):
    """Generalised cross entropy with the own prediction; yields the logits before each update."""
    model = batch_mode(model)
    parameters = list(norm_parameters_of(model, is_norm_parameter).values())
    adam = PlainAdam(parameters, lr)
    for x in xs:
        logits = model(x)
        losses = []
        for z in logits:
            p = probabilities(z)
            label = max(range(len(z)), key=lambda k: p[k].item())
            losses.append((1 - p[label] ** exponent) / exponent)
        yield logits.detach()
        adam.step(torch.autograd.grad(sum(losses) / len(losses), parameters))


def fisher(model, blocks, is_norm_parameter):
    """Squared gradients of the cross entropy with the own prediction, averaged over blocks."""
    model = batch_mode(model)
    totals = {}
    for x in blocks:
        model.zero_grad()
        logits = model(x)
        loss = 0
        for z in logits:
            p = probabilities(z)
            loss = loss - p[int(z.argmax())].log() / len(x)
        loss.backward()
        for name, parameter in norm_parameters_of(model, is_norm_parameter).items():
            totals.setdefault(name, []).append(parameter.grad.detach().clone() ** 2)
    return {name: sum(values) / len(values) for name, values in totals.items()}
