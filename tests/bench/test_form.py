"""Models and folders of somebody else: normalisation, logits, sizes and masks of jobs."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import acclimate
from acclimate.bench import JobSpec, Suite
from acclimate.bench.provenance import model_code_sha256
from acclimate.errors import BadInput
from acclimate.functional.inputs import NORMALIZATIONS
from acclimate.methods import METHODS
from acclimate.zoo.external import NormalizedModel
from tests.bench import models
from tests.bench.jobs import make_spec, read_lines, run_once, run_to_failure, stable
from tests.codes import check_coded, raises
from tests.segmentation.samples import make_folder

HERE = "tests.bench.test_form"
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def normalized() -> nn.Module:
    """Return the tiny classifier with the constants inside."""
    return NormalizedModel(models.tiny(), MEAN, STD).eval()


class Wordy(nn.Module):
    """Says more than the logits."""

    def __init__(self) -> None:
        super().__init__()
        inner = models.tiny()
        self.body, self.last, self.side = inner[:5], inner[5], copy.deepcopy(inner[5])  # type: ignore[index]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of two heads."""
        features = self.body(x)
        return self.side(2 * features), self.last(features)


def wordy() -> nn.Module:
    """Return the tiny classifier, hidden in another."""
    return Wordy().eval()


def make_images(folder: Path) -> Path:
    """Write images of several sizes, by class."""
    draws = np.random.default_rng(0)
    for k in range(models.N_CLASSES):
        (folder / f"c{k}").mkdir(parents=True)
        for i in range(2):
            pixels = draws.integers(0, 256, (12 + 4 * i, 12 + k, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"c{k}" / f"{i}.png")
    return folder


@pytest.mark.parametrize("method", ["tent", "swr_nsp"])
def test_constants_of_a_job_are_those_inside_of_a_model(method: str, tmp_path: Path) -> None:
    form = {"mean": list(MEAN), "std": list(STD)}
    run_once(make_spec(method, normalization=form), tmp_path / "a")
    run_once(make_spec(method, model=f"{HERE}:normalized"), tmp_path / "b")
    run_once(make_spec(method), tmp_path / "c")
    told, inside, without = (stable(tmp_path / name) for name in "abc")
    for one, other in zip(told, inside, strict=True):
        assert one["n_errors"] == other["n_errors"]
        assert one["entropy"] == pytest.approx(other["entropy"], abs=1e-5)
    assert [line["entropy"] for line in told] != [line["entropy"] for line in without]


@pytest.mark.parametrize("method", ["tent", "swr_nsp"])
def test_logits_are_where_a_job_says(method: str, tmp_path: Path) -> None:
    told = make_spec(method, model=f"{HERE}:wordy", head="last", logits_at=1)
    run_once(told, tmp_path / "a")
    run_once(make_spec(method), tmp_path / "b")
    own, plain = (
        [(line["n_errors"], line["entropy"]) for line in stable(tmp_path / name)] for name in "ab"
    )
    assert own == plain


def test_images_of_a_folder_are_brought_to_a_size(tmp_path: Path) -> None:
    folder = str(make_images(tmp_path / "images"))
    fields: dict[str, Any] = {"data": folder, "corruptions": None, "images": None}
    error = run_to_failure(make_spec("source", **fields), tmp_path / "none")
    check_coded(error, "mixed_sizes", sizes=lambda sizes: {(12, 12), (16, 21)} <= set(sizes))
    for size in (8, "8x8", "8x10"):
        run_once(make_spec("source", **fields, size=size), tmp_path / str(size))
    square, same, wide = (stable(tmp_path / name) for name in ("8", "8x8", "8x10"))
    assert square == same
    assert square != wide
    assert make_spec("source", **fields, size=8).key != make_spec("source", **fields).key


def test_masks_with_another_label_for_none(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine", ("train", "val", "test"), n=4)
    (base / "classes.txt").write_text("one\ntwo\nthree\nfour\n")
    n_labelled = 0
    for path in base.rglob("masks/a/*.png"):
        mask = np.array(Image.open(path))
        n_labelled += int((mask != 255).sum()) if "test" in path.parts else 0
        Image.fromarray(np.where(mask == 255, 99, mask).astype(np.uint8)).save(path)
    fields: dict[str, Any] = {
        "model": "tests.segmentation.test_cli_masks:tiny_net",
        "data": str(base),
        "protocol": {"batch_size": 2},
        "prepare": {"images": 2, "parts": {"penalty": {"n_samples": 2}}},
    }
    spec = JobSpec.from_dict({**fields, "method": "swr", "ignore_label": 99})
    error = run_to_failure(JobSpec.from_dict({**fields, "method": "swr"}), tmp_path / "a")
    check_coded(error, "faulty_data", faults=lambda faults: len(faults) == 4)
    assert all(": 99" in fault for fault in error.faults)
    assert run_once(spec, tmp_path / "b") == "finished"
    assert sum(line["n"] for line in read_lines(tmp_path / "b")) == n_labelled


def test_what_is_as_usual_keeps_its_name() -> None:
    """Jobs of older stores are found: new fields count only where they say something."""
    spec = make_spec("swr_nsp")
    told = JobSpec.from_dict({**spec.to_dict(), "ignore_label": 255, "normalization": None})
    assert told.key == spec.key
    named, numbers = (
        make_spec("swr_nsp", normalization=value)
        for value in ("imagenet", NORMALIZATIONS["imagenet"].to_dict())
    )
    assert named.key == numbers.key != spec.key
    assert named.artifact_key == numbers.artifact_key != spec.artifact_key
    assert JobSpec.from_dict(named.to_dict()) == named


@pytest.mark.parametrize(
    ("line", "code", "data"),
    [
        ('size = "big"', "malformed", {"option": "size", "found": "big"}),
        ("size = 1.5", "wrong_type", {"option": "size", "found": 1.5}),
        ('ignore_label = "void"', "wrong_type", {"option": "ignore_label", "found": "void"}),
        (
            'normalization = "imagnet"',
            "unknown_name",
            {"kind": "normalization", "name": "imagnet", "known": tuple(NORMALIZATIONS)},
        ),
        (
            "normalization = { mean = [0.5], std = [0.0] }",
            "out_of_range",
            {"option": "std", "found": (0.0,)},
        ),
        ("logits_at = 0.5", "wrong_type", {"option": "logits_at", "found": 0.5}),
    ],
)
def test_slips_are_told_before_anything_runs(
    line: str, code: str, data: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "suite.toml"
    file.write_text(f'title = "t"\n[job]\n{line}\n[[rows]]\nmethod = "source"\n')
    with raises(code, **data):
        Suite.load(file)


@pytest.mark.parametrize("form", [{"size": 8}, {"ignore_label": 3}])
def test_form_of_folders_is_refused_for_others(form: dict[str, int], tmp_path: Path) -> None:
    error = run_to_failure(make_spec("source", **form), tmp_path / "a")
    check_coded(error, "not_applicable", option=next(iter(form)))


def test_constants_in_a_suite_are_one_value(tmp_path: Path) -> None:
    """A list stands for several jobs elsewhere."""
    file = tmp_path / "suite.toml"
    file.write_text(
        'title = "t"\n[job]\nnormalization = { mean = [0.4, 0.5, 0.6], std = [0.2, 0.3, 0.25] }\n'
        '[[rows]]\nmethod = "source"\n'
    )
    (entry,) = Suite.load(file).entries
    found = entry.spec.get_info().normalization
    assert found is not None
    assert found.mean == MEAN
    x = torch.rand(2, 3, 4, 4)
    assert torch.equal(found.normalize(x), normalized().normalize(x))  # type: ignore[operator]


class Broken(acclimate.Method):
    """Returns logits that are not finite."""

    name = "broken"

    def step(self, x: Tensor) -> Tensor:
        """Predict nothing."""
        return self.run(x).logits * torch.nan


def test_a_job_under_guard_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "broken", Broken)
    fields: dict[str, Any] = {"images": 16, "corruptions": ("fog",)}
    plain, guarded = make_spec("broken", **fields), make_spec("broken", **fields, guard=True)
    assert plain.get_needs() == ()
    assert guarded.get_needs() == ("accuracy",)
    assert plain.key != guarded.key
    assert JobSpec.from_dict(guarded.to_dict()) == guarded
    for name, spec in {"a": plain, "b": guarded}.items():
        assert run_once(spec, tmp_path / name) == "finished"
    before, after = (stable(tmp_path / name) for name in "ab")
    assert not any(line["n_restored"] for line in before)
    assert any(line["restored"] for line in after)


OWN_MODEL = """
from tests.bench import models

def net():
    return models.tiny()
"""


def test_another_text_of_a_model_is_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "somebodys_model.py"
    file.write_text(OWN_MODEL)
    spec = make_spec("swr_nsp", model="somebodys_model:net")
    before = spec.key, spec.artifact_key
    assert before == (spec.key, spec.artifact_key)
    file.write_text(OWN_MODEL.replace("tiny()", "tiny().double()"))
    assert spec.key != before[0]
    assert spec.artifact_key != before[1]
    for ours in ("builtin", "resnet20", "acclimate.paper.efficientnet:build"):
        assert model_code_sha256(ours) is None


def test_classes_of_a_folder_may_be_named(tmp_path: Path) -> None:
    """Data that lacks a class of the model, and a file with all of them."""
    folder = make_images(tmp_path / "images")
    shutil.rmtree(folder / "c3")
    names = tmp_path / "classes.txt"
    names.write_text("".join(f"c{k}\n" for k in range(models.N_CLASSES)))
    fields: dict[str, Any] = {"data": str(folder), "corruptions": None, "images": None, "size": 8}
    error = run_to_failure(make_spec("source", **fields), tmp_path / "a")
    check_coded(error, "count_mismatch", expected=models.N_CLASSES, found=models.N_CLASSES - 1)
    named = make_spec("source", **fields, classes=str(names))
    assert run_once(named, tmp_path / "b") == "finished"
    assert named.key != make_spec("source", **fields).key
    JobSpec.from_dict({**named.to_dict(), "classes": "gone.txt"})  # a store may be read anywhere


@pytest.mark.parametrize(
    ("fields", "code", "data"),
    [
        ({"protocol": {"episodic": "no"}}, "wrong_type", {"option": "episodic", "found": "no"}),
        ({"protocol": {"epochs": True}}, "wrong_type", {"option": "epochs", "found": True}),
        ({"protocol": {"batch_size": 20.5}}, "wrong_type", {"option": "batch_size", "found": 20.5}),
        ({"protocol": {"batch_size": "20"}}, "wrong_type", {"option": "batch_size", "found": "20"}),
        (
            {"protocol": {"stream": "dirichlet", "delta": "1"}},
            "wrong_type",
            {"option": "delta", "found": "1"},
        ),
        ({"protocol": {"stream": "mixed", "order": "file"}}, "not_applicable", {"option": "order"}),
        ({"size": 0}, "out_of_range", {"option": "size", "found": (0, 0)}),
        ({"domains": "night"}, "wrong_type", {"option": "domains", "found": "night"}),
        ({"domains": {"names": "night"}}, "wrong_type", {"option": "names"}),
        ({"method": "source", "terms": {"swr": {}}}, "no_gradient_steps", {"method": "source"}),
        ({"method": "swr", "terms": {"swr": {}}}, "duplicate", {"name": "swr"}),
    ],
)
def test_values_of_another_kind_are_refused(
    fields: dict[str, Any], code: str, data: dict[str, Any]
) -> None:
    with raises(code, **data):
        JobSpec.from_dict({"method": "tent", **fields})


def test_a_folder_is_no_file_of_weights(tmp_path: Path) -> None:
    with raises("not_a_file", BadInput, path=str(tmp_path)):
        _ = make_spec("tent", weights=str(tmp_path)).key


def test_rows_without_a_label_say_what_they_are(tmp_path: Path) -> None:
    file = tmp_path / "suite.toml"
    row = '[[rows]]\nmethod = "tent"\n'
    file.write_text(
        f'title = "t"\n{row}{row}terms.swr = {{ strength = 3 }}\nguard = true\nspeed = "fast"\n'
        f"{row}options = {{ lr = 0.5 }}\nterms.nsp = [true]\n{row}guard = [true]\nlabel = 'mine'"
    )
    labels = [entry.label for entry in Suite.load(file).entries]
    assert labels == ["tent", "tent + SWR, guarded, fast", "tent + NSP", "mine"]
