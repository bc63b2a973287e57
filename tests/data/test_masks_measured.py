"""Sets with masks as the data of comparisons and jobs, and what comes out of those."""

from __future__ import annotations

import csv
import io
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate.bench import Entry, JobSpec, Outcome
from acclimate.bench.run_folder import RunFolder
from acclimate.bench.suite import read_outcome
from acclimate.builtin.scene_model import load_scene_model
from acclimate.data import SETS, FolderStore, corrupt, load, request
from acclimate.data.loading import Preparation, load_data
from acclimate.data.masks import guess_set
from acclimate.data.request import Request
from acclimate.report import error_table, render_csv, summarize
from acclimate.report.facts import protocol_facts
from acclimate.report.tables import caption
from acclimate.streams import Domain
from acclimate.training import SegmentationSettings, train
from acclimate.zoo.named import load_named
from acclimate.zoo.segmentation import whitening_layers
from tests.bench.jobs import run_once
from tests.codes import raises, warns
from tests.segmentation.samples import COUNTS, make_camvid, make_cityscapes, make_folder

SPEC: dict[str, Any] = {
    "model": "builtin-scenes",
    "data": "builtin-scenes",
    "corruptions": ("fog", "contrast"),
    "images": 4,
    "preset": "cityscapes",
    "protocol": {"batch_size": 2},
    "prepare": {"images": 8, "parts": {"penalty": {"n_samples": 4}}},
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "camvid", replace(SETS["camvid"], splits=COUNTS))


def take_all(domain: Domain) -> tuple[torch.Tensor, torch.Tensor]:
    return domain.take(torch.arange(len(domain)))


def assert_same(domain: Domain, other: Domain) -> None:
    for own, expected in zip(take_all(domain), take_all(other), strict=True):
        assert torch.equal(own, expected)


def test_scenes_are_spoiled_as_they_are_loaded() -> None:
    data = load_data("builtin-scenes", Request(corruptions=("fog",), severities=(1, 5), n=3))
    assert {name: len(own) for name, own in data.groups.items()} == {"fog": 2}
    for severity, domain in zip((1, 5), data.domains, strict=True):
        expected = load("builtin-scenes", "test", n=3, corruption="fog", severity=severity)
        assert_same(domain, expected.to_domain())
        assert domain.name == f"fog_{severity}"
        assert data.descriptions[domain.name]["source"] == "generated"
        assert len(data.descriptions[domain.name]["sha256"]) == 64
    assert (data.source, data.is_folder) == ("builtin-scenes", True)
    assert data.palette == load("builtin-scenes").palette
    assert data.clean is not None
    assert_same(data.clean(), load("builtin-scenes", "test", n=3).to_domain())
    assert load_data("builtin-scenes", Request(n=2)).title == "builtin-scenes (made by code)"


@pytest.mark.parametrize(("most", "is_array"), [(2**30, True), (0, False)])
def test_what_is_large_is_read_when_it_is_asked_for(
    most: int, is_array: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "_MOST_IN_MEMORY", most)
    looks: list[str] = []
    monkeypatch.setattr(FolderStore, "verify", lambda *_, **__: looks.append("once"))
    make_camvid(tmp_path / "camvid")
    data = load_data("camvid", Request(corruptions=("snow", "fog"), root=tmp_path))
    domain = data.domains[1]
    assert looks == ([] if is_array else ["once"])
    assert isinstance(domain.x, np.ndarray) == is_array
    assert_same(domain, load("camvid", "test", tmp_path, corruption="fog").to_domain())
    picked, _ = domain.take(torch.tensor([1]))
    assert torch.equal(picked[0], take_all(domain)[0][1])
    with raises("wrong_shape", found=(2, 16, 24)):
        _ = domain.labels


@pytest.mark.parametrize("most", [2**30, 0])
def test_an_image_without_labels_is_noted_whatever_the_size_of_the_set(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "_MOST_IN_MEMORY", most)
    base = make_folder(tmp_path / "mine", ("test",))
    Image.fromarray(np.full((16, 24), 255, np.uint8)).save(base / "test/masks/a/1.png")
    with warns("unlabelled_images", n=1) as notes:
        data = load_data(str(base), Request(corruptions=("fog", "contrast")))
    assert len(notes) == 1
    assert [about["n_unlabelled"] for about in data.descriptions.values()] == [1, 1]
    assert [len(domain) for domain in data.domains] == [3, 3]


