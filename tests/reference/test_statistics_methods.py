"""α-BN, BN-EMA, CORE and NOTE against the plain versions, and what must hold for them."""

from __future__ import annotations

import pytest
import torch

import acclimate
from acclimate.errors import InvalidConfig
from acclimate.functional.iabn import InstanceAwareBatchNorm2d
from acclimate.methods import METHODS
from acclimate.methods.alpha_bn import AlphaBn
from acclimate.methods.bn_ema import BnEma
from acclimate.methods.core import Core
from acclimate.methods.note import Note
from acclimate.testing.models import ConvNet, Returning, tiny_batches, tiny_model
from tests.codes import raises
from tests.reference import oracles_statistics_methods as oracles

for _method in (AlphaBn, BnEma, Core, Note):
    METHODS.setdefault(_method.name, _method)

PRECISIONS = [(torch.float64, 5, 1e-8), (torch.float32, 1, 1e-5)]


def stream(dtype=torch.float64, n=5, batch_size=8):
    return [x for x, _ in tiny_batches(n, batch_size, seed=3, dtype=dtype)]


def run(adapted, xs):
    return [adapted(x) for x in xs]


def close(found, expected, tolerance):
    return all((a - b).abs().max() <= tolerance for a, b in zip(found, expected, strict=True))


def same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


# Mixed statistics -------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "n", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({}, lambda n: 0.5),
        ({"source_share": 0.9}, lambda n: 0.1),
        ({"prior": 16}, lambda n: n / (n + 16)),
    ],
)
def test_alpha_bn(options, share, dtype, n, tolerance):
    model = tiny_model("batch_norm").to(dtype)
    xs = [*stream(dtype, n), stream(dtype, 1)[0][:3]]  # the prior's share depends on the size
    expected = list(oracles.alpha_bn(model, xs, share))
    found = run(acclimate.adapt(model, "alpha_bn", **options), xs)
    assert close(found, expected, tolerance)


def test_alpha_bn_ends_at_the_source_and_at_the_batch():
    model = tiny_model("batch_norm").double()
    xs = stream()
    source = [model(x).detach() for x in xs]
    adapted = acclimate.adapt(model, "alpha_bn", source_share=1.0)
    assert close(run(adapted, xs), source, 1e-12)
    model = adapted.unwrap()
    adapted = acclimate.adapt(model, "alpha_bn", source_share=0.0)
    mixed = run(adapted, xs)
    batch = run(acclimate.adapt(adapted.unwrap(), "norm"), xs)
    # Not exactly: mixed statistics have the unbiased variance, as running ones do.
    assert not close(mixed, source, 1e-2)
    assert close(mixed, batch, 0.02)


def test_alpha_bn_takes_single_images_and_learns_nothing():
    model = tiny_model("batch_norm")
    x = stream(torch.float32, 1)[0][:1]
    adapted = acclimate.adapt(model, "alpha_bn", prior=16)
    first = adapted(x)
    adapted(stream(torch.float32, 1)[0])
    assert torch.equal(adapted(x), first)
    assert adapted.counts.skipped == {}


def test_alpha_bn_refuses_what_it_cannot_mean():
    model = tiny_model("batch_norm")
    with raises("conflicting_options", options=("source_share", "prior")):
        acclimate.adapt(model, "alpha_bn", source_share=0.3, prior=16)
    with raises("not_applicable", option="statistics_momentum"):
        acclimate.adapt(model, "alpha_bn", statistics_momentum=0.3)
    with raises("method_refused", methods=("alpha_bn",), reasons=is_about_normalisation):
        acclimate.adapt(tiny_model("vit"), "alpha_bn")


def is_about_normalisation(reasons):
    (problems,) = reasons.values()
    return [problem.partition(":")[0] for problem in problems] == ["normalisation"]


def test_the_message_gives_the_share_that_a_momentum_stands_for():
    with pytest.raises(InvalidConfig) as caught:
        acclimate.adapt(tiny_model("batch_norm"), "alpha_bn", statistics_momentum=0.3)
    assert "source_share = 0.7" in str(caught.value)


@pytest.mark.parametrize(("dtype", "n", "tolerance"), PRECISIONS)
def test_bn_ema(dtype, n, tolerance):
    model = tiny_model("batch_norm").to(dtype)
    xs = stream(dtype, n)
    expected = list(oracles.bn_ema(model, xs))
    assert close(run(acclimate.adapt(model, "bn_ema"), xs), expected, tolerance)


def test_bn_ema_without_a_share_is_the_source():
    model = tiny_model("batch_norm").double()
    xs = stream()
    expected = [model(x).detach() for x in xs]
    plain_layout = acclimate.Speed(channels_last=False)
    adapted = acclimate.adapt(model, "bn_ema", statistics_momentum=0.0, speed=plain_layout)
    assert same(run(adapted, xs), expected)


# Class correlation ------------------------------------------------------------------------------

LOSSES = [
    ({}, oracles.raw_correlation, 1.0),
    ({"correlation": "balanced"}, oracles.balanced_correlation, 1.0),
    (
        {"correlation": "balanced", "temperature": 2.5, "weighted": True},
        lambda p: oracles.balanced_correlation(p, weighted=True),
        2.5,
    ),
]


