"""Statistics of a stream against loops over values: weights, moments, mixture and gradients."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import acclimate
from acclimate.functional import stream_norm
from acclimate.functional.norm import renormalise, use_statistics
from acclimate.functional.stream_norm import (
    LARGEST,
    MEMORY,
    PRIOR,
    PROBE,
    TOLERANCE,
    _BatchMoments,
    has_several_styles,
    pool_styles,
    stream_share,
    trust,
    use_stream,
    use_styles,
    weigh_batch,
    weigh_styles,
    with_benefit,
    with_styles,
)
from acclimate.testing.models import tiny_model

SIZES = [16, 5, 1, 40, 3]


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Active(nn.BatchNorm2d):
    """A layer that does more than BatchNorm."""

    def forward(self, x):
        return super().forward(x).relu()


class Net(nn.Module):
    """A plain layer on maps, and one on vectors."""

    def __init__(self, kind=nn.BatchNorm2d, affine=True):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.first = kind(4, affine=affine)
        self.second = nn.BatchNorm1d(4, affine=affine, eps=1e-3)
        self.head = nn.Linear(4, 3)
        for seed, layer in enumerate((self.first, self.second)):
            with torch.no_grad():
                layer.running_mean.copy_(0.3 * random(4, seed=10 + seed))
                layer.running_var.copy_(0.5 + random(4, seed=20 + seed).abs())
                if affine:
                    layer.weight.copy_(1 + 0.3 * random(4, seed=30 + seed))
                    layer.bias.copy_(0.3 * random(4, seed=40 + seed))
        for seed, layer in enumerate((self.conv, self.head)):
            with torch.no_grad():
                layer.weight.copy_(0.4 * random(*layer.weight.shape, seed=50 + seed))
                layer.bias.copy_(random(*layer.bias.shape, seed=60 + seed))

    def forward(self, x):
        hidden = self.first(self.conv(x))
        if type(self.first) is nn.BatchNorm2d:
            hidden = hidden.relu()
        return self.head(self.second(hidden.mean((2, 3))))


def net(kind=nn.BatchNorm2d, affine=True):
    return Net(kind, affine).double().eval()


def batch(n, seed=0, shift=0.0):
    return random(n, 3, 6, 6, seed=seed) + shift


# The oracle: loops over numbers ------------------------------------------------------------------


def plain_moments(x):
    """Return mean and biased variance of each channel, value by value."""
    x = x.detach().numpy()
    columns = [np.take(x, channel, axis=1).ravel().tolist() for channel in range(x.shape[1])]
    means = [sum(column) / len(column) for column in columns]
    return means, [
        sum((value - mean) ** 2 for value in column) / len(column)
        for column, mean in zip(columns, means, strict=True)
    ]


class PlainStream:
    """Weights of all batches so far, and their moments by layer. Nothing is updated in place."""

    def __init__(self):
        self.sizes = []
        self.moments = {}

    def weights(self):
        """Return the weight of every batch: each new one takes its share from those before."""
        weights = []
        for number, n in enumerate(self.sizes):
            own = n / (n + MEMORY) if number else 1.0
            weights = [(1 - own) * weight for weight in weights] + [own]
        return weights

    def n_effective(self):
        """Return the number of samples in whose plain mean the variance is that of ours."""
        return 1 / sum(w**2 / n for w, n in zip(self.weights(), self.sizes, strict=True))

    def share(self):
        return LARGEST * self.n_effective() / (self.n_effective() + PRIOR)

    def mixture(self, name, channel):
        """Return mean and variance of a mixture of distributions, one for each batch."""
        weights, seen = self.weights(), self.moments[name]
        mean = sum(w * m[channel] for w, (m, _) in zip(weights, seen, strict=True))
        second = sum(
            w * (v[channel] + m[channel] ** 2) for w, (m, v) in zip(weights, seen, strict=True)
        )
        return mean, second - mean**2

    def normalise(self, name, layer, x, share):
        """Remember the batch and return what the layer should."""
        self.moments.setdefault(name, []).append(plain_moments(x))
        out = torch.empty_like(x)
        for channel in range(x.shape[1]):
            mean, variance = self.mixture(name, channel)
            mean = (1 - share) * float(layer.running_mean[channel]) + share * mean
            variance = (1 - share) * float(layer.running_var[channel]) + share * variance
            normal = (x[:, channel] - mean) / (variance + layer.eps) ** 0.5
            scale, shift = (1.0, 0.0) if layer.weight is None else (layer.weight, layer.bias)
            if layer.weight is not None:
                scale, shift = float(scale[channel]), float(shift[channel])
            out[:, channel] = scale * normal + shift
        return out

    def run(self, model, x, share=None, n=None):
        self.sizes.append(len(x) if n is None else n)
        share = self.share() if share is None else share
        with torch.no_grad():
            hidden = self.normalise("first", model.first, model.conv(x), share).relu()
            return model.head(self.normalise("second", model.second, hidden.mean((2, 3)), share))


def next_state(stream, n_effective, moved):
    return {"n": n_effective, "moments": moved, "benefit": None, "styles": None}


# Weights -----------------------------------------------------------------------------------------


def test_effective_number_and_share_are_those_of_the_weights_of_all_batches():
    plain, stream = PlainStream(), None
    for n in SIZES:
        plain.sizes.append(n)
        own, n_effective = weigh_batch(stream, n)
        assert own == pytest.approx(plain.weights()[-1], rel=1e-12)
        assert n_effective == pytest.approx(plain.n_effective(), rel=1e-12)
        assert stream_share(n_effective) == pytest.approx(plain.share(), rel=1e-12)
        stream = {
            "n": n_effective,
            "moments": {"any": torch.zeros(2, 1)},
            "benefit": None,
            "styles": None,
        }
    assert sum(plain.weights()) == pytest.approx(1)


def test_a_first_batch_has_all_the_weight():
    assert weigh_batch(None, 7) == (1.0, 7.0)
    # A benefit was measured, but no batch has been seen.
    assert weigh_batch(with_benefit(None, 0.1, 8), 7) == (1.0, 7.0)


def test_a_long_stream_of_single_images_counts_as_many_but_not_as_all():
    n, stream = 0.0, None
    for _ in range(3000):
        own, n = weigh_batch(stream, 1)
        stream = {"n": n, "moments": {"any": torch.zeros(2, 1)}, "benefit": None, "styles": None}
    # The limit of 1 / n = (1 - own)² / n + own².
    assert n == pytest.approx((1 - (1 - own) ** 2) / own**2, rel=1e-6)
    assert stream_share(1) < stream_share(n) < LARGEST


# Trust -------------------------------------------------------------------------------------------


def with_measured(benefit):
    return {"n": 1.0, "moments": {}, "benefit": benefit, "styles": None}


def test_trust_shrinks_with_the_square_of_the_loss_beyond_the_tolerance():
    assert trust(None) == trust(with_measured(None)) == 1
    assert trust(with_measured(0.5)) == trust(with_measured(-TOLERANCE)) == 1
    for factor in (1.5, 2.0, 10.0):
        assert trust(with_measured(-factor * TOLERANCE)) == pytest.approx(1 / factor**2)


def test_the_benefit_is_an_average_over_images():
    differences, sizes = [0.1, -0.3, 0.2], [8, PROBE, 1]
    stream, weights = None, []
    for number, (difference, n) in enumerate(zip(differences, sizes, strict=True)):
        own = n / (n + stream_norm._PROBE_MEMORY) if number else 1.0
        weights = [(1 - own) * weight for weight in weights] + [own]
        stream = with_benefit(stream, difference, n)
        expected = sum(w * d for w, d in zip(weights, differences, strict=False))
        assert stream["benefit"] == pytest.approx(expected, rel=1e-12)
    assert stream["moments"] == {}
    kept = {"n": 3.0, "moments": {"a": torch.ones(2, 1)}, "benefit": 0.5, "styles": None}
    found = with_benefit(kept, 0.1, 8)
    assert found["n"] == 3
    assert found["moments"] is kept["moments"]
    assert kept["benefit"] == 0.5  # a failed batch needs the old state


# The mixture -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, Active])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_several_batches_are_normalised_as_by_loops(kind, affine, layout):
    model, plain, stream = net(kind, affine), PlainStream(), None
    before = copy.deepcopy(model.state_dict())
    for number, n in enumerate(SIZES):
        x = batch(n, number, shift=1.5 * number)  # a shift, so that batches differ
        own, n_effective = weigh_batch(stream, n)
        with use_stream(model, stream, own, stream_share(n_effective)) as moved, torch.no_grad():
            found = model(x.contiguous(memory_format=layout))
        expected = plain.run(model, x)
        assert torch.allclose(found, expected, rtol=0, atol=1e-10)
        for name, moments in moved.items():
            mixtures = [plain.mixture(name, channel) for channel in range(4)]
            assert torch.allclose(
                moments.T, torch.tensor(mixtures, dtype=torch.float64), rtol=0, atol=1e-10
            )
        stream = next_state(stream, n_effective, moved)
    assert list(moved) == ["first", "second"]
    within = sum(
        w * v[0] for w, (_, v) in zip(plain.weights(), plain.moments["first"], strict=True)
    )
    assert plain.mixture("first", 0)[1] > 1.1 * within  # batches differ, and that counts
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_shares(share):
    model, x = net(), batch(9)
    with use_stream(model, None, 1.0, share), torch.no_grad():
        found = model(x)
    assert torch.allclose(found, PlainStream().run(model, x, share), rtol=0, atol=1e-10)
    with use_statistics(model, "batch" if share == 1 else "source"), torch.no_grad():
        same = torch.allclose(found, model(x), rtol=0, atol=1e-10)
    assert same == (share in (0.0, 1.0))


@pytest.mark.parametrize("affine", [True, False])
def test_a_plain_layer_and_one_with_an_activation_agree(affine):
    x = batch(6)
    stream = {"n": 5.0, "moments": {"first": random(2, 4).abs()}, "benefit": None, "styles": None}
    found = []
    for kind in (nn.BatchNorm2d, Active):
        model = net(kind, affine)
        with use_stream(model, stream, 0.4, 0.7) as moved:
            assert ("forward" in vars(model.first)) == (kind is nn.BatchNorm2d)
            assert bool(model.first._forward_pre_hooks) == (kind is Active)
            loss = model(x).square().sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        found.append([loss.detach(), moved["first"], moved["second"], *gradients])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-10)


def test_a_layer_whose_forward_was_replaced_keeps_it():
    model = net()
    own = model.first.forward
    model.first.forward = lambda x: own(x) + 1
    replaced = model.first.forward
    x = batch(6)
    with use_stream(model, None, 1.0, 0.5), torch.no_grad():
        found = model.first(x[:, [0, 1, 2, 0]])
    assert model.first.forward is replaced
    del model.first.forward
    with use_stream(model, None, 1.0, 0.5), torch.no_grad():
        assert torch.allclose(found, model.first(x[:, [0, 1, 2, 0]]) + 1)


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, Active])
@pytest.mark.parametrize("fails", [True, False])
def test_everything_comes_back_also_after_an_error(kind, fails):
    model = nn.Sequential(kind(3), nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False))
    model = model.double().eval()
    before = [sorted(vars(module)) for module in model.modules()]

    def use():
        with use_stream(model, None, 1.0, 0.5) as moved:
            model(batch(4))
            assert sorted(moved) == ["0", "1"]  # the third has nothing to mix with
            if fails:
                raise KeyError

    if fails:
        with pytest.raises(KeyError):
            use()
    else:
        use()
    assert [sorted(vars(module)) for module in model.modules()] == before
    assert not any("forward" in vars(module) for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_single_images_start_near_the_source():
    model, x = net(), batch(1, shift=3.0)
    own, n_effective = weigh_batch(None, 1)
    share = stream_share(n_effective)
    with use_stream(model, None, own, share) as moved, torch.no_grad():
        found = model(x)
    assert torch.allclose(found, PlainStream().run(model, x), rtol=0, atol=1e-10)
    # One vector has no variance.
    assert moved["second"][1].abs().max() < 1e-30
    assert found.isfinite().all()
    with torch.no_grad():
        source = model(x)
    with use_statistics(model, "batch"), torch.no_grad():
        maps = model.first(model.conv(x))
    assert 0 < (found - source).abs().max() < 0.1 * (maps - model.first(model.conv(x))).abs().max()


# Styles ------------------------------------------------------------------------------------------


@pytest.fixture
def alternate(monkeypatch):
    """Let the first pixel of an image decide its style."""

    def assign(styles, described):
        return described.round().long() % len(styles["n"])

    monkeypatch.setattr(stream_norm, "describe_styles", lambda x: x[:, 0, 0, 0])
    monkeypatch.setattr(stream_norm, "assign_styles", assign)


def marked(n, seed, k):
    """Return a batch, and the number of the style of each image."""
    numbers = torch.randint(k, (n,), generator=torch.Generator().manual_seed(seed))
    x = batch(n, seed) + 2.0 * numbers.double().view(-1, 1, 1, 1)
    x[:, 0, 0, 0] = numbers.double()
    return x, numbers


def of_styles(k, n=None, moments=None):
    return {"n": torch.zeros(k) if n is None else n, "moments": moments or {}}


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, Active])
@pytest.mark.parametrize("trusted", [1.0, 0.3])
def test_each_style_is_a_stream_of_its_own(kind, trusted, alternate):
    """The model sees each image with those of its style only, in the oracle one after another."""
    model, k = net(kind), 3
    plain = [PlainStream() for _ in range(k)]
    styles = of_styles(k)
    for number, n in enumerate(SIZES):
        x, numbers = marked(n, number, k)
        with use_styles(model, styles, x, trusted) as (moved, n_effective), torch.no_grad():
            found = model(x)
        for style in numbers.unique().tolist():
            own = numbers == style
            plain[style].sizes.append(int(own.sum()))
            share = trusted * plain[style].share()
            plain[style].sizes.pop()
            expected = plain[style].run(model, x[own], share)
            assert torch.allclose(found[own], expected, rtol=0, atol=1e-6)
            assert float(n_effective[style]) == pytest.approx(plain[style].n_effective(), rel=1e-5)
        styles = of_styles(k, n_effective, moved)
    for style in range(k):
        mixtures = [plain[style].mixture("first", channel) for channel in range(4)]
        assert torch.allclose(
            styles["moments"]["first"][style].T,
            torch.tensor(mixtures, dtype=torch.float64),
            rtol=0,
            atol=1e-6,
        )


def test_weights_of_styles_are_those_of_streams():
    before, n = torch.tensor([0.0, 0.0, 7.0, 7.0]), torch.tensor([0.0, 5.0, 0.0, 5.0])
    own, after = weigh_styles(n, before)
    known = {"n": 7.0, "moments": {"any": torch.zeros(2, 1)}, "benefit": None, "styles": None}
    expected = [(0.0, 0.0), weigh_batch(None, 5), (0.0, 7.0), weigh_batch(known, 5)]
    assert own.tolist() == pytest.approx([each[0] for each in expected], rel=1e-6)
    assert after.tolist() == pytest.approx([each[1] for each in expected], rel=1e-6)


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, Active])
def test_gradients_flow_through_the_moments_of_each_style(kind, alternate):
    model = net(kind)
    known = {name: random(2, 2, 4).abs() for name in ("first", "second")}
    styles = of_styles(2, torch.tensor([6.0, 0.0]), known)
    x = marked(5, 1, 2)[0]
    values = [p.detach().clone().requires_grad_(True) for p in model.parameters()]
    names = [name for name, _ in model.named_parameters()]

    def run(*weights):
        with use_styles(model, styles, x, 0.9):
            return torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, tuple(values))


def test_a_second_style_takes_over_what_is_known_of_the_first():
    x = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    stream = with_styles(None, x)
    assert not has_several_styles(stream)
    moments = {"first": random(2, 4).abs()}
    stream = {**stream, "n": 8.0, "moments": moments}
    assert pool_styles(stream) == (8.0, moments)
    smooth = nn.functional.avg_pool2d(x, 5, stride=1, padding=2)
    both = with_styles(stream, smooth)
    assert has_several_styles(both)
    assert not both["moments"]
    assert both["styles"]["n"][0] == 8
    assert both["styles"]["n"][1:].sum() == 0
    assert torch.equal(both["styles"]["moments"]["first"][0], moments["first"])
    n, pooled = pool_styles(both)
    assert n == 8
    assert torch.allclose(pooled["first"], moments["first"])


def test_a_mixed_stream_is_normalised_by_style(monkeypatch):
    """Sharp and smooth images in turns: each is predicted as in a stream of its own."""
    monkeypatch.setattr(acclimate.Method, "trust", 1.0)
    x = torch.rand(64, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    kinds = [x[:32], nn.functional.avg_pool2d(x[32:], 5, stride=1, padding=2)]
    mixed = acclimate.adapt(net(), "norm", statistics="auto")
    found = mixed(torch.cat(kinds))
    assert has_several_styles(mixed.stream)
    state = mixed.state_dict()
    for number, own in enumerate(kinds):
        alone = acclimate.adapt(net(), "norm", statistics="auto")(own)
        there = found[32 * number : 32 * (number + 1)]
        assert torch.allclose(alone, there, rtol=0, atol=1e-4)
    again = acclimate.adapt(net(), "norm", statistics="auto")
    again.load_state_dict(state)
    assert torch.equal(again(x), mixed(x))


# Moments and gradients ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 3), (4, 3, 5), (4, 3, 2, 5), (1, 3, 4, 4)])
@pytest.mark.parametrize("layout", ["plain", "channels_last"])
def test_fast_moments_are_those_of_loops(shape, layout):
    x = 100 + random(*shape)
    if layout == "channels_last" and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    mean, variance = _BatchMoments.apply(x)
    expected = plain_moments(x)
    assert mean.tolist() == pytest.approx(expected[0], rel=1e-12)
    assert variance.tolist() == pytest.approx(expected[1], rel=1e-9)
    assert torch.autograd.gradcheck(_BatchMoments.apply, random(*shape).requires_grad_(True))


def test_moments_of_constant_and_of_overflowing_channels():
    x = random(4, 3, 2, 2, dtype=torch.float32)
    x[:, 0] = 7
    x[:, 1] = 3e38 * x[:, 1].sign()
    mean, variance = _BatchMoments.apply(x)
    assert mean[0] == 7
    assert variance[0] < 1e-30
    assert not variance[1].isfinite()
    assert variance[2] == pytest.approx(plain_moments(x)[1][2], rel=1e-5)
    x[0, 2, 0, 0] = torch.nan
    assert all(moment[2].isnan() for moment in _BatchMoments.apply(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(64, 3), (64, 3, 4, 4)])
def test_moments_of_half_precision_are_not_rounded_to_it(dtype, shape):
    x = (20 + random(*shape)).to(dtype).requires_grad_(True)
    mean, variance = _BatchMoments.apply(x)
    expected = plain_moments(x.double())
    assert mean.dtype == variance.dtype == torch.float32
    assert mean.tolist() == pytest.approx(expected[0], rel=1e-5)
    assert variance.tolist() == pytest.approx(expected[1], rel=1e-4)
    (found,) = torch.autograd.grad(variance.sum(), x)
    assert found.dtype == dtype
    axes = [axis for axis in range(x.dim()) if axis != 1]
    exact = x.detach().double()
    exact = 2 * (exact - exact.mean(axes, keepdim=True)) / (x.numel() // 3)
    # The one rounding left is that of the result.
    step = torch.finfo(dtype).eps * exact.abs() + 1e-6
    assert ((found.double() - exact).abs() <= step).all()


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, Active])
@pytest.mark.parametrize("affine", [True, False])
def test_gradients_flow_through_the_moments_of_the_batch(kind, affine):
    model = net(kind, affine)
    stream = {"n": 5.0, "moments": {"second": random(2, 4).abs()}, "benefit": None, "styles": None}
    values = [p.detach().clone().requires_grad_(True) for p in model.parameters()]
    names = [name for name, _ in model.named_parameters()]

    def run(x, *weights):
        with use_stream(model, stream, 0.4, 0.7):
            return torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (x,))

    x = batch(3, seed=3).requires_grad_(True)
    assert torch.autograd.gradcheck(run, (x, *values))


@pytest.mark.parametrize("shape", [(6, 4), (5, 4, 2, 3)])
def test_renormalise_compensates_for_the_statistics_of_the_layer(shape):
    model = net()
    layer = model.second if len(shape) == 2 else model.first
    x, mean, variance = random(*shape), random(4, seed=1), random(4, seed=2).abs()
    found = layer(renormalise(layer, x, mean, variance))
    for channel in range(4):
        normal = (x[:, channel] - mean[channel]) / (variance[channel] + layer.eps) ** 0.5
        expected = layer.weight[channel] * normal + layer.bias[channel]
        assert torch.allclose(found[:, channel], expected, rtol=0, atol=1e-10)
    bare = nn.BatchNorm1d(4, track_running_stats=False)
    assert renormalise(bare, x, mean, variance) is x


# A stream that is adapted to ---------------------------------------------------------------------


class PlainAuto:
    """`statistics="auto"` for `Net`: the probe, the trust and the stream, by the loops above."""

    def __init__(self, model):
        self.model, self.stream, self.benefit = model, PlainStream(), None

    def __call__(self, x):
        probe = copy.deepcopy(self.stream)
        probe.sizes.append(len(x))
        share = probe.share()
        probe.sizes.pop()
        images = x[:: -(-len(x) // PROBE)]
        with torch.no_grad():
            source = self.model(images)
        # Some images stand for the batch, with its weight.
        here = probe.run(self.model, images, share, n=len(x))
        values = [each.softmax(dim=1).max(dim=1).values for each in (here, source)]
        difference = float((values[0] - values[1]).mean())
        own = len(images) / (len(images) + stream_norm._PROBE_MEMORY)
        before = difference if self.benefit is None else self.benefit
        self.benefit = (1 - own) * before + own * difference
        if self.benefit < -TOLERANCE:
            share *= (TOLERANCE / self.benefit) ** 2
        return self.stream.run(self.model, x, share)


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, Active])
@pytest.mark.parametrize("confident", [True, False])
def test_a_method_that_only_normalises(kind, confident):
    model = net(kind)
    # Confident: with the source's statistics it is surer than with those of the stream, whose
    # variance is larger.
    model.second.running_var.fill_(1e-4 if confident else 1e2)
    plain = PlainAuto(copy.deepcopy(model))
    adapted = acclimate.adapt(model, "norm", statistics="auto")
    for number, n in enumerate([10, 1, PROBE + 7, 4, 1]):
        x = batch(n, number, shift=0.5 * number)
        assert torch.allclose(adapted(x), plain(x), rtol=0, atol=1e-9)
        assert adapted.stream["benefit"] == pytest.approx(plain.benefit, abs=1e-10)
        assert adapted.stream["n"] == pytest.approx(plain.stream.n_effective(), rel=1e-10)
    assert (trust(adapted.stream) < 1) == confident


def test_predicting_without_learning_leaves_the_stream_alone():
    adapted = acclimate.adapt(net(), "norm", statistics="auto")
    x, other = batch(10), batch(6, seed=1, shift=1.0)
    adapted(x)
    state = copy.deepcopy(adapted.stream)
    with adapted.paused():
        first, second = adapted(other), adapted(other)
    assert torch.equal(first, second)
    assert adapted.stream["n"] == state["n"]
    assert all(torch.equal(adapted.stream["moments"][k], v) for k, v in state["moments"].items())
    assert adapted.stream["benefit"] == state["benefit"]
    adapted.reset()
    assert adapted.stream is None


def test_a_batch_that_overflows_does_not_reach_the_stream():
    adapted = acclimate.adapt(net().float(), "norm", statistics="auto")
    x = batch(10).float()
    adapted(x)
    state = copy.deepcopy(adapted.stream)
    huge = x.clone()
    huge[0] = 3e38
    adapted(huge)
    assert adapted.stream["n"] == state["n"]
    assert all(torch.equal(adapted.stream["moments"][k], v) for k, v in state["moments"].items())
    assert adapted(x).isfinite().all()


def test_a_dead_channel_does_not_stop_the_stream():
    model = net()
    with torch.no_grad():
        model.conv.weight[2] = 0
    adapted = acclimate.adapt(model, "norm", statistics="auto")
    for number in range(3):
        adapted(batch(10, number))
    assert adapted.stream["n"] > 10
    assert adapted.stream["moments"]["first"].isfinite().all()


def test_without_batch_norm_there_is_nothing_to_probe():
    adapted = acclimate.adapt(tiny_model("group_norm"), "infomax", statistics="auto")
    adapted(random(8, 3, 8, 8, dtype=torch.float32).sigmoid())
    assert adapted.stream is None
    assert adapted.counts.forwards == 1
