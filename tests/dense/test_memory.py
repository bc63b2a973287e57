"""Less memory for models that predict every pixel: the same result, or what was said instead."""

from __future__ import annotations

import pytest
import torch

import acclimate
from acclimate import Prototypes, Speed
from acclimate.functional.norm import use_statistics
from acclimate.testing.cases import Case
from acclimate.testing.dense_models import tiny_masks
from acclimate.testing.models import tiny_model
from tests.codes import raises
from tests.dense.test_oracles import artifact_of

XS = [x for x, _ in tiny_masks(3, batch_size=4, seed=3, dtype=torch.float64)]


def run(method, speed, **options):
    model = tiny_model("dense").double()
    adapted = acclimate.adapt(model, method, artifact_of("dense"), speed=speed, **options)
    return [adapted(x) for x in XS]


@pytest.mark.parametrize("statistics", ["running", "batch", "source"])
def test_checkpointing_changes_nothing(statistics):
    options = {"preset": "cityscapes", "lr": 1e-3, "statistics": statistics}
    plain = run("swr", Speed(), **options)
    forgetful = run("swr", Speed(checkpoint=True), **options)
    assert all(torch.equal(a, b) for a, b in zip(plain, forgetful, strict=True))


@pytest.mark.parametrize("method", ["infomax", "swr", "tent", "entropy"])
def test_parts_of_a_batch_give_its_gradients(method):
    plain = run(method, Speed(), statistics="source", lr=1e-2)
    parts = run(method, Speed(micro_batch=1), statistics="source", lr=1e-2)
    for a, b in zip(plain, parts, strict=True):
        assert a.shape == b.shape
        assert float((a - b).abs().max()) < 1e-10
    assert float((plain[2] - run("source", Speed())[2]).abs().max()) > 1e-3


def test_parts_of_a_batch_with_features():
    """With prototypes there are features, at a resolution of their own."""
    options = {"statistics": "source", "lr": 1e-2}
    model = tiny_model("dense_pooling").double()
    artifact = acclimate.prepare(
        model,
        tiny_masks(2, dtype=torch.float64),
        parts=[Prototypes(depth=0)],
    )
    plain = acclimate.adapt(model, "nsp", artifact, **options)
    expected = [plain(x) for x in XS]
    plain.unwrap()
    speed = Speed(micro_batch=3)
    parts = acclimate.adapt(model, "nsp", artifact, speed=speed, **options)
    for x, logits in zip(XS, expected, strict=True):
        assert float((parts(x) - logits).abs().max()) < 1e-10
    with torch.no_grad():
        assert float((tiny_model("dense_pooling").double()(XS[2]) - expected[2]).abs().max()) > 1e-3


def test_moving_statistics_and_parts_do_not_go_together():
    with raises("conflicting_options", options=("micro_batch", "statistics")):
        run("swr", Speed(micro_batch=1), preset="cityscapes")


def test_a_crop_is_learned_from_and_the_whole_is_predicted():
    model = tiny_model("dense").double()
    adapted = acclimate.adapt(model, "entropy", speed=Speed(crop=4), seed=3, statistics="source")
    seen = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad(), use_statistics(tiny_model("dense"), "source"):
        expected = tiny_model("dense").double()(XS[0])
    seen.clear()
    found = adapted(XS[0])
    assert torch.allclose(found, expected, atol=1e-12)
    learned = seen[-1]
    assert learned.shape == (4, 3, 4, 4)
    places = [
        (i, j)
        for i in range(5)
        for j in range(5)
        if torch.equal(XS[0][..., i : i + 4, j : j + 4], learned)
    ]
    assert len(places) == 1
    assert adapted.counts.updates == 1
    alone = acclimate.adapt(tiny_model("dense").double(), "entropy", statistics="source")
    alone(learned)
    twin = dict(alone.model.named_parameters())
    assert all(torch.allclose(p, twin[name]) for name, p in model.named_parameters())


def test_crops_move_with_the_seed_and_resume():
    first = [Case("infomax", "dense").build(speed=Speed(crop=4), seed=s) for s in (0, 0, 1)]
    xs = [x.float() for x in XS]
    runs = [[adapted(x) for x in xs] for adapted in first]
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][2], runs[2][2])
    again = [first[0].reset()(x) for x in xs[:1]]
    assert torch.equal(again[0], runs[0][0])


def test_labels_are_cropped_alike():
    adapted = acclimate.adapt(tiny_model("dense"), "supervised", speed=Speed(crop=4), seed=5)
    x, y = tiny_masks(1)[0]
    adapted.reveal(y)
    assert adapted(x).shape == (8, 4, 4, 4)
    assert adapted.counts.updates == 1


def test_whole_images_cannot_be_learned_from_a_crop():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", speed=Speed(crop=4))
    with raises("not_applicable", option="crop"):
        adapted(torch.rand(4, 3, 8, 8))