@pytest.mark.parametrize(("dtype", "n", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("options", "loss", "temperature"), LOSSES)
@pytest.mark.parametrize("name", ["batch_norm", "vit"])
def test_core(name, options, loss, temperature, dtype, n, tolerance):
    model = tiny_model(name).to(dtype)
    xs = stream(dtype, n)
    expected = list(oracles.core(model, xs, lambda key: "norm" in key, 0.3, loss, temperature))
    adapted = acclimate.adapt(model, "core", source_share=0.3, **options)
    assert close(run(adapted, xs), expected, tolerance)
    assert adapted.counts.updates == n


def test_core_is_marked_as_a_reconstruction():
    assert Core.card.reconstruction
    assert "Reconstruction:" in Core.__doc__


# NOTE -------------------------------------------------------------------------------------------


def instance_aware(dtype=torch.float64, make=lambda: ConvNet(InstanceAwareBatchNorm2d)):
    """A tiny model that predicts all classes, and whose layers see images far from the mean."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
        model.train()
        with torch.no_grad():
            for x, _ in tiny_batches(3, 16, seed=9):
                model(x)
    inner = getattr(model, "net", model)
    with torch.no_grad():  # as if trained: each class is predicted for some
        features = []
        hook = inner.head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
        model.eval()(torch.cat([x for x, _ in tiny_batches(4, 16, seed=3)]))
        hook.remove()
        inner.head.weight.mul_(20)
        inner.head.bias.copy_(-(features[0].mean(0) @ inner.head.weight.T))
    return model.to(dtype)


@pytest.mark.parametrize("fifo", [False, True])
def test_note(fifo):
    model = instance_aware()
    xs, log = stream(n=12), {}
    expected = list(
        oracles.note(
            model,
            xs,
            InstanceAwareBatchNorm2d,
            torch.Generator().manual_seed(5),
            size=6,
            every=6,
            fifo=fifo,
            log=log,
        )
    )
    options = {"memory": "fifo"} if fifo else {}
    adapted = acclimate.adapt(model, "note", memory_size=6, update_every=6, seed=5, **options)
    assert close(run(adapted, xs), expected, 1e-8)
    assert adapted.counts.updates == log["update"] == 16  # some in the midst of a batch
    assert fifo or min(log[key] for key in ("added", "other", "same", "dropped")) > 0


def test_note_in_single_precision():
    model = instance_aware(torch.float32)
    xs = stream(torch.float32, 2)
    draws = torch.Generator().manual_seed(0)
    kind = InstanceAwareBatchNorm2d
    expected = list(oracles.note(model, xs, kind, draws, size=8, every=8))
    adapted = acclimate.adapt(model, "note", memory_size=8, update_every=8)
    assert close(run(adapted, xs), expected, 1e-5)


def test_note_answers_the_same_however_the_stream_is_cut():
    """Each sample is predicted alone, and updates come after so many samples, not batches."""
    xs = stream(n=6)
    options = {"memory_size": 5, "update_every": 7}
    whole = run(acclimate.adapt(instance_aware(), "note", **options), [torch.cat(xs)])
    single = run(acclimate.adapt(instance_aware(), "note", **options), torch.cat(xs).split(1))
    assert close([torch.cat(single)], whole, 1e-10)


def test_note_does_nothing_but_remember_until_enough_samples_have_come():
    adapted = acclimate.adapt(instance_aware(), "note")
    before = {name: t.clone() for name, t in adapted.model.state_dict().items()}
    run(adapted, stream(n=7))
    assert adapted.counts.updates == 0
    assert all(torch.equal(t, before[name]) for name, t in adapted.model.state_dict().items())
    run(adapted, stream(n=1))
    assert adapted.counts.updates == 1
    moved = {n for n, t in adapted.model.state_dict().items() if not torch.equal(t, before[n])}
    assert {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"} <= moved
    assert not {name for name in moved if "norm" not in name}


def test_note_returns_the_rest_of_the_output_for_the_whole_batch():
    wrapped = instance_aware(make=_returning_both)
    x = torch.cat(stream(n=2))
    adapted = acclimate.adapt(wrapped, "note", memory_size=4, update_every=4)
    output = adapted(x)
    assert len(output["logits"]) == len(x)
    assert torch.equal(output["mean"], x.mean())


def test_note_does_not_remember_what_overflows():
    adapted = acclimate.adapt(
        instance_aware(torch.float32), "note", memory="fifo", memory_size=6, update_every=8
    )
    x = stream(torch.float32, 1)[0]
    for index in (0, 3, 7):
        x[index, :, ::2], x[index, :, 1::2] = 3e38, -3e38
    assert adapted(x).isfinite().all(dim=1).tolist() == [i not in (0, 3, 7) for i in range(8)]
    assert len(adapted.kept) == 5
    assert adapted.images.max() <= 1
    assert adapted.counts.updates == 1
    assert adapted.counts.skipped == {}


def _returning_both():
    model = Returning(lambda logits, mean: {"logits": logits, "mean": mean})
    model.net = ConvNet(InstanceAwareBatchNorm2d)
    return model


@pytest.mark.parametrize("name", ["batch_norm", "vit", "mlp"])
def test_note_refuses_models_without_instance_aware_layers(name):
    with raises("method_refused", methods=("note",), reasons=is_about_normalisation):
        acclimate.adapt(tiny_model(name), "note")
