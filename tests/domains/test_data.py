"""Sets of domains on disk: found, counted, refused when something is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate import data
from acclimate.data.catalog import SETS
from acclimate.data.check import check
from acclimate.data.domain_sets import DOMAIN_SETS, normalize_name
from acclimate.data.domains import load_domains
from acclimate.errors import AcclimateWarning, BadInput
from acclimate.training import TrainSettings
from acclimate.training.sets import load_sets
from tests.cli_models import CLASSES
from tests.domains.samples import DOMAINS, make_tree

PUBLISHED = {
    "pacs": (4, 7, 9991),
    "vlcs": (4, 5, 10729),
    "office_home": (4, 65, 15588),
    "terra_incognita": (4, 10, 24788),
}


def scaled(name: str, by: int) -> dict[str, int]:
    """Return the published counts, as many times smaller."""
    return {domain: n // by for domain, n in DOMAIN_SETS[name].domains.items()}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], dict[str, int]]:
    """Let a set be published with fewer images; return how many."""

    def shrink(name: str, by: int) -> dict[str, int]:
        counts = scaled(name, by)
        monkeypatch.setitem(DOMAIN_SETS, name, replace(DOMAIN_SETS[name], domains=counts))
        return counts

    return shrink


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_add_up(name: str) -> None:
    spec = DOMAIN_SETS[name]
    n_domains, n_classes, n_images = PUBLISHED[name]
    assert (len(spec.domains), spec.n_classes, spec.n_images) == (n_domains, n_classes, n_images)
    assert list(spec.domains) == sorted(spec.domains)  # the order that seeds the splits
    assert len(spec.classes) in (0, n_classes)
    assert f"{n_images:,}".replace(",", " ") in spec.text
    assert SETS[name].kind == "domains"


def test_a_published_set_is_found_and_counted(
    tmp_path: Path, small: Callable[[str, int], dict[str, int]]
) -> None:
    counts = small("pacs", 100)
    classes = DOMAIN_SETS["pacs"].classes
    make_tree(tmp_path / "PACS", counts, classes)  # as DomainBed calls it
    found = load_domains("pacs", tmp_path, size=8)
    assert {name: len(domain) for name, domain in found.domains.items()} == counts
    assert found.classes == classes
    report = check("pacs", tmp_path)
    assert report.problems == []
    assert report.facts["art_painting"] == "20 images, 7 classes"
    assert report.facts["in all"] == f"{sum(counts.values())} images, 7 classes"
    assert data.find_state("pacs", tmp_path) == "folder, 4 of 4 domains"
    assert data.find_state("vlcs", tmp_path) == ""
    # One image less is told, and does not stop anybody.
    next((tmp_path / "PACS" / "sketch" / "dog").iterdir()).unlink()
    assert check("pacs", tmp_path).problems == [
        'the domain "sketch" of pacs has 38 images here, 39 as published: figures are not '
        "comparable to the last digit."
    ]
    with pytest.warns(AcclimateWarning, match="38 images here, 39 as published"):
        load_domains("pacs", tmp_path, size=8)


def test_names_may_differ_in_case_and_signs(tmp_path: Path) -> None:
    classes = tuple(f"Thing_{number:02}" for number in range(65))
    written = dict.fromkeys(("art", "CLIPART", "Product", "RealWorld"), 130)
    root = make_tree(tmp_path / "office_home", written, classes)
    (root / "ImageInfo").mkdir()  # lies beside the domains in the published archive
    with pytest.warns(AcclimateWarning, match=r"130 images here, 2,427 as published(.|\n)*4,357"):
        found = load_domains("office_home", tmp_path, size=8)
    assert list(found.domains) == ["Art", "Clipart", "Product", "Real World"]
    assert found.find("real_world") == "Real World"
    assert check("office_home", tmp_path).facts["not used"] == "ImageInfo"
    assert normalize_name("Real-World!") == "realworld"


def test_any_folder_of_anybodys(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "mine")
    for found in (
        load_domains(str(root)),
        load_domains("domains-folder", path=root),
        load_domains("domains-folder", path=root, size=8),
    ):
        assert found.name == "mine"
        assert list(found.domains) == list(DOMAINS)
        assert found.classes == CLASSES
    assert found.domains["farm"].labels.tolist() == sorted(list(range(4)) * 5)
    few = load_domains(str(root), n=8)
    assert [len(domain) for domain in few.domains.values()] == [8, 8, 8]
    assert np.bincount(few.domains["farm"].labels).tolist() == [2, 2, 2, 2]
    assert few.description != found.description
    assert check("domains-folder", path=root).problems == []


def test_images_are_squashed_to_the_size(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "mine")
    pixels = np.zeros((4, 16, 3), np.uint8)
    pixels[:, 8:] = 200  # the right half
    Image.fromarray(pixels).save(root / "city" / "cat" / "000.png")
    with pytest.raises(BadInput, match=r"expected images of one size, found 2 sizes.*--size"):
        load_domains(str(root))
    x, y = next(load_domains(str(root), size=8).domains["city"].batches([torch.tensor([0])]))
    assert x.shape == (1, 3, 8, 8)
    assert y.tolist() == [0]
    assert (x[..., 0] == 0).all()  # nothing was cropped away
    assert (x[..., 7] == 200).all()


def test_what_cannot_be_read_is_listed_and_counted(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "mine")
    torn = root / "farm" / "eel" / "002.png"
    torn.write_bytes(torn.read_bytes()[:60])
    report = check("domains-folder", path=root)
    assert report.facts["unreadable"] == "1"
    assert len(report.problems) == 1
    assert str(torn) in report.problems[0]
    found = load_domains(str(root))
    with pytest.warns(AcclimateWarning, match=r"002\.png is left out: it cannot be read"):
        batches = list(found.domains["farm"].batches([torch.arange(12), torch.arange(9, 13)]))
    assert [len(y) for _, y in batches] == [11, 3]
    assert list(found.unreadable()) == [torn]
    with pytest.raises(BadInput, match="none of the 1 images of a batch can be read"):
        list(found.domains["farm"].batches([torch.tensor([10])]))


def remove(*parts: str) -> Callable[[Path], None]:
    return lambda root: shutil.rmtree(root.joinpath(*parts))


def keep_one_image(root: Path) -> None:
    for path in sorted((root / "shore" / "dog").iterdir())[1:]:
        path.unlink()


def leave_loose(root: Path) -> None:
    (root / "shore" / "cat" / "000.png").rename(root / "shore" / "000.png")


def misspell(root: Path) -> None:
    (root / "farm" / "fox").rename(root / "farm" / "foxes")


def spell_twice(root: Path) -> None:
    (root / "farm" / "Fox").mkdir()
    (root / "farm" / "fox" / "003.png").rename(root / "farm" / "Fox" / "003.png")
    shutil.copy(root / "farm" / "Fox" / "003.png", root / "farm" / "Fox" / "004.png")


def empty_domain(root: Path) -> None:
    (root / "desert").mkdir()


def only_one_class(root: Path) -> None:
    for path in root.glob("*/[d-f]*"):
        shutil.rmtree(path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (remove("farm", "fox"), r'"farm" has no image of the class "fox".*Every domain needs'),
        (misspell, r'"farm" has no image of the class "fox".*Did you mean "foxes"'),
        (spell_twice, r'"city" has no image of the class "Fox".*Did you mean "fox"'),
        (empty_domain, r'domain "desert" has no image in any class.*Remove the folder'),
        (keep_one_image, r'"shore" has only one image of the class "dog" \(001\.png\)'),
        (leave_loose, r"000\.png lies in a domain but in no class, and so do 0 more"),
        (only_one_class, r'at least two classes in .*, found only "cat"'),
        (
            lambda root: [shutil.rmtree(root / name) for name in ("city", "farm")],
            r'at least two domains as sub-folders of .*, found only "shore"',
        ),
        (
            lambda root: [shutil.rmtree(root / name) for name in DOMAINS],
            r"at least two domains as sub-folders of .*, found none",
        ),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    root = make_tree(tmp_path / "mine")
    damage(root)
    with pytest.raises(BadInput, match=words):
        load_domains(str(root))
    problems = check("domains-folder", path=root).problems
    with pytest.raises(BadInput, match=words):
        raise BadInput(" ".join(problems))


def test_what_is_wrong_with_a_published_set_is_said(
    tmp_path: Path, small: Callable[[str, int], dict[str, int]]
) -> None:
    counts = small("vlcs", 100)
    classes = DOMAIN_SETS["vlcs"].classes
    root = make_tree(tmp_path / "vlcs", counts, (*classes[:4], "pony"))
    with pytest.raises(BadInput, match=r'vlcs has no class "pony", which is a folder in'):
        load_domains("vlcs", tmp_path)
    for path in root.glob("*/pony"):
        shutil.rmtree(path)
    with pytest.raises(BadInput, match=r"expected the 5 classes of vlcs .* found 4: bird, car"):
        load_domains("vlcs", tmp_path)
    (root / "LabelMe").rename(root / "LableMee")
    with pytest.raises(
        BadInput, match=r'no folder for the domain "LabelMe" of vlcs\. Did you mean "LableMee"'
    ):
        load_domains("vlcs", tmp_path)
    assert check("vlcs", tmp_path).problems


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda root: load_domains("pasc"), r'neither a set of domains .* Did you mean "pacs"'),
        (lambda root: load_domains("pacs", root), r"no folder .*pacs\. Its makers allow research"),
        (lambda root: load_domains("domains-folder", root), "give the folder itself"),
        (lambda root: load_domains("builtin-domains", n=0), "at least 1 image of each domain"),
        (lambda root: check("domains-folder", root), "give it by --dir"),
        (lambda root: check("pacs", root), r"there is no folder .*pacs\."),
        (lambda root: data.get("pacs", root), r"pacs is not fetched\. .*--from FILE.*sketch/dog"),
        (lambda root: data.get("domains-folder", root), "It is where you have it"),
        (lambda root: data.load("pacs", root=root), r"several domains: use .*load_domains"),
        (lambda root: data.load_folder("pacs", root=root), "is no folder of files"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, call: Callable[[Path], object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call(tmp_path)


def test_a_wrong_domain_is_refused_with_the_nearest(tmp_path: Path) -> None:
    found = load_domains(str(make_tree(tmp_path / "mine")))
    with pytest.raises(BadInput, match=r'mine has no domain "frm"\. Did you mean "farm"\? Known:'):
        found.find("frm")
    with pytest.raises(BadInput, match=r'at most 20, which the domain "city" has, found 21'):
        load_domains(str(tmp_path / "mine"), n=21)
    with pytest.raises(BadInput, match=r'3 images of the domain "city" have none of the class'):
        load_domains(str(tmp_path / "mine"), n=3)


def test_names_in_any_writing_are_told_apart(tmp_path: Path) -> None:
    names, classes = ("北京", "上海", "广州"), ("кот", "собака")
    found = load_domains(str(make_tree(tmp_path / "a", dict.fromkeys(names, 8), classes)))
    assert found.classes == tuple(sorted(classes))
    assert [found.find(name) for name in names] == list(names)
    signs = ("cam-1", "cam1", "cam 2")
    found = load_domains(str(make_tree(tmp_path / "b", dict.fromkeys(signs, 8), ("C+", "C-"))))
    assert found.classes == ("C+", "C-")
    assert [found.find(name) for name in signs] == list(signs)
    assert found.find("CAM2") == "cam 2"
    with pytest.raises(BadInput, match=r'"Cam_1" may be any of the domains cam-1, cam1'):
        found.find("Cam_1")


def test_plain_training_says_how_domains_are_trained_on(tmp_path: Path) -> None:
    settings = TrainSettings(model="resnet9-cifar10", data="pacs", size=96)
    with pytest.raises(BadInput, match=r"pacs has several domains: train with --algorithm"):
        load_sets(settings, tmp_path)


def test_a_folder_in_place_of_a_name_is_told_its_layouts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"domains-folder or mask-folder, and --dir .*mine"):
        check(str(make_tree(tmp_path / "mine")))
