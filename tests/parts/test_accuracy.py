"""The part `accuracy` of an artifact: what it is measured on, and that it measures it."""

from __future__ import annotations

import copy
import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import acclimate
from acclimate import Accuracy, corruptions
from acclimate.functional.pixels import Grid
from acclimate.functional.signals import (
    RECORD,
    SIGNALS,
    AccuracyMap,
    describe_predictions,
    find_places,
    measure_signals,
)
from acclimate.parts.accuracy import (
    _LEARNING_RUNS,
    _N_FIXED,
    _STATISTICS_RUNS,
    SIZES,
    Run,
    _adapt,
)
from acclimate.testing.dense_models import tiny_masks
from acclimate.testing.models import MODEL_INFO, N_CLASSES, tiny_batches, tiny_model
from tests.codes import raises, warns

QUICK = Accuracy(n_samples=64, severities=(5,), n_runs=4)


def prepare(model, source, part=QUICK, **options):
    return acclimate.prepare(model, source, parts=[part], **options)


def get_maps(artifact):
    tensors = artifact.part("accuracy")
    return {
        size: AccuracyMap.from_tensors(
            size,
            {k.split("/")[1]: v for k, v in tensors.items() if k.startswith(f"{size}/")},
        )
        for size in SIZES
    }


def quantised(x):
    """Return images as 8 bits store them."""
    return (x.clamp(0, 1) * 255).round().byte().float() / 255


def test_prepared_twice_it_is_the_same():
    batches = tiny_batches(8)
    first, second = (prepare(tiny_model("batch_norm"), batches) for _ in range(2))
    assert first.tensors.keys() == second.tensors.keys()
    for name, tensor in first.tensors.items():
        assert torch.equal(tensor, second.tensors[name]), name
    assert first.parts == second.parts
    other = prepare(tiny_model("batch_norm"), batches, seed=1)
    assert any(not torch.equal(t, other.tensors[name]) for name, t in first.tensors.items())


@pytest.mark.parametrize(
    "name", ["batch_norm", "vit", "two_heads", "returns_dict", "frozen_stem", "dense"]
)
def test_the_model_and_the_random_numbers_are_as_before(name):
    model = tiny_model(name)
    model.train()
    next(iter(model.modules())).training = False
    source = tiny_masks(4) if name == "dense" else tiny_batches(4)
    gradients = [torch.ones_like(p) for p in model.parameters()]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    prepare(model, source, info=MODEL_INFO.get(name))
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])


def test_none_of_the_fifteen_corruptions_is_used(monkeypatch):
    used = []

    def apply(pixels, name, severity, **options):
        used.append((name, severity))
        return pixels

    monkeypatch.setattr(corruptions, "apply", apply)
    prepare(tiny_model("mlp"), tiny_batches(4), "accuracy")
    assert {name for name, _ in used} == set(corruptions.HELD_OUT)
    assert {severity for _, severity in used} == {1, 3, 5}
    assert not set(corruptions.HELD_OUT) & set(corruptions.BENCHMARK)
    assert len(corruptions.BENCHMARK) == 15


def test_other_shifts_can_be_chosen(monkeypatch):
    used = set()

    def apply(pixels, name, severity, **options):
        used.add((name, severity))
        return pixels

    monkeypatch.setattr(corruptions, "apply", apply)
    part = Accuracy(n_samples=64, shifts=("fog", "contrast"), severities=(2, 4), n_runs=4)
    artifact = prepare(tiny_model("mlp"), tiny_batches(4), part)
    assert used == {(name, severity) for name in ("fog", "contrast") for severity in (2, 4)}
    assert artifact.parts["accuracy"]["shifts"] == ("fog", "contrast")


