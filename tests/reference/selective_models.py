"""Tiny models and streams on which some samples are chosen and some are not."""

from __future__ import annotations

import torch

import acclimate
from acclimate.methods import METHODS
from acclimate.methods.deyo import Deyo
from acclimate.methods.eata import Eata
from acclimate.methods.eta import Eta
from acclimate.methods.rdumb import Rdumb
from acclimate.methods.rpl import Rpl
from acclimate.methods.sar import Sar
from acclimate.snapshot import flatten_tree, model_tensors
from acclimate.testing.models import tiny_batches, tiny_model
from tests.reference import oracles_selective as oracles

for kind in (Eta, Eata, Rdumb, Rpl, Sar, Deyo):
    METHODS.setdefault(kind.name, kind)

MODELS = ["batch_norm", "group_norm", "vit"]
#: How much surer the tiny models are made, so that some samples are chosen and some are not.
SHARPER = {"batch_norm": 16.0, "group_norm": 24.0, "vit": 32.0}
#: Logits of the tiny models agree to 1e-5 in single precision. These are 16 to 32 times as large,
#: and so are their rounding errors.
EXACT = [("float64", 5, 1e-8), ("float32", 1, 1e-4)]


def is_norm(key):
    return "norm" in key


def sharp_model(name, dtype="float64", factor=None):
    """A tiny model whose predictions differ from sample to sample, in class and in entropy."""
    model = tiny_model(name)
    with torch.no_grad():
        usual = oracles.batch_mode(model)(tiny_batches(1, 64)[0][0]).mean(dim=0)
        model.head.bias -= usual
        factor = SHARPER[name] if factor is None else factor
        model.head.weight *= factor
        model.head.bias *= factor
    return model.to(getattr(torch, dtype))


def stream(dtype="float64", n=5, size=16):
    return [x for x, _ in tiny_batches(n, size, seed=3, dtype=getattr(torch, dtype))]


def run(adapted, xs):
    return [adapted(x) for x in xs]


def close(found, expected, tolerance):
    return all((a - b).abs().max() <= tolerance for a, b in zip(found, expected, strict=True))


def weights(model):
    return {name: t.detach().clone() for name, t in model_tensors(model).items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def state(adapted):
    return {name: t.clone() for name, t in flatten_tree(adapted._tree())[0].items()}


def prepared(model, size=16):
    dtype = next(model.parameters()).dtype
    return acclimate.prepare(model, tiny_batches(6, size, dtype=dtype), parts=["fisher"])
