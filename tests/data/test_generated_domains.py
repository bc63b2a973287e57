"""The built-in task in four styles."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from acclimate.builtin import CLASSES
from acclimate.builtin.domains import STYLES, render_style
from acclimate.data.domains import load_domains
from tests.codes import raises

rendered = cache(render_style)  # only to be read


def are_alike(images: np.ndarray, others: np.ndarray) -> bool:
    """Say whether two arrays show the same images.

    Images that are made in batches of other sizes go through other lanes of the processor, which
    may round a value that lies between two levels to the other one. That concerns single pixels.
    """
    return bool((images != others).mean() < 1e-3)


def test_styles_are_repeatable_differ_and_hold_every_class() -> None:
    made = {name: rendered(name, 20) for name in STYLES}
    for name, (images, labels) in made.items():
        assert images.shape == (20, 32, 32, 3)
        assert images.dtype == np.uint8
        assert np.bincount(labels).tolist() == [2] * 10
        again, same = render_style(name, 20)
        assert np.array_equal(images, again)
        assert np.array_equal(labels, same)
        # The first images do not depend on how many are made.
        assert are_alike(render_style(name, 5)[0], images[:5])
        assert not are_alike(render_style(name, 5, seed=1)[0], images[:5])
    for name, other in zip(list(made)[:-1], list(made)[1:], strict=True):
        assert not are_alike(made[name][0], made[other][0])
        assert not np.array_equal(made[name][1], made[other][1])


def test_each_style_is_what_it_says() -> None:
    sketch = rendered("sketch", 20)[0].astype(int)
    assert (np.ptp(sketch, axis=3) == 0).all()  # grey
    assert (sketch > 200).mean() > 0.6  # mostly paper
    woven, plain = rendered("woven", 20)[0], rendered("plain", 20)[0]
    assert np.ptp(plain, axis=3).max() > 20  # colours

    def roughness(images: np.ndarray) -> float:
        return float(np.abs(np.diff(images.astype(float), axis=2)).mean())

    assert roughness(woven) > roughness(plain)


def test_files_and_arrays_hold_the_same(tmp_path: Path) -> None:
    for style in STYLES:
        for number, (image, label) in enumerate(zip(*rendered(style, 20), strict=True)):
            folder = tmp_path / style / CLASSES[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{number:05}.png")
    files, arrays = load_domains(str(tmp_path)), load_domains("builtin-domains", n=20)
    assert list(files.domains) == list(arrays.domains) == sorted(STYLES)
    assert files.classes == tuple(sorted(CLASSES))
    for name in STYLES:
        images, labels = rendered(name, 20)
        x, y = next(files.domains[name].batches([torch.arange(20)]))
        order = sorted(range(20), key=lambda index: (CLASSES[labels[index]], index))
        assert np.array_equal(x.permute(0, 2, 3, 1).numpy(), images[order])
        assert [files.classes[label] for label in y] == [CLASSES[labels[i]] for i in order]
        x, y = next(arrays.domains[name].batches([torch.tensor([7, 3, 7])]))
        assert np.array_equal(x.permute(0, 2, 3, 1).numpy(), images[[7, 3, 7]])
        assert y.tolist() == labels[[7, 3, 7]].tolist()


def test_mistakes() -> None:
    with raises("not_applicable", option="size"):
        load_domains("builtin-domains", size=64)