def test_confidence_and_correctness_on_clean_images():
    model, batches = tiny_model("batch_norm"), tiny_batches(8)
    part = prepare(model, batches).part("accuracy")
    x, y = (torch.cat(each) for each in zip(*batches, strict=True))
    with torch.no_grad():
        probabilities = model(quantised(x)).softmax(dim=1)
    confidence, predicted = probabilities.max(dim=1)
    assert torch.allclose(part["confidence"], confidence, rtol=0, atol=1e-5)
    clear = probabilities.topk(2).values.diff().abs()[:, 0] > 1e-4
    assert torch.equal(part["is_correct"][clear], (predicted == y)[clear].float())


def test_at_most_n_samples_are_used():
    found = prepare(tiny_model("mlp"), tiny_batches(10), QUICK)
    assert found.parts["accuracy"]["n_samples"] == 64
    assert len(found.part("accuracy")["confidence"]) == 64
    assert prepare(tiny_model("mlp"), tiny_batches(4), QUICK).parts["accuracy"]["n_samples"] == 32


def test_normalised_images_are_corrupted_as_they_were_before():
    """The corruptions see pixels, whatever the model's inputs are."""
    normalization = acclimate.Normalization((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))

    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = tiny_model("mlp").double()

        def forward(self, x):
            return self.net(normalization.denormalize(x))

    batches = tiny_batches(8, dtype=torch.float64)
    plain = prepare(tiny_model("mlp").double(), batches)
    info = acclimate.ModelInfo(normalization=normalization)
    normalised = [(normalization.normalize(x), y) for x, y in batches]
    found = prepare(Normalised().eval(), normalised, info=info)
    expected = plain.part("accuracy")
    for name in ("confidence", "is_correct"):
        assert torch.allclose(found.part("accuracy")[name], expected[name], rtol=0, atol=1e-5)


def test_by_default_all_runs_come_in_turn():
    part = Accuracy()
    assert part.n_runs == 7
    n_shifts = len(part._list_shifts())
    assert n_shifts == 34
    chosen = [part._choose_runs(number, has_batch_norm=True) for number in range(n_shifts)]
    assert all(len(runs) == 7 for runs in chosen)
    assert all(tuple(runs[:_N_FIXED]) == _STATISTICS_RUNS[:_N_FIXED] for runs in chosen)
    counts = [sum(each in runs for runs in chosen) for each in (*_STATISTICS_RUNS, *_LEARNING_RUNS)]
    assert counts[:_N_FIXED] == [n_shifts] * _N_FIXED
    assert max(counts[_N_FIXED:]) - min(counts[_N_FIXED:]) <= 1
    assert min(counts) > 0
    plain = [part._choose_runs(number, has_batch_norm=False) for number in range(n_shifts)]
    assert all(len(runs) == 7 for runs in plain)
    assert all(each.rate > 0 and each.statistics == "source" for runs in plain for each in runs)


# Runs ---------------------------------------------------------------------------------------------


