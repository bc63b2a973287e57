"""The built-in scenes, their model, and pictures of segmentations."""

from __future__ import annotations

import io

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from acclimate.builtin.scene_model import load_scene_model
from acclimate.builtin.scenes import SCENE_CLASSES, SCENE_PALETTE, SCENE_SIZE, render_scenes
from acclimate.data import load
from acclimate.functional.pixels import count_pixels, find_ious
from acclimate.report.panels import paint, render_panels
from tests.codes import raises


def test_scenes_depend_on_seed_and_place_alone() -> None:
    images, labels = render_scenes(12, seed=3)
    assert images.shape == (12, *SCENE_SIZE, 3)
    part, own = render_scenes(4, seed=3, start=5)
    assert np.array_equal(images[5:9], part)
    assert np.array_equal(labels[5:9], own)
    assert not np.array_equal(images, render_scenes(12, seed=4)[0])
    assert set(np.unique(labels).tolist()) == {0, 1, 2, 3, 4, 255}
    assert 0.02 < (labels == 255).mean() < 0.2
    with raises("out_of_range", option="n", found=0):
        render_scenes(0, seed=0)


def miou_of(corruption: str | None) -> float:
    data = load("builtin-scenes", "test", n=40, corruption=corruption)
    x, y = next(data.batches([torch.arange(len(data))]))
    with torch.no_grad():
        logits = F.interpolate(load_scene_model()(x.float() / 255), y.shape[1:], mode="bilinear")
    return float(find_ious(count_pixels(logits.argmax(1), y, len(SCENE_CLASSES))).mean())


def test_the_source_model_is_good_until_the_images_change() -> None:
    clean = miou_of(None)
    assert clean > 0.85
    assert miou_of("contrast") < clean - 0.15


def test_labels_are_painted_by_the_palette() -> None:
    labels = np.array([[0, 1], [255, 4]])
    painted = paint(labels, SCENE_PALETTE)
    assert painted.tolist() == [
        [list(SCENE_PALETTE[0]), list(SCENE_PALETTE[1])],
        [[0, 0, 0], list(SCENE_PALETTE[4])],
    ]
    with raises("wrong_labels", found=(5,), n_classes=5):
        paint(np.array([[5]]), SCENE_PALETTE)


def test_panels_show_what_was_given() -> None:
    images, labels = render_scenes(2, seed=1)
    rows = [[image, own, own, own] for image, own in zip(images, labels, strict=True)]
    titles = ("image", "truth", "before", "after")
    first, second = (render_panels(rows, SCENE_PALETTE, titles, SCENE_CLASSES) for _ in range(2))
    assert first == second
    picture = np.array(Image.open(io.BytesIO(first)))
    height, width = SCENE_SIZE
    assert picture.shape[1] == 4 * (width + 4) + 4
    assert np.array_equal(picture[20 : 20 + height, 4 : 4 + width], images[0])
    left, top = 4 + width + 4, 20 + height + 4
    assert np.array_equal(
        picture[top : top + height, left : left + width], paint(labels[1], SCENE_PALETTE)
    )
    with raises("count_mismatch", expected=3, found=(4,)):
        render_panels(rows, SCENE_PALETTE, titles[:3])
    with raises("mixed_sizes", sizes=((10, width, 3), (height, width, 3))):
        render_panels([[images[0], labels[0][:10]]], SCENE_PALETTE, titles[:2])
