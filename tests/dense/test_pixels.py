"""Rows, maps, masks, and what models that predict every pixel look like from outside."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from acclimate.forward import run
from acclimate.functional.pixels import (
    Grid,
    check_masks,
    image_losses,
    random_box,
    resize_masks,
    sample_rows,
    take_samples,
    to_maps,
    to_rows,
)
from acclimate.functional.views import get_views
from acclimate.introspect import ModelInfo, get_head, inspect_model
from acclimate.testing.dense_models import tiny_masks
from acclimate.testing.models import tiny_model
from tests.codes import raises

X, Y = tiny_masks(1)[0]


def test_rows_are_the_pixels_of_one_image_after_the_other():
    maps = torch.rand(2, 3, 4, 5)
    rows = to_rows(maps)
    expected = [maps[n, :, i, j] for n in range(2) for i in range(4) for j in range(5)]
    assert torch.equal(rows, torch.stack(expected))
    assert torch.equal(to_maps(rows, Grid.of(maps)), maps)


def test_channels_last_are_not_copied():
    maps = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert to_rows(maps).data_ptr() == maps.data_ptr()


def test_the_loss_of_an_image_is_the_mean_over_its_labelled_pixels():
    logits, y = torch.randn(3, 4, 4, 4, dtype=torch.float64), Y[:3].clone()
    y[1] = 255
    found = image_losses(logits, y)
    resized = F.interpolate(logits, size=(8, 8), mode="bilinear", align_corners=False)
    for n in (0, 2):
        expected = F.cross_entropy(resized[n : n + 1], y[n : n + 1], ignore_index=255)
        assert abs(float(found[n] - expected)) < 1e-13
    assert float(found[1]) == 0.0


@pytest.mark.parametrize(
    ("y", "code", "data"),
    [
        (Y.float(), "wrong_dtype", {"found": "float32"}),
        (Y[:, None], "wrong_shape", {"found": (8, 1, 8, 8)}),
        (Y[:, :4], "wrong_shape", {"found": (8, 4, 8)}),
        (Y.masked_fill(Y == 3, 7), "wrong_labels", {"found": (7,), "n_classes": 4}),
        (Y.masked_fill(Y == 3, -1), "wrong_labels", {"found": (-1,), "n_classes": 4}),
        (Y.numpy(), "wrong_type", {"option": "y", "found": "ndarray"}),
    ],
)
def test_masks_that_do_not_fit(y, code, data):
    with raises(code, **data):
        check_masks(y, (8, 8, 8), 4)


def test_masks_that_fit():
    check_masks(Y, (8, 8, 8), 4)
    check_masks(Y.to(torch.uint8), (8, 8, 8), 4)
    check_masks(Y.masked_fill(Y == 255, 9), (8, 8, 8), 4, ignore_label=9)


def test_masks_shrink_to_the_nearest_label():
    y = torch.arange(16).reshape(1, 4, 4)
    assert resize_masks(y, (2, 2)).tolist() == [[[5, 7], [13, 15]]]
    assert resize_masks(y, (4, 4)) is y


def test_samples_of_pixels_are_balanced():
    y = torch.tensor([0] * 50 + [1] * 3 + [255] * 7 + [1] * 60)  # two images of 60 pixels
    picked = sample_rows(y, y != 255, 2, 5, torch.Generator().manual_seed(0))
    counts = [
        int(((picked // 60 == image) & (y[picked] == label)).sum())
        for image in (0, 1)
        for label in (0, 1)
    ]
    assert counts == [5, 3, 0, 5]
    assert len(picked) == 13
    other = sample_rows(y, y != 255, 2, 5, torch.Generator().manual_seed(1))
    assert not torch.equal(picked, other)
    assert len(sample_rows(y, y > 999, 2, 5, torch.Generator())) == 0


def test_rows_of_picked_images():
    rows = torch.arange(12).reshape(12, 1)
    assert take_samples(rows, 4, slice(None, None, 2)).flatten().tolist() == [0, 1, 2, 6, 7, 8]
    assert take_samples(rows, 12, slice(0, 2)).flatten().tolist() == [0, 1]


def test_boxes_lie_inside_and_reach_the_edges():
    draws = torch.Generator().manual_seed(0)
    boxes = [random_box(5, 3, 4, draws) for _ in range(50)]
    assert {(box[0].start, box[0].stop) for box in boxes} == {(0, 4), (1, 5)}
    assert {(box[1].start, box[1].stop) for box in boxes} == {(0, 3)}


@pytest.mark.parametrize(("name", "moves"), [("swr", False), ("test", False), ("projector", True)])
def test_views_say_whether_they_move_pixels(name, moves):
    assert get_views(name).moves_pixels is moves
    assert get_views([{"name": "OneOf", "views": get_views(name).to_dict()}]).moves_pixels is moves


@pytest.mark.parametrize("name", ["dense", "dense_pooling"])
def test_the_head_is_the_convolution_that_makes_the_logits(name):
    model, x = tiny_model(name).double(), X.double()
    info = inspect_model(model, x[:2])
    assert (info.head, info.n_classes, info.n_features) == ("head", 4, 8)
    assert info.is_dense
    found = run(model, x, get_head(model, "head"))
    with torch.no_grad():
        expected = model(x)
    assert torch.equal(to_maps(found.logits, found.grid), expected)
    assert found.feature_grid == Grid(8, 4, 4)
    made = F.conv2d(to_maps(found.known_features, found.feature_grid), model.head.weight)
    made = made + model.head.bias[:, None, None]
    size = expected.shape[2:]
    made = F.interpolate(made, size, mode="bilinear", align_corners=False)
    assert torch.allclose(made, expected, rtol=0, atol=1e-12)


def test_a_head_that_cannot_be_told():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Upsample(scale_factor=2))
    with raises("ambiguous_head", candidates=("0", "1")):
        inspect_model(model, X[:2])
    assert inspect_model(model, X[:2], ModelInfo(head="1")).n_features == 4
    plain = nn.Upsample(scale_factor=2)
    with raises("head_not_found", candidates=()):
        inspect_model(nn.Sequential(plain), X[:2])


def test_logits_of_a_sequence_are_neither_images_nor_pixels():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(2))
    with raises("wrong_logits", found=(2, 4, 64)):
        inspect_model(model, X[:2])


def test_masks_of_arrays_and_tensors_are_taken_alike():
    from acclimate.streams import Domain

    images = (X.permute(0, 2, 3, 1).numpy() * 255).astype(np.uint8)
    for y in (Y, Y.numpy().astype(np.uint8)):
        x, found = Domain("any", images, y).take(torch.tensor([3, 1]))
        assert torch.equal(found, Y[[3, 1]])
        assert found.dtype == torch.int64
        assert x.shape == (2, 3, 8, 8)
