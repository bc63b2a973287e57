"""Preparing models that predict every pixel: penalties against a loop, masks that do not fit."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import acclimate
from acclimate import Accuracy, Penalty, Prototypes
from acclimate.functional.per_sample import gradient_cosines
from acclimate.functional.pixels import image_losses
from acclimate.functional.views import apply_views, get_views
from acclimate.testing.dense_models import tiny_masks
from acclimate.testing.models import tiny_model
from tests.codes import raises, warns

MODELS = ("dense", "dense_pooling")
QUICK = Accuracy(n_samples=64, severities=(5,), n_runs=4)


def loop(model, x, view, y, by_channel=False):
    """Return the summed cosines: two passes of batch size 1 a sample, nothing shared."""
    model = copy.deepcopy(model).requires_grad_(True)
    named = dict(model.named_parameters())
    sums = dict.fromkeys(named, 0.0)
    for n in range(len(x)):
        sides = []
        for image in (x, view):
            logits = model(image[n : n + 1])
            logits = F.interpolate(logits, y.shape[1:], mode="bilinear", align_corners=False)
            loss = F.cross_entropy(logits, y[n : n + 1], ignore_index=255)
            sides.append(torch.autograd.grad(loss, list(named.values())))
        for name, g, h in zip(named, *sides, strict=True):
            shape = (len(g), -1) if by_channel else (1, -1)
            sums[name] = sums[name] + F.cosine_similarity(g.reshape(shape), h.reshape(shape), dim=1)
    return sums


@torch.no_grad()
def head_inputs(model, x):
    found = []
    hook = model.head.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    model(x)
    hook.remove()
    return found[0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_cosines_are_those_of_a_loop(name, granularity):
    model = tiny_model(name).double()
    x, y = tiny_masks(1, dtype=torch.float64)[0]
    view = apply_views(get_views("swr"), x, None, torch.Generator().manual_seed(1))
    found = gradient_cosines(
        model,
        model,
        x,
        view,
        y,
        granularity,
        chunk=3,
        loss=lambda logits, masks: image_losses(logits, masks).sum(),
    )
    expected = loop(model, x, view, y, granularity == "channel")
    for key, total in expected.items():
        assert float((found[key].total.flatten() - total).abs().max()) < 1e-10
    spread = torch.cat([total.flatten() for total in expected.values()])
    assert float(spread.max() - spread.min()) > 0.5  # otherwise nothing was compared


@pytest.mark.parametrize("name", MODELS)
def test_prepare_gives_the_penalties_of_the_loop(name):
    model = tiny_model(name).double()
    batches = tiny_masks(3, batch_size=4, dtype=torch.float64)
    artifact = acclimate.prepare(
        model, batches, method="swr", parts=[Penalty(n_samples=10), QUICK], seed=4
    )
    x, y = (torch.cat(parts)[:10] for parts in zip(*batches, strict=True))
    draws = torch.Generator().manual_seed(4 * 1000)
    view = apply_views(get_views("swr"), x, None, draws)
    cosines = {key: float(total) / 10 for key, total in loop(model, x, view, y).items()}
    low, high = min(cosines.values()), max(cosines.values())
    for key, value in artifact.part("penalty").items():
        assert abs(float(value) - ((cosines[key] - low) / (high - low)) ** 2) < 1e-10
    assert artifact.info.is_dense
    assert artifact.parts["penalty"]["n_samples"] == 10
    assert artifact.parts["penalty"]["n_unlabelled"] == 0
    assert list(artifact.parts) == ["penalty", "features", "accuracy"]


def test_prototypes_are_left_out_unless_asked_for():
    with warns("few_samples"):
        artifact = acclimate.prepare(tiny_model("dense"), tiny_masks(2))
    assert list(artifact.parts) == ["penalty", "features", "accuracy", "mirror", "confidence"]


def test_an_artifact_survives_its_file(tmp_path):
    model = tiny_model("dense")
    parts = [Penalty(n_samples=8), "features", QUICK]
    artifact = acclimate.prepare(model, tiny_masks(2), parts=parts)
    artifact.save(tmp_path / "a.acclimate")
    loaded = acclimate.Artifact.load(tmp_path / "a.acclimate")
    assert loaded.info == artifact.info
    assert loaded.info.is_dense
    adapted = acclimate.adapt(model, "swr", loaded, guard=True)
    assert adapted(tiny_masks(1)[0][0]).shape == (8, 4, 4, 4)


def test_one_note_tells_of_few_images_and_of_those_without_a_label():
    batches = tiny_masks(1, batch_size=4)
    batches[0][1][2] = 255
    with warns("few_samples", found=3, expected=1024) as notes:
        found = acclimate.prepare(tiny_model("dense"), batches, parts=["penalty"])
    assert len(notes) == 1
    card = found.parts["penalty"]
    assert (card["n_samples"], card["n_unlabelled"]) == (3, 1)


def test_images_without_a_label_are_left_out_and_counted():
    model = tiny_model("dense").double()
    batches = tiny_masks(2, batch_size=4, dtype=torch.float64)
    batches[0][1][2] = 255
    with warns("unlabelled_images", n=1):
        found = acclimate.prepare(model, batches, parts=[Penalty(n_samples=8)])
    card = found.parts["penalty"]
    assert (card["n_samples"], card["n_unlabelled"]) == (7, 1)
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    view = apply_views(get_views("swr"), x, None, torch.Generator().manual_seed(0))
    kept = [n for n in range(8) if n != 2]
    expected = loop(model, x[kept], view[kept], y[kept])
    for key, value in found.part("cosine").items():
        assert abs(float(value) - float(expected[key]) / 7) < 1e-10


def test_masks_that_are_nothing_but_ignored():
    batches = [(x, torch.full_like(y, 255)) for x, y in tiny_masks(2)]
    for part in ("penalty", "features"):
        with raises("no_labelled_pixels"):
            acclimate.prepare(tiny_model("dense"), batches, parts=[part])


@pytest.mark.parametrize(
    ("change", "code", "data"),
    [
        (lambda y: y.masked_fill(y == 2, 33), "wrong_labels", {"found": (33,), "n_classes": 4}),
        (lambda y: y[:, :4, :4], "wrong_shape", {"found": (8, 4, 4)}),
        (lambda y: y[:, 0, 0], "wrong_shape", {"found": (8,)}),
        (lambda y: y.float(), "wrong_dtype", {"found": "float32"}),
    ],
)
def test_masks_that_do_not_fit(change, code, data):
    batches = [(x, change(y)) for x, y in tiny_masks(1)]
    with raises(code, **data):
        acclimate.prepare(tiny_model("dense"), batches)


def test_another_label_can_be_ignored():
    changed = [(x, y.masked_fill(y == 255, 77)) for x, y in tiny_masks(2)]
    parts = [Penalty(n_samples=16), "features"]
    first = acclimate.prepare(tiny_model("dense"), tiny_masks(2), parts=parts)
    second = acclimate.prepare(tiny_model("dense"), changed, parts=parts, ignore_label=77)
    assert all(torch.equal(first.tensors[key], second.tensors[key]) for key in first.tensors)


def test_views_that_move_pixels_are_refused():
    for part in (Penalty(views="projector"), Prototypes(depth=2)):
        with raises("views_move_pixels"):
            acclimate.prepare(tiny_model("dense"), tiny_masks(1), parts=[part])


def test_what_is_for_whole_images_is_refused():
    with raises("dense_unsupported", what="eata"):
        acclimate.prepare(tiny_model("dense"), tiny_masks(1), method="eata")
    with raises("dense_unsupported", what="fisher"):
        acclimate.prepare(tiny_model("dense"), tiny_masks(1), parts=["fisher"])


def test_moments_are_those_of_the_pixels():
    model = tiny_model("dense").double()
    batches = tiny_masks(2, dtype=torch.float64)
    found = acclimate.prepare(model, batches, parts=["features"])
    with torch.no_grad():
        maps = [model(x) for x, _ in batches]
    inputs = [head_inputs(model, x) for x, _ in batches]
    labels = [y[:, 1::2, 1::2] for _, y in batches]  # nearest to the centres of 2 × 2 pixels
    p = torch.cat(maps).softmax(dim=1)
    predictions = found.part("predictions")
    assert torch.allclose(predictions["mean"].double(), p.mean(dim=(0, 2, 3)), atol=1e-7)
    entropy = -(p * p.log()).sum(dim=1).mean()
    assert torch.allclose(predictions["entropy"].double(), entropy, atol=1e-6)
    y = torch.cat(labels)
    rows = torch.cat(inputs).permute(0, 2, 3, 1)
    features = found.part("features")
    for label in range(4):
        own = rows[y == label]
        assert int(features["class_count"][label]) == len(own)
        assert torch.allclose(features["class_mean"][label].double(), own.mean(dim=0), atol=1e-6)
    wrong = (torch.cat(maps).argmax(dim=1) != y)[y != 255]
    assert found.parts["features"]["error"] == pytest.approx(float(wrong.double().mean()))
    assert found.parts["features"]["n_samples"] == 16


def test_prototypes_are_moving_means_of_pixels():
    """With all pixels drawn, one after the other; an image's together weigh as a sample does."""
    model = tiny_model("dense").double()
    batches = tiny_masks(2, batch_size=3, dtype=torch.float64)
    artifact = acclimate.prepare(model, batches, parts=[Prototypes(depth=0, pixels=16)])
    momentum = 0.99 ** (1 / 16)
    expected = {}
    for x, y in batches:
        labels = y[:, 1::2, 1::2].flatten().tolist()
        rows = head_inputs(model, x).permute(0, 2, 3, 1).flatten(0, 2)
        for row, label in zip(rows, labels, strict=True):
            if label in expected:
                row = momentum * expected[label] + (1 - momentum) * row
            if label != 255:
                expected[label] = row
    found = artifact.part("prototypes")["embedding"]
    assert float((found - torch.stack([expected[k] for k in range(4)])).abs().max()) < 1e-10


def test_a_projector_is_trained_on_drawn_pixels():
    part = Prototypes(depth=2, width=6, hidden=8, epochs=4, views="test", pixels=3, lr=1e-2)
    artifact = acclimate.prepare(tiny_model("dense"), tiny_masks(4), method="nsp", parts=[part])
    assert artifact.part("prototypes")["embedding"].shape == (4, 6)
    losses = artifact.parts["prototypes"]["loss"]
    assert losses[-1] < losses[0]
    adapted = acclimate.adapt(tiny_model("dense"), "nsp", artifact)
    adapted(tiny_masks(1)[0][0])
    assert adapted.counts.updates == 1


def test_a_class_that_never_comes_has_no_prototype():
    batches = [(x, y.masked_fill(y == 3, 255)) for x, y in tiny_masks(2)]
    with raises("missing_classes", missing=(3,)):
        acclimate.prepare(tiny_model("dense"), batches, method="nsp")