class Flat(nn.Module):
    """BatchNorm and a head that sees every pixel, so that mirrored images are predicted anew."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3 * 8 * 8, N_CLASSES)
        random = torch.Generator().manual_seed(3)
        with torch.no_grad():
            self.norm.running_mean.copy_(torch.rand(3, generator=random))
            self.norm.running_var.copy_(0.05 + torch.rand(3, generator=random))
            self.head.weight.copy_(0.1 * torch.randn(N_CLASSES, 192, generator=random))
            self.head.bias.zero_()

    def forward(self, x):
        return self.head(self.norm(x).flatten(1))


def adapt(model, x, each):
    context = SimpleNamespace(
        model=model,
        info=acclimate.ModelInfo(),
        call=None,
        generator=torch.Generator().manual_seed(9),
    )
    with torch.no_grad():
        return _adapt(context, x, each)


def predict_plainly(values, mean, variance, x):
    shape = (1, 3, 1, 1)
    normal = (x - mean.reshape(shape)) / (variance.reshape(shape) + 1e-5).sqrt()
    normal = normal * values["norm.weight"].reshape(shape) + values["norm.bias"].reshape(shape)
    return normal.flatten(1) @ values["head.weight"].T + values["head.bias"]


def moments(x, unbiased):
    mean = x.mean((0, 2, 3))
    n = x.numel() / 3 - unbiased
    return mean, (x - mean.reshape(1, 3, 1, 1)).square().sum((0, 2, 3)) / n


def mixed_with_stream(model, x, batch):
    """Return the moments of a batch, of all images and of the source, mixed, by hand."""
    n, others = len(batch), len(x)
    share = n / (n + 100)
    n_effective = 1 / ((1 - share) ** 2 / others + share**2 / n)
    used = []
    (old, old_variance), (new, new_variance) = (
        moments(each, unbiased=False) for each in (x, batch)
    )
    used.append((1 - share) * old + share * new)
    used.append(
        (1 - share) * old_variance + share * new_variance + share * (1 - share) * (new - old) ** 2
    )
    trusted = 0.52 * n_effective / (n_effective + 30)
    source = model.norm.running_mean, model.norm.running_var
    return tuple((1 - trusted) * a + trusted * b for a, b in zip(source, used, strict=True))


def adapt_plainly(model, x, each):
    """Return what `adapt` does for `Flat`, a list for each pass: by hand, but for the gradients."""
    values = {k: p.detach().clone().requires_grad_(True) for k, p in model.named_parameters()}
    first = {name: value.detach().clone() for name, value in values.items()}
    mean, variance = model.norm.running_mean.clone(), model.norm.running_var.clone()
    optimizer = torch.optim.Adam(values.values(), lr=each.rate) if each.rate else None
    passes = []
    for _ in range(each.passes):
        rows = []
        for start in range(0, len(x), each.batch_size):
            batch = x[start : start + each.batch_size]
            alone = len(batch) == 1 and each.statistics == "batch"
            if each.statistics == "batch" and not alone:
                used = moments(batch, unbiased=False)
            elif each.statistics == "stream":
                used = mixed_with_stream(model, x, batch)
            elif each.statistics in ("mixed", "robust"):
                own = moments(batch, unbiased=each.statistics == "mixed")
                share = each.momentum
                used = tuple(
                    (1 - share) * old + share * new
                    for old, new in zip((mean, variance), own, strict=True)
                )
            else:
                used = mean, variance
            if each.statistics == "robust":
                mean, variance = used
            logits = predict_plainly(values, *used, batch)
            # A mirrored batch has the same moments.
            mirrored = predict_plainly(values, *used, batch.flip(-1))
            of_norm = (
                (model.norm.running_mean, model.norm.running_var)
                if len(batch) == 1
                else moments(batch, unbiased=False)
            )
            by_norm = predict_plainly(first, *of_norm, batch)
            probabilities = logits.softmax(dim=1)
            for number in range(len(batch)):
                row = []
                for seen in (logits, by_norm):
                    best = int(seen[number].argmax())
                    row += [best, float(seen[number].detach().softmax(dim=0)[best])]
                row.insert(2, float(int(mirrored[number].argmax()) == row[0]))
                rows.append(row)
            if optimizer is not None:
                entropy = -(probabilities * probabilities.log()).sum(dim=1).mean()
                average = probabilities.mean(dim=0)
                loss = entropy + each.diversity * (average * average.log()).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        passes.append(rows)
    return passes


RUNS = [
    Run("shuffled", 16),
    Run("shuffled", 13),  # the last batch has one image
    Run("shuffled", 16, "source"),
    Run("shuffled", 16, "mixed"),
    Run("shuffled", 16, "mixed", momentum=0.2),
    Run("shuffled", 16, "robust", momentum=0.1, passes=2),
    Run("shuffled", 16, "robust", momentum=0.3, passes=3),
    Run("shuffled", 16, "stream"),
    Run("shuffled", 13, "stream"),
    Run("shuffled", 16, "source", rate=1e-2),
    Run("shuffled", 13, "batch", rate=1e-2, passes=2),
    Run("shuffled", 16, "batch", rate=3e-2, diversity=1.0, passes=3),
    Run("shuffled", 16, "source", rate=1e-3, diversity=0.5, passes=4),
]


@pytest.mark.parametrize("each", RUNS, ids=str)
def test_a_run_is_that_of_loops_leaves_the_model_and_records_the_last_pass(each):
    model = Flat().double().eval()
    model.head.bias.requires_grad_(False)
    x = torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(4)).double()
    passes = adapt_plainly(model, x, each)
    before = copy.deepcopy(model.state_dict())
    found = adapt(model, x, each)
    assert found.shape == (40, 1, 5)
    assert found.dtype == torch.float32
    for row, expected in zip(found[:, 0].tolist(), passes[-1], strict=True):
        assert row == pytest.approx(expected, abs=1e-6)
    # Each pass changes the model that the next one begins with.
    assert all(earlier != passes[-1] for earlier in passes[:-1])
    assert len(passes) == each.passes
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["head.bias"]
    assert all(p.grad is None for p in model.parameters())
    assert not any(module.training or module._forward_pre_hooks for module in model.modules())
    assert model.norm.track_running_stats


def norm_agreement(described):
    """Return the signal of a run, beside a source model that predicts anything."""
    records = torch.cat([torch.zeros(len(described), 3), described[:, 0]], dim=1)
    assert records.shape[1] == len(RECORD)
    return float(measure_signals(records, N_CLASSES)[SIGNALS.index("norm_agreement")])


@pytest.mark.parametrize("batch_size", [4, 13, 64])
def test_predictions_by_batch_statistics_agree_with_those_and_learned_ones_do_not(batch_size):
    model = Flat().double().eval()
    x = torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(4)).double()
    assert norm_agreement(adapt(model, x, Run("shuffled", batch_size))) == 1
    learned = Run("shuffled", batch_size, "batch", rate=3e-2, passes=3)
    assert norm_agreement(adapt(model, x, learned)) < 1


# Pixels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dense", "dense_pooling"])
def test_pixels(name):
    artifact = prepare(tiny_model(name), tiny_masks(8))
    for size, made in get_maps(artifact).items():
        assert all(bool(tensor.isfinite().all()) for tensor in made.to_tensors().values()), size
    part = artifact.part("accuracy")
    assert set(part["is_correct"].tolist()) <= {0.0, 1.0}
    assert len(part["is_correct"]) == len(part["confidence"])


@pytest.mark.parametrize("ignored", [0, 255])
def test_pixels_without_a_label_do_not_count(ignored):
    model, batches = tiny_model("dense_pooling"), tiny_masks(4)
    batches = [(x, y.where(y != 255, torch.tensor(ignored))) for x, y in batches]
    part = prepare(model, batches, ignore_label=ignored).part("accuracy")
    x, y = (torch.cat(each) for each in zip(*batches, strict=True))
    with torch.no_grad():
        probabilities = model(quantised(x)).softmax(dim=1)
    places = find_places(Grid(len(x), *y.shape[1:]))
    confidence, predicted = (each.flatten(1)[:, places] for each in probabilities.max(dim=1))
    labels = y.flatten(1)[:, places]
    known = labels != ignored
    assert 0 < int(known.sum()) < known.numel()
    assert torch.allclose(part["confidence"], confidence[known], rtol=0, atol=1e-5)
    clear = probabilities.topk(2, dim=1).values.diff(dim=1).abs().flatten(1)[:, places] > 1e-4
    is_correct = (predicted == labels)[known].float()
    assert torch.equal(part["is_correct"][clear[known]], is_correct[clear[known]])


# Refusals -----------------------------------------------------------------------------------------


def odd_images(shape):
    net = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), N_CLASSES))
    x = torch.rand(8, *shape, generator=torch.Generator().manual_seed(0))
    return net, [(x, torch.arange(8) % N_CLASSES)]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 8)])
def test_images_that_cannot_be_corrupted_are_refused_if_asked_for_and_left_out_if_not(shape):
    net, source = odd_images(shape)
    with raises("not_applicable", option="accuracy"):
        acclimate.prepare(net, source, parts=["accuracy"])
    with raises("not_applicable", option="accuracy"):
        acclimate.prepare(net, source, method="source", parts=[QUICK])
    with warns("accuracy_left_out") as notes:
        artifact = acclimate.prepare(net, source, method="source")
    assert len(notes) == 1
    assert list(artifact.parts) == ["features"]
    with raises("missing_parts", parts=("accuracy",)):
        acclimate.adapt(net, "source", artifact, guard=True)


def test_it_is_left_out_on_request_unless_it_is_named():
    source = tiny_batches(4)
    artifact = acclimate.prepare(tiny_model("mlp"), source, method="source", accuracy=False)
    assert list(artifact.parts) == ["features"]
    parts = acclimate.prepare(tiny_model("mlp"), source, parts=[QUICK], accuracy=False).parts
    assert list(parts) == ["accuracy"]


def test_without_scipy_or_opencv_it_is_left_out(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "cv2" else found(name)
    )
    with warns("accuracy_left_out") as notes:
        artifact = acclimate.prepare(tiny_model("mlp"), tiny_batches(4), method="source")
    assert "cv2 cannot be imported" in str(notes[0])
    assert "acclimate[corruptions]" in str(notes[0])
    assert "accuracy" not in artifact.parts
    with raises("not_applicable", option="accuracy"):
        prepare(tiny_model("mlp"), tiny_batches(4))


def test_one_image_is_too_few():
    x, y = tiny_batches(1)[0]
    with raises("too_few_samples", expected=2, found=1):
        prepare(tiny_model("mlp"), [(x[:1], y[:1])])


# What the maps estimate ---------------------------------------------------------------------------


class Faded(nn.Module):
    """Tells four colours apart. It is as sure as it is right, because only the contrast decides."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, N_CLASSES)
        self.norm = nn.BatchNorm2d(3)
        colours = torch.eye(4, 3) - 0.25
        with torch.no_grad():
            self.head.weight.copy_(12 * colours)
            self.head.bias.zero_()

    def forward(self, x):
        return self.head(self.norm(x - 0.5).mean((2, 3)))


