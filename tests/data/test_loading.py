"""The data of a comparison by name: arrays, corruptions made on the fly, folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate.bench import JobSpec, Preparing
from acclimate.bench.load import Loader
from acclimate.builtin import load_split
from acclimate.corruptions import BENCHMARK, apply
from acclimate.data import load
from acclimate.data.cifar import ArraySet
from acclimate.data.cifar_c import CorruptedArraySet
from acclimate.data.loading import load_data
from acclimate.data.request import Request
from tests.cli.test_cli import run
from tests.cli_models import CLASSES
from tests.codes import raises, warns


def make_folder(root: Path, n: int = 3, size: int = 8, classes=CLASSES) -> Path:
    """Write `n` images `root/<class>/0.png` and so on; those of another `root.name` differ."""
    draws = np.random.default_rng(list(root.name.encode()))
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(n):
            pixels = draws.integers(0, 256, (size, size, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def read(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) / 255


# Sets by name -----------------------------------------------------------------------------------


def test_the_builtin_set_is_clean_or_corrupted_on_the_fly():
    data = load_data("builtin", Request(n=12))
    x, y = data.domains[0].take(torch.arange(12))
    expected = load_split("test", 12)
    assert torch.equal(x, expected[0])
    assert torch.equal(y, expected[1])
    assert (data.origin, data.source, data.is_folder) == ("made by code", "builtin", False)

    asked = Request(n=5, corruptions=("fog", "contrast"), severities=(3, 1))
    data = load_data("builtin", asked)
    assert [d.name for d in data.domains] == ["fog_1", "fog_3", "contrast_1", "contrast_3"]
    images = load("builtin", n=5).images
    x, _ = data.groups["contrast"][1].take(torch.arange(5))
    spoilt = torch.from_numpy(apply(images, "contrast", 3, 0)).permute(0, 3, 1, 2) / 255
    assert torch.equal(x, spoilt)
    assert data.title == "builtin (generated), severity 1, 3"
    about = data.descriptions["fog_3"]
    assert (about["source"], about["severity"], about["provenance"]) == (
        *("generated", 3),
        "fog: computed",
    )
    assert len(about["sha256"]) == 64
    assert len(data.clean()) == 5


def test_a_corrupted_set_has_the_fifteen_in_order_unless_others_are_asked_for(monkeypatch):
    asked, six = [], load("builtin", n=6)

    def give(entry, split, root, **options):
        asked.append((entry.name, options.get("corruption"), options.get("severity"), str(root)))
        return six

    for kind in (CorruptedArraySet, ArraySet):
        monkeypatch.setattr(kind, "open", give)
    data = load_data("cifar10c", Request(n=4, root="here"))
    assert asked == [("cifar10c", name, 5, "here") for name in BENCHMARK]
    assert [domain.name for domain in data.domains] == list(BENCHMARK)
    assert {len(domain) for domain in data.domains} == {4}
    assert data.source == "cifar10"
    assert len(data.clean()) == 4
    assert asked[-1][0] == "cifar10"
    assert list(load_data("cifar100c", Request(corruptions=("fog",))).groups) == ["fog"]


@pytest.mark.parametrize(
    ("options", "code", "data"),
    [
        (
            {"corruptions": ("fogg",)},
            "unknown_name",
            {"kind": "corruption", "name": "fogg", "known": lambda known: "fog" in known},
        ),
        ({"corruptions": ("fog", "fog")}, "duplicate", {"name": "fog"}),
        ({"severities": (3, 3)}, "duplicate", {"name": 3}),
        ({"severities": (6,)}, "out_of_range", {"option": "severities", "found": (6,)}),
        ({"severities": ()}, "out_of_range", {"option": "severities", "found": ()}),
        ({"n": 0}, "out_of_range", {"option": "images", "found": 0}),
    ],
)
def test_requests_that_cannot_be_met_are_refused(options, code, data):
    with raises(code, **data):
        Request(**options)


def test_unknown_data_is_refused_with_what_there_is(tmp_path):
    known = {"builtin", "cifar10", "cifar10c", "image-folder"}
    with raises("unknown_name", kind="data set", name="cifar10-c", known=known.issubset):
        load_data("cifar10-c")
    with raises("wrong_loader", name="image-folder"):
        load_data("image-folder")
    with raises("not_fetched", name="cifar10"):
        load_data("cifar10", Request(root=tmp_path))


# Folders ----------------------------------------------------------------------------------------


def test_a_folder_of_classes_is_one_domain_read_when_asked(tmp_path):
    root = make_folder(tmp_path / "photos")
    data = load_data(str(root))
    (domain,) = data.domains
    assert (domain.name, len(domain), data.classes) == ("photos", 12, CLASSES)
    assert data.is_folder
    x, y = domain.take(torch.tensor([11, 0, 4]))
    assert y.tolist() == [3, 0, 1]
    expected = [read(root / name) for name in ("fox/2.png", "cat/0.png", "dog/1.png")]
    assert torch.equal(x, torch.stack(expected))
    # The digest is that of names and content.
    before = data.descriptions["photos"]["sha256"]
    assert load_data(str(root)).descriptions["photos"]["sha256"] == before
    Image.new("RGB", (8, 8)).save(root / "dog" / "1.png")
    assert load_data(str(root)).descriptions["photos"]["sha256"] != before
    # Only now is the file needed.
    (root / "eel" / "0.png").write_bytes(b"gone")
    with raises("unreadable_images", paths=(root / "eel" / "0.png",)):
        domain.take(torch.tensor([6]))


def test_folders_of_folders_are_several_domains_with_the_same_classes(tmp_path):
    make_folder(tmp_path / "night", classes=("cat", "eel"))
    make_folder(tmp_path / "day", classes=("dog", "cat", "fox"))
    data = load_data(str(tmp_path))
    assert [d.name for d in data.domains] == ["day", "night"]
    assert data.classes == CLASSES
    _, y = data.domains[1].take(torch.arange(6))
    assert y.tolist() == [0, 0, 0, 2, 2, 2]
    names = ["fox", "eel", "dog", "cat"]
    data = load_data(str(tmp_path), Request(classes=names))
    _, y = data.domains[1].take(torch.arange(6))
    assert y.tolist() == [3, 3, 3, 1, 1, 1]


def test_nested_classes_are_told_from_domains_by_their_names(tmp_path):
    for name in CLASSES:
        make_folder(tmp_path / name, classes=("monday", "tuesday"))
    assert [d.name for d in load_data(str(tmp_path)).domains] == list(CLASSES)
    data = load_data(str(tmp_path), Request(classes=CLASSES))
    assert [d.name for d in data.domains] == [tmp_path.name]
    assert len(data.domains[0]) == 24


def test_corrupted_copies_of_a_folder_are_found_or_listed_in_the_message(tmp_path):
    clean, out = make_folder(tmp_path / "photos", n=2), tmp_path / "spoilt"
    words = ["--name", "contrast", "--name", "fog", "--severity", "1", "--severity", "5"]
    run("data", "corrupt", clean, "--out", out, *words, "--workers", "1")
    data = load_data(str(out))
    assert [d.name for d in data.domains] == ["contrast", "fog"]
    assert data.title == "spoilt (generated), severity 5"
    assert data.classes == CLASSES
    data = load_data(str(out), Request(corruptions=("fog",), severities=(1, 5)))
    assert [d.name for d in data.groups["fog"]] == ["fog_1", "fog_5"]
    x, _ = data.domains[1].take(torch.tensor([0]))
    pixels = np.array(Image.open(clean / "cat" / "0.png"))[None]
    spoilt = torch.from_numpy(apply(pixels, "fog", 5, 0)).permute(0, 3, 1, 2) / 255
    assert torch.equal(x, spoilt)
    with raises("not_found", path=out / "fog" / "3") as caught:
        load_data(str(out), Request(corruptions=("fog",), severities=(3,)))
    assert "contrast [1, 5], fog [1, 5]" in str(caught.value)


def test_classes_with_numbers_for_names_are_no_severities(tmp_path):
    for name in ("day", "night"):
        make_folder(tmp_path / name, classes=("1", "2", "7"))
    data = load_data(str(tmp_path))
    assert [d.name for d in data.domains] == ["day", "night"]
    assert data.classes == ("1", "2", "7")


def test_a_part_of_a_folder_is_spread_over_its_classes(tmp_path):
    data = load_data(str(make_folder(tmp_path / "photos", n=5)), Request(n=8))
    assert data.domains[0].labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_unreadable_images_are_left_out_and_named(tmp_path):
    root = make_folder(tmp_path / "photos")
    (root / "cat" / "1.png").write_bytes(b"no image")
    data = load_data(str(root))
    assert len(data.domains[0]) == 11
    assert list(data.unreadable) == [root / "cat" / "1.png"]
    assert data.domains[0].labels.tolist().count(0) == 2


def test_folders_that_do_not_fit_are_refused(tmp_path):
    root = make_folder(tmp_path / "photos", classes=("cat", "wolf"))
    with raises("class_mismatch", expected=CLASSES, found=("cat", "wolf")):
        load_data(str(root), Request(classes=CLASSES))
    with raises("not_applicable", option="corruptions"):
        load_data(str(root), Request(corruptions=("fog",)))
    make_folder(root, size=9, classes=("eel",))
    with raises("mixed_sizes", sizes=((8, 8), (9, 9))):
        load_data(str(root))
    (tmp_path / "empty").mkdir()
    with raises("no_images", path=tmp_path / "empty"):
        load_data(str(tmp_path / "empty"))


# The artifact -----------------------------------------------------------------------------------


def test_an_artifact_is_prepared_from_a_folder_or_a_set(tmp_path):
    root, photos = make_folder(tmp_path / "source", n=6), make_folder(tmp_path / "photos")
    loader = Loader(tmp_path / "artifacts", "cpu")

    def prepare(**how):
        spec = JobSpec(
            model="tests.cli_models:tiny_cnn",
            data=str(photos),
            method="swr_nsp",
            prepare=Preparing(**how),
        )
        return loader.load(spec).artifact

    with warns("few_samples", found=24, expected=1024):
        made = prepare(source=str(root))
    assert made.classes == list(CLASSES)
    assert set(made.parts) == {"penalty", "prototypes"}
    with raises("unknown_name", kind="source data set", name="cifar10c"):
        prepare(source="cifar10c")
    with raises("artifact_needed", methods=("swr_nsp",)):
        prepare()