@pytest.mark.parametrize("most", [2**30, 0])
def test_the_checksum_is_that_of_images_and_masks(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "_MOST_IN_MEMORY", most)
    base = make_folder(tmp_path / "mine", ("test",))

    def find(**options: Any) -> str:
        about = load_data(str(base), Request(**options)).descriptions
        return str(next(iter(about.values()))["sha256"])

    mask = base / "test/masks/a/1.png"
    values = np.asarray(Image.open(mask))
    found = set()
    for changed in (values, np.where(values == 1, 2, values).astype(np.uint8)):
        Image.fromarray(changed).save(mask, compress_level=0)  # so that sizes of files agree
        found |= {find(), find(corruptions=("fog",)), find(corruptions=("snow",))}
        found.add(find())
    assert len(found) == 6


def test_folders_are_known_by_their_layout(tmp_path: Path) -> None:
    made = {
        "camvid": make_camvid(tmp_path / "a"),
        "cityscapes": make_cityscapes(tmp_path / "b"),
        "mask-folder": make_folder(tmp_path / "c", ("train", "val")),
    }
    assert {guess_set(path) for path in made.values()} == set(made)
    assert guess_set(make_folder(tmp_path / "d")) == "mask-folder"
    (tmp_path / "classes" / "masks").mkdir(parents=True)
    assert guess_set(tmp_path / "classes") is None
    splits = {}
    for name, path in made.items():
        if name != "cityscapes":  # whose published counts it has not
            data = load_data(str(path))
            splits[name] = next(iter(data.descriptions.values()))["split"]
            assert data.source == str(path)
    assert splits == {"camvid": "test", "mask-folder": "val"}
    alone = load_data(str(tmp_path / "d"))
    assert (alone.source, alone.classes) == (None, ("one", "two", "three"))


def test_copies_on_disk_are_those_made_on_the_fly(tmp_path: Path) -> None:
    make_camvid(tmp_path / "camvid")
    corrupt("camvid", ["fog", "contrast"], root=tmp_path, out=tmp_path / "out", split="test")
    copies = load_data(str(tmp_path / "out"), Request(corruptions=("fog",)))
    made = load_data("camvid", Request(corruptions=("fog",), root=tmp_path))
    assert [domain.name for domain in copies.domains] == ["fog"]
    assert_same(copies.domains[0], made.domains[0])
    about = copies.descriptions["fog"]
    assert (about["source"], about["severity"]) == ("generated", 5)
    assert about["sha256"] == made.descriptions["fog"]["sha256"]
    with raises("not_found", path=tmp_path / "out" / "snow" / "5"):
        load_data(str(tmp_path / "out"), Request(corruptions=("snow",)))


def test_preparing_takes_the_training_split(tmp_path: Path) -> None:
    make_camvid(tmp_path / "camvid")
    batches, classes = Preparation(source="camvid", root=tmp_path, seed=1).open()
    assert list(classes) == list(SETS["camvid"].classes)
    seen = [(x, y) for x, y in batches]
    again = [(x, y) for x, y in batches]
    x, y = torch.cat([x for x, _ in seen]), torch.cat([y for _, y in seen])
    whole_x, whole_y = take_all(load("camvid", "train", tmp_path).to_domain())
    order = torch.randperm(3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(x, whole_x[order])
    assert torch.equal(y, whole_y[order])
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(seen, again, strict=True))
    folder = make_folder(tmp_path / "own")
    assert sum(len(y) for _, y in Preparation(source=str(folder), n=2).open()[0]) == 2


def run_jobs(tmp_path: Path, methods: tuple[str, ...]) -> list[Outcome]:
    found = []
    for method in methods:
        spec = JobSpec.from_dict({**SPEC, "method": method})
        folder = tmp_path / method
        assert run_once(spec, folder) == "finished"
        found.append(read_outcome(RunFolder(folder), Entry(spec, method), method))
    return found


