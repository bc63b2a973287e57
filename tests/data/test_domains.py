"""Sets of domains on disk: found, counted, refused when something is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate import data
from acclimate.data import check
from acclimate.data.catalog import SETS
from acclimate.data.domains import load_domains
from acclimate.data.layouts import normalize_name
from acclimate.training import TrainSettings
from acclimate.training.sets import load_sets
from tests.cli_models import CLASSES
from tests.codes import raises, warns
from tests.domains.samples import DOMAINS, make_tree, names_and_numbers

PUBLISHED = {
    "pacs": (4, 7, 9991),
    "vlcs": (4, 5, 10729),
    "office_home": (4, 65, 15588),
    "terra_incognita": (4, 10, 24788),
}


def scaled(name: str, by: int) -> dict[str, int]:
    """Return the published counts, as many times smaller."""
    return {domain: n // by for domain, n in SETS[name].domains.items()}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], dict[str, int]]:
    """Let a set be published with fewer images; return how many."""

    def shrink(name: str, by: int) -> dict[str, int]:
        counts = scaled(name, by)
        monkeypatch.setitem(SETS, name, replace(SETS[name], domains=counts))
        return counts

    return shrink


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_add_up(name: str) -> None:
    spec = SETS[name]
    n_domains, n_classes, n_images = PUBLISHED[name]
    assert (len(spec.domains), spec.n_classes, spec.n_images) == (n_domains, n_classes, n_images)
    assert list(spec.domains) == sorted(spec.domains)  # the order that seeds the splits
    assert len(spec.classes) in (0, n_classes)
    assert f"{n_images:,}".replace(",", " ") in spec.text
    assert SETS[name].has_domains


def test_a_published_set_is_found_and_counted(
    tmp_path: Path, small: Callable[[str, int], dict[str, int]]
) -> None:
    counts = small("pacs", 100)
    classes = SETS["pacs"].classes
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
    with warns("set_differs") as caught:
        load_domains("pacs", tmp_path, size=8)
    (warning,) = caught
    assert [names_and_numbers(line) for line in warning.differences] == [["sketch", "38", "39"]]
    assert check("pacs", tmp_path).problems == list(warning.differences)


def test_names_may_differ_in_case_and_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = ("Thing_00", "Thing_01", "Thing_02")
    fewer = replace(SETS["office_home"], n_classes=len(classes))
    monkeypatch.setitem(SETS, "office_home", fewer)
    written = dict.fromkeys(("art", "CLIPART", "Product", "RealWorld"), 6)
    root = make_tree(tmp_path / "office_home", written, classes)
    (root / "ImageInfo").mkdir()  # lies beside the domains in the published archive
    with warns("set_differs") as caught:
        found = load_domains("office_home", tmp_path, size=8)
    (warning,) = caught
    assert [names_and_numbers(line) for line in warning.differences] == [
        ["Art", "6", "2,427"],
        ["Clipart", "6", "4,365"],
        ["Product", "6", "4,439"],
        ["Real World", "6", "4,357"],
    ]
    assert list(found.domains) == ["Art", "Clipart", "Product", "Real World"]
    assert found.find("real_world") == "Real World"
    assert check("office_home", tmp_path).facts["not used"] == "ImageInfo"
    assert normalize_name("Real-World!") == "realworld"


def test_any_folder_of_anybodys(tree: Path) -> None:
    for found in (
        load_domains(str(tree)),
        load_domains("domains-folder", path=tree),
        load_domains("domains-folder", path=tree, size=8),
    ):
        assert found.name == "mine"
        assert list(found.domains) == list(DOMAINS)
        assert found.classes == CLASSES
    assert found.domains["farm"].labels.tolist() == sorted(list(range(4)) * 5)
    few = load_domains(str(tree), n=8)
    assert [len(domain) for domain in few.domains.values()] == [8, 8, 8]
    assert np.bincount(few.domains["farm"].labels).tolist() == [2, 2, 2, 2]
    assert few.description != found.description
    assert check("domains-folder", path=tree).problems == []


def test_images_are_squashed_to_the_size(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "mine")
    pixels = np.zeros((4, 16, 3), np.uint8)
    pixels[:, 8:] = 200  # the right half
    Image.fromarray(pixels).save(root / "city" / "cat" / "000.png")
    with raises("mixed_sizes", sizes=((4, 16), (8, 8))):
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
    with warns("unreadable_images", paths=(torn,)):
        batches = list(found.domains["farm"].batches([torch.arange(13), torch.arange(11, 15)]))
    assert [len(y) for _, y in batches] == [12, 3]
    assert list(found.unreadable()) == [torn]
    with raises("unreadable_images", paths=(torn,)):
        list(found.domains["farm"].batches([torch.tensor([12])]))


def remove(*parts: str) -> Callable[[Path], None]:
    return lambda root: shutil.rmtree(root.joinpath(*parts))


def remove_all(*domains: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        for name in domains:
            shutil.rmtree(root / name)

    return damage


def keep_one_image(root: Path) -> None:
    for path in sorted((root / "shore" / "dog").iterdir())[1:]:
        path.unlink()


def leave_loose(root: Path) -> None:
    (root / "shore" / "cat" / "000.png").rename(root / "shore" / "000.png")


def misspell(root: Path) -> None:
    (root / "farm" / "fox").rename(root / "farm" / "foxes")


def spell_twice(root: Path) -> None:
    (root / "farm" / "Fox").mkdir()
    (root / "farm" / "fox" / "002.png").rename(root / "farm" / "Fox" / "002.png")
    shutil.copy(root / "farm" / "Fox" / "002.png", root / "farm" / "Fox" / "003.png")


def empty_domain(root: Path) -> None:
    (root / "desert").mkdir()


def only_one_class(root: Path) -> None:
    for path in root.glob("*/[d-f]*"):
        shutil.rmtree(path)


@pytest.mark.parametrize(
    ("damage", "about", "path"),
    [
        (remove("farm", "fox"), [["farm", "fox"]], ""),
        # A name that is alike is told, too.
        (
            misspell,
            [["city", "foxes", "fox"], ["farm", "fox", "foxes"], ["shore", "foxes", "fox"]],
            "",
        ),
        (spell_twice, [["city", "Fox", "fox"], ["shore", "Fox", "fox"]], ""),
        (empty_domain, [["desert"]], "desert"),
        (keep_one_image, [["shore", "dog"]], "000.png"),
        (leave_loose, [["0"]], "shore/000.png"),
        (only_one_class, [["cat"]], "mine"),
        (remove_all("city", "farm"), [["shore"]], "mine"),
        (remove_all(*DOMAINS), [[]], "mine"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(
    tmp_path: Path, damage: Callable[[Path], object], about: list[list[str]], path: str
) -> None:
    root = make_tree(tmp_path / "mine", dict.fromkeys(DOMAINS, 12))
    damage(root)
    with raises("faulty_data") as caught:
        load_domains(str(root))
    faults = caught.value.faults
    assert [names_and_numbers(fault) for fault in faults] == about
    assert path in faults[0]
    assert check("domains-folder", path=root).problems == list(faults)


def test_what_is_wrong_with_a_published_set_is_said(
    tmp_path: Path, small: Callable[[str, int], dict[str, int]]
) -> None:
    counts = small("vlcs", 100)
    classes = SETS["vlcs"].classes
    root = make_tree(tmp_path / "vlcs", counts, (*classes[:4], "pony"))
    assert find_faults("vlcs", tmp_path) == [["pony", "person"]]
    for path in root.glob("*/pony"):
        shutil.rmtree(path)
    assert find_faults("vlcs", tmp_path) == [["5", "4"]]
    (root / "LabelMe").rename(root / "LableMee")
    assert find_faults("vlcs", tmp_path) == [["LabelMe", "LableMee"]]
    assert check("vlcs", tmp_path).problems


def find_faults(name: str, root: Path) -> list[list[str]]:
    """Return what the faults of a set are about, without the name of the set."""
    with raises("faulty_data") as caught:
        load_domains(name, root)
    found = [names_and_numbers(fault) for fault in caught.value.faults]
    return [[word for word in words if word != name] for words in found]


@pytest.mark.parametrize(
    ("call", "code", "about"),
    [
        (
            lambda root: load_domains("pasc"),
            "unknown_name",
            {
                "kind": "data set",
                "name": "pasc",
                "known": tuple(name for name, own in SETS.items() if own.has_domains),
            },
        ),
        (lambda root: load_domains("domains-folder", root), "missing_option", {"option": "path"}),
        (
            lambda root: load_domains("builtin-domains", n=0),
            "out_of_range",
            {"option": "images", "found": 0},
        ),
        (lambda root: check("domains-folder", root), "missing_option", {"option": "path"}),
        (
            lambda root: data.get("domains-folder", root),
            "not_fetchable",
            {"name": "domains-folder"},
        ),
        (lambda root: data.load("builtin-domains", n=0), "out_of_range", {"option": "images"}),
    ],
)
def test_mistakes_are_refused(
    tmp_path: Path, call: Callable[[Path], object], code: str, about: dict[str, Any]
) -> None:
    with raises(code, **about):
        call(tmp_path)


def test_the_message_says_how_a_set_that_is_not_there_is_obtained(tmp_path: Path) -> None:
    way = SETS["pacs"].placing.replace("{root}", str(tmp_path))
    assert "acclimate data get pacs --from FILE" in way
    assert "sketch/dog" in way
    with raises("not_fetchable", name="pacs") as caught:
        data.get("pacs", tmp_path)
    assert way in str(caught.value)
    for look in (load_domains, check):
        with raises("not_found", path=tmp_path / "pacs") as missing:
            look("pacs", tmp_path)
        assert way in str(missing.value)


def test_domains_and_images_that_are_not_there_are_refused(tree: Path) -> None:
    with raises("unknown_name", kind="domain", name="frm", known=DOMAINS):
        load_domains(str(tree)).find("frm")
    with raises("out_of_range", option="images", found=21):
        load_domains(str(tree), n=21)
    with raises("missing_classes", missing=("fox",)):
        load_domains(str(tree), n=3)


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
    with raises("ambiguous_name", name="Cam_1", candidates=("cam-1", "cam1")):
        found.find("Cam_1")


def test_one_domain_or_all_are_loaded_as_one_store(tree: Path) -> None:
    every = load_domains(str(tree))
    one = data.load("domains-folder", path=tree, domain="farm")
    together = data.load("domains-folder", path=tree)
    assert len(together) == sum(map(len, every.domains.values()))
    assert np.array_equal(one[[3, 0]], every.domains["farm"][[3, 0]])
    assert together.classes == one.classes == every.classes
    start = len(every.domains["city"])
    assert np.array_equal(together[[start + 3]], one[[3]])
    train, held = every.split("farm")
    for part, keys in (("train", train), ("held", held)):
        chosen = data.load("domains-folder", part, path=tree, domain="farm")
        assert np.array_equal(chosen[range(len(keys))], one[keys])


def test_the_message_of_plain_training_names_the_options_for_domains(tmp_path: Path) -> None:
    settings = TrainSettings(model="resnet9-cifar10", data="pacs", size=96)
    with raises("wrong_loader", name="pacs") as caught:
        load_sets(settings, tmp_path)
    assert "--task domains" in str(caught.value)
    assert "--test-domain" in str(caught.value)


def test_the_message_for_a_folder_in_place_of_a_name_names_its_layouts(tree: Path) -> None:
    with raises("unknown_name", kind="data set", name=str(tree)) as caught:
        check(str(tree))
    for words in ("image-folder", "domains-folder", "mask-folder", f"--dir {tree}"):
        assert words in str(caught.value)
