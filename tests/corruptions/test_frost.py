"""Where the pictures of frost come from, and what is said when there are none."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from acclimate.corruptions import apply, frost, provenance
from acclimate.data import data_root
from acclimate.errors import AcclimateWarning
from tests.codes import check_coded
from tests.corruptions.conftest import make_texture

GREY = np.full((2, 32, 32, 3), 100, dtype=np.uint8)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Hide an installed package and name an empty data root."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "corrupt" in name else find(name)
    )
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path))
    monkeypatch.setattr(frost, "make_texture", make_texture)
    frost._warn.cache_clear()
    yield tmp_path
    frost._warn.cache_clear()


def write_photographs(folder: Path) -> None:
    folder.mkdir(parents=True)
    for level, name in enumerate(frost.PHOTOGRAPHS):
        shade = np.full((300, 280, 3), 40 + 40 * level, dtype=np.uint8)
        Image.fromarray(shade).save(folder / name)


def test_without_photographs_it_says_so_once() -> None:
    assert provenance("frost") == "frost: procedural"
    assert provenance("snow") == "snow: computed"
    with pytest.warns(AcclimateWarning) as seen:
        first = apply(GREY, "frost")
    assert len(seen) == 1
    check_coded(seen[0].message, "frost_stand_in")
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(apply(GREY, "frost"), first)
    assert first.std() > 5


def test_photographs_in_the_data_root_are_used(root: Path) -> None:
    write_photographs(root / "frost")
    assert provenance("frost") == f"frost: photographs in {root / 'frost'}"
    out = apply(np.repeat(GREY, 30, axis=0), "frost", 5)
    levels = [int(0.75 * 100 + 0.45 * (40 + 40 * level)) for level in range(5)]
    # JPEG moves an even grey by one level at most.
    seen = np.unique(out)
    assert all(np.abs(seen - level).min() <= 1 for level in levels)
    assert all(np.abs(np.array(levels) - level).min() <= 1 for level in seen)


def test_a_folder_with_some_of_them_does_not_count(root: Path) -> None:
    write_photographs(root / "frost")
    (root / "frost" / "frost5.jpg").unlink()
    assert provenance("frost") == "frost: procedural"


def test_the_files_of_a_package_are_found_without_importing_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    package = root / "site" / "imagecorruptions"
    write_photographs(package / "frost")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(root / "site"))
    monkeypatch.delitem(__import__("sys").modules, "imagecorruptions", raising=False)
    assert frost.find_photographs() == package / "frost"


@pytest.mark.parametrize("shape", [(40, 47), (224, 224), (700, 300), (330, 1000)])
def test_pictures_are_large_enough_for_any_image(root: Path, shape: tuple[int, int]) -> None:
    write_photographs(root / "frost")
    x = np.zeros((2, *shape, 3), dtype=np.uint8)
    for scale in (False, True):
        out = apply(x, "frost", 1, scale=scale)
        assert out.min() > 0


def test_the_data_root_is_that_of_the_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    for platform in ("linux", "darwin", "win32"):
        monkeypatch.setattr("sys.platform", platform)
        for value in ("", "/somewhere", "~/there"):
            monkeypatch.setenv("ACCLIMATE_DATA", value)
            assert frost._folders()[-1] == data_root() / "frost"


def test_the_texture_has_veins() -> None:
    texture = make_texture(0)
    assert texture.shape == (600, 900, 3)
    assert 40 < texture.mean() < 200
    assert texture.std() > 30
    assert not np.array_equal(texture, make_texture(1))
