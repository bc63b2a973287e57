"""Jobs of the bench engine on several domains, with models that were trained on others."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from acclimate.bench import JobSpec, Preparing, Suite
from acclimate.bench.run_folder import RunFolder
from acclimate.builtin.domains import STYLES
from acclimate.data.domain_choice import DomainChoice
from acclimate.training import DomainSettings, train
from acclimate.zoo.named import load_named
from tests.bench.jobs import run_once, stable
from tests.codes import check_coded, raises

COMMON: dict[str, Any] = {"images": 50, "trial_seed": 2}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained a little on two styles, with statistics of BatchNorm frozen."""
    out = tmp_path_factory.mktemp("weights") / "model.safetensors"
    settings = DomainSettings(
        objective="erm",
        model="builtin",
        data="builtin-domains",
        test_domain=("sketch", "woven"),
        steps=2,
        batch_size=4,
        images=50,
        trial_seed=2,
    )
    train(settings, out, device="cpu")
    return out


def make_spec(weights: Path, method: str = "swr_nsp", **changes: Any) -> JobSpec:
    trained_on = DomainChoice(names=("negative", "plain"), part="train", **COMMON)
    options = {"statistics": "source"} if method != "source" else {}
    fields: dict[str, Any] = {
        "model": "builtin",
        "weights": str(weights),
        "data": "builtin-domains",
        "domains": DomainChoice(names=("sketch",), **COMMON),
        "images": 24,
        "protocol": {"batch_size": 8, "order": "shuffled"},
        "options": options,
        "prepare": Preparing(
            parts={"penalty": {"n_samples": 4}, "prototypes": {"depth": 0}}, domains=trained_on
        ),
        **changes,
    }
    return JobSpec(method=method, **fields)


@pytest.fixture(scope="module")
def find_done(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give the folder of a method's job, which is run once and only to be read."""
    root = tmp_path_factory.mktemp("done")

    @cache
    def run(method: str) -> Path:
        assert run_once(make_spec(weights, method), root / method) == "finished"
        return root / method

    return run


def test_a_spec_comes_back_and_every_choice_changes_its_name(weights: Path) -> None:
    spec = make_spec(weights)
    assert JobSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    changed = [
        make_spec(weights, domains=DomainChoice(names=("woven",), **COMMON)),
        make_spec(weights, domains=DomainChoice(names=("sketch",), part="held", **COMMON)),
        make_spec(weights, domains=DomainChoice(names=("sketch",), images=40, trial_seed=2)),
    ]
    keys = [own.key for own in (spec, *changed)]
    assert len(set(keys)) == 4
    assert len({own.artifact_key for own in (spec, *changed)}) == 1
    other = Preparing(domains=DomainChoice(names=("plain",), part="train", **COMMON))
    assert make_spec(weights, prepare=other).artifact_key != spec.artifact_key
    with raises("unknown_option", option="name", known=lambda known: "names" in known):
        JobSpec.from_dict({"method": "source", "domains": {"name": ["sketch"]}})


def test_specs_without_domains_are_called_as_before() -> None:
    spec = JobSpec(method="tent")
    assert "domains" not in spec.to_dict()
    assert "domains" not in spec._identity()


def test_a_suite_names_domains(tmp_path: Path) -> None:
    file = tmp_path / "suite.toml"
    file.write_text(
        '[job]\ndata = "builtin-domains"\n[[rows]]\nmethod = "source"\n'
        'domains = { names = [["sketch"], ["woven", "plain"]], images = 30 }\n'
    )
    specs = [entry.spec for entry in Suite.load(file).entries]
    chosen = [spec.domains for spec in specs]
    assert chosen == [
        DomainChoice(names=("sketch",), images=30),
        DomainChoice(names=("woven", "plain"), images=30),
    ]


@pytest.mark.slow
def test_ours_runs_on_frozen_statistics_and_says_so(
    find_done: Callable[[str], Path], weights: Path, tmp_path: Path
) -> None:
    ours = find_done("swr_nsp")
    result = RunFolder(ours).read("result.json")
    assert result is not None
    origin = result["provenance"]
    assert origin["method"]["config"]["statistics"] == "source"
    assert origin["order"] == "shuffled by the seed"
    assert "seed 0" in origin["protocol_line"]
    assert list(origin["data"]) == ["sketch"]
    assert origin["n_images"] == 24
    assert result["n_batches"] == 3
    # Without batch statistics an image is classified the same whatever comes with it: the first
    # batch, from which nothing was learned yet, is as the model itself has it.
    first, same = (stable(folder)[0] for folder in (ours, find_done("source")))
    assert first["n_errors"] == same["n_errors"]
    # A mean over 8 images in single precision, whose digits are 1e-7.
    assert first["entropy"] == pytest.approx(same["entropy"], rel=1e-5)
    batch = make_spec(weights, options={})
    assert run_once(batch, tmp_path / "batch", ours.parent / "artifacts") == "finished"
    other = stable(tmp_path / "batch")[0]
    assert other["entropy"] != pytest.approx(same["entropy"], rel=1e-3)


@pytest.mark.slow
def test_a_job_that_was_stopped_goes_on_to_the_same_records(
    find_done: Callable[[str], Path], weights: Path, tmp_path: Path
) -> None:
    spec, whole = make_spec(weights), find_done("swr_nsp")
    assert run_once(spec, tmp_path, whole.parent / "artifacts", stop_after=1) == "stopped"
    assert run_once(spec, tmp_path, whole.parent / "artifacts") == "finished"
    assert stable(tmp_path) == stable(whole)


def test_seeds_change_the_order(
    find_done: Callable[[str], Path], weights: Path, tmp_path: Path
) -> None:
    for name, seed in (("b", 0), ("c", 1)):
        run_once(make_spec(weights, "source", seed=seed), tmp_path / name)
    folders = (find_done("source"), tmp_path / "b", tmp_path / "c")
    a, b, c = ([line["entropy"] for line in stable(folder)] for folder in folders)
    assert a == b
    assert a != c
    assert sum(a) == pytest.approx(sum(c), rel=1e-5)


def test_weights_of_any_model_are_found_with_their_head(weights: Path) -> None:
    model = load_named("builtin", weights)
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert model(x).shape == (2, 10)
        assert not torch.equal(model(x), load_named("builtin")(x))


@pytest.mark.parametrize(
    ("changes", "code", "about"),
    [
        ({"prepare": Preparing()}, "artifact_needed", {"methods": ("swr_nsp",)}),
        (
            {"domains": DomainChoice(names=("scetch",), images=20)},
            "unknown_name",
            {"kind": "domain", "name": "scetch", "known": tuple(STYLES)},
        ),
        ({"corruptions": ("fog",)}, "not_applicable", {"option": "corruptions"}),
    ],
)
def test_what_cannot_be_run_says_so(
    changes: dict[str, Any],
    code: str,
    about: dict[str, Any],
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caught: list[BaseException] = []
    keep = RunFolder.fail_by

    def fail_by(folder: RunFolder, error: BaseException) -> None:
        caught.append(error)
        keep(folder, error)

    monkeypatch.setattr(RunFolder, "fail_by", fail_by)
    assert run_once(make_spec(weights, **changes), tmp_path / "job") == "failed"
    (error,) = caught
    check_coded(error, code, **about)
    found = RunFolder(tmp_path / "job").read("error.json")
    assert found is not None
    assert (found["type"], found["message"]) == (type(error).__name__, str(error))