def coloured(n, seed, contrast=0.5):
    """Return images of four colours, which noise hides the more the lower their contrast is."""
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(N_CLASSES, (n,), generator=random)
    colour = (torch.eye(4, 3) - 0.25)[y][:, :, None, None]
    noise = torch.randn(n, 3, 1, 1, generator=random)
    fine = torch.randn(n, 3, 8, 8, generator=random)
    return (0.5 + contrast * colour + 0.06 * noise + 0.05 * fine).clamp(0, 1), y


@pytest.fixture(scope="module")
def faded():
    model = Faded().eval()
    source = [coloured(64, seed) for seed in range(8)]
    # With the default number of runs: four leave one for all kinds of learning, which is too few.
    return model, get_maps(prepare(model, source, Accuracy(severities=(1, 5))))


@pytest.mark.parametrize("seed", [100, 101, 102])
@pytest.mark.parametrize("contrast", [0.5, 0.25])
def test_accuracy_under_a_shift_that_was_not_calibrated_is_recovered(faded, contrast, seed):
    """The source model beside itself, on new images of less contrast."""
    model, maps = faded
    x, y = coloured(512, seed, contrast)
    by_batch = copy.deepcopy(model).train()
    with torch.no_grad():
        logits, mirrored = model(x), model(x.flip(-1))
        by_norm = torch.cat([by_batch(part) for part in x.split(64)])
    described = describe_predictions(logits, mirrored)
    norm = describe_predictions(by_norm, None)[:, :2]
    truth = float((logits.argmax(1) == y).float().mean())
    found = maps[512].estimate(
        measure_signals(torch.cat([described, described, norm], dim=1), N_CLASSES), 512
    )
    assert found.source.value == pytest.approx(truth, abs=0.12)
    assert found.adapted.value == pytest.approx(truth, abs=0.12)
    assert abs(found.gain.value) < 0.06