def test_a_job_measures_overlaps(tmp_path: Path) -> None:
    """The same numbers as a plain loop over pixels, in the record and in the reports."""
    outcomes = run_jobs(tmp_path, ("source", "swr"))
    summary = json.loads((tmp_path / "source" / "result.json").read_text())["summary"]
    model = load_scene_model()
    for name, miou in summary["miou_by_domain"].items():
        images = load("builtin-scenes", "test", n=4, corruption=name).to_domain()
        x, y = take_all(images)
        with torch.no_grad():
            logits = torch.nn.functional.interpolate(model(x), y.shape[1:], mode="bilinear")
        predicted, counts = logits.argmax(dim=1), y != 255
        # The job predicts two images at a time: where the two best classes are as close as this,
        # other sums may be rounded to the other one.
        best = logits.topk(2, dim=1).values
        close = best[:, 0] - best[:, 1] < 1e-4  # logits of 6, rounded by 2e-6
        least, most = [], []
        for label in range(5):
            given, true = predicted == label, y == label
            sure, maybe = given & counts & ~close, (given | close) & counts
            if (maybe | true).any():
                least.append(int((sure & true).sum()) / int((maybe | true).sum()))
                most.append(int((maybe & true).sum()) / int((sure | true).sum()))
        low, high = sum(least) / len(least), sum(most) / len(most)
        assert low - 1e-12 < miou < high + 1e-12
        assert high - low < 0.01  # otherwise nothing was compared
    mean = 100 * sum(summary["miou_by_domain"].values()) / 2
    assert outcomes[0].miou == pytest.approx(mean, rel=1e-12)
    table = summarize(outcomes)
    (group,) = table.groups
    # Images are counted, not their pixels.
    n = {own["n"] for own in outcomes[0].provenance["data"].values()}
    assert protocol_facts(outcomes[0])["images"] == str(*n)
    shown = error_table(group)
    place = [column.name for column in shown.columns].index("mIoU")
    cells = [row[place] for row in shown.rows]
    assert [cell.value for cell in cells] == [outcome.miou for outcome in outcomes]
    values = [cell.value or 0.0 for cell in cells]
    assert [cell.best for cell in cells] == [value == max(values) for value in values]
    assert "mean intersection over union" in caption(group)
    lines = list(csv.DictReader(io.StringIO(render_csv(table))))
    written = [float(line["miou_percent"]) for line in lines if line["method"] == "source"]
    assert written == [100 * value for value in summary["miou_by_domain"].values()]


def test_the_order_of_files_is_shuffled() -> None:
    assert JobSpec.from_dict({**SPEC, "method": "source"}).get_protocol().order == "shuffled"


def test_weights_are_those_of_the_model_that_was_named(tmp_path: Path) -> None:
    settings = SegmentationSettings(
        model="builtin-scenes",
        data="builtin-scenes",
        images=4,
        epochs=2,
        batch_size=4,
        crop_height=16,
        crop_width=16,
        objective="isw",
        isw_warmup_epochs=1,
    )
    path = tmp_path / "model.safetensors"
    train(settings, path, device="cpu")
    assert whitening_layers(load_named("builtin-scenes+isw", path))
    differences = {"name": ("builtin-scenes+isw", "builtin-scenes")}
    with raises("other_weights", differences=differences):
        load_named("builtin-scenes", path)


def test_preparing_from_another_split_than_train_is_told(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine", ("test",))
    with warns("prepared_on_test", split="test"):
        Preparation(source=str(base)).open()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Preparation(source=str(make_folder(tmp_path / "alone"))).open()
        Preparation(source=str(make_folder(tmp_path / "both", ("train", "test")))).open()


def test_conditions_with_masks_are_given_one_by_one_and_the_message_names_them(
    tmp_path: Path,
) -> None:
    base = make_folder(tmp_path / "mine", ("dusk", "night"))
    for read in (lambda: load_data(str(base)), Preparation(source=str(base)).open):
        with raises("missing_option", option="split") as caught:
            read()
        assert f"{base} has several splits, dusk, night," in str(caught.value)
        assert f"such as {base / 'dusk'}," in str(caught.value)
    (base / "classes.txt").rename(base / "dusk" / "classes.txt")
    assert len(load_data(str(base / "dusk")).domains[0]) == 3
