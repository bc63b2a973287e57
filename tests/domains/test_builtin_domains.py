"""The built-in task in four styles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from acclimate.builtin import CLASSES
from acclimate.builtin.domains import STYLES, render_style, write_domains
from acclimate.data.domains import load_domains
from acclimate.errors import BadInput


def test_styles_are_repeatable_differ_and_hold_every_class() -> None:
    made = {name: render_style(name, 20) for name in STYLES}
    for name, (images, labels) in made.items():
        assert images.shape == (20, 32, 32, 3)
        assert images.dtype == np.uint8
        assert np.bincount(labels).tolist() == [2] * 10
        again, same = render_style(name, 20)
        assert np.array_equal(images, again)
        assert np.array_equal(labels, same)
        # The first images do not depend on how many are made.
        assert np.array_equal(render_style(name, 10)[0], images[:10])
        assert not np.array_equal(render_style(name, 10, seed=1)[0], images[:10])
    for name, other in zip(list(made)[:-1], list(made)[1:], strict=True):
        assert not np.array_equal(made[name][0], made[other][0])
        assert not np.array_equal(made[name][1], made[other][1])


def test_each_style_is_what_it_says() -> None:
    sketch = render_style("sketch", 10)[0].astype(int)
    assert (np.ptp(sketch, axis=3) == 0).all()  # grey
    assert (sketch > 200).mean() > 0.6  # mostly paper
    woven = render_style("woven", 10)[0]
    plain = render_style("plain", 10)[0]
    assert np.ptp(plain, axis=3).max() > 20  # colours

    def roughness(images: np.ndarray) -> float:
        return float(np.abs(np.diff(images.astype(float), axis=2)).mean())

    assert roughness(woven) > roughness(plain)


def test_files_and_arrays_hold_the_same(tmp_path: Path) -> None:
    write_domains(tmp_path, 40)
    files, arrays = load_domains(str(tmp_path)), load_domains("builtin-domains", n=40)
    assert list(files.domains) == list(arrays.domains) == sorted(STYLES)
    assert files.classes == tuple(sorted(CLASSES))
    for name in STYLES:
        images, labels = render_style(name, 40)
        x, y = next(files.domains[name].batches([torch.arange(40)]))
        order = sorted(range(40), key=lambda index: (CLASSES[labels[index]], index))
        assert np.array_equal(x.permute(0, 2, 3, 1).numpy(), images[order])
        assert [files.classes[label] for label in y] == [CLASSES[labels[i]] for i in order]
        x, y = next(arrays.domains[name].batches([torch.tensor([7, 3, 7])]))
        assert np.array_equal(x.permute(0, 2, 3, 1).numpy(), images[[7, 3, 7]])
        assert y.tolist() == labels[[7, 3, 7]].tolist()


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="at least 1 image of each style"):
        write_domains(tmp_path, 0)
    with pytest.raises(BadInput, match="Leave --size out"):
        load_domains("builtin-domains", size=64)
