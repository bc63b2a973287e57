"""Jobs of the bench engine on several domains, with models that were trained on others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from acclimate.bench import JobSpec, Preparing, Suite
from acclimate.bench.folder import JobFolder
from acclimate.data.domain_pool import DomainChoice
from acclimate.errors import ArtifactMissing, BadInput, InvalidConfig
from acclimate.training.domains import DomainSettings, train_domains
from acclimate.zoo.named import load_named
from tests.bench.jobs import run_once, stable

COMMON: dict[str, Any] = {"images": 50, "trial_seed": 2}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained a little on two styles, with statistics of BatchNorm frozen."""
    out = tmp_path_factory.mktemp("weights") / "model.safetensors"
    settings = DomainSettings(
        algorithm="erm",
        model="builtin",
        data="builtin-domains",
        test_domain=("sketch", "woven"),
        steps=2,
        batch_size=4,
        images=50,
        trial_seed=2,
    )
    train_domains(settings, out, device="cpu")
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
    with pytest.raises(InvalidConfig, match='Did you mean "names"'):
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


def test_ours_runs_on_frozen_statistics_and_says_so(weights: Path, tmp_path: Path) -> None:
    spec = make_spec(weights)
    assert run_once(spec, tmp_path / "job") == "finished"
    result = JobFolder(tmp_path / "job").read("result.json")
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
    plain = make_spec(weights, "source")
    assert run_once(plain, tmp_path / "plain") == "finished"
    first, same = (stable(tmp_path / name)[0] for name in ("job", "plain"))
    assert first["n_errors"] == same["n_errors"]
    assert first["entropy"] == pytest.approx(same["entropy"], rel=1e-5)
    batch = make_spec(weights, options={})
    assert run_once(batch, tmp_path / "batch") == "finished"
    other = stable(tmp_path / "batch")[0]
    assert other["entropy"] != pytest.approx(same["entropy"], rel=1e-3)


def test_a_job_that_was_stopped_goes_on_to_the_same_records(weights: Path, tmp_path: Path) -> None:
    spec = make_spec(weights)
    assert run_once(spec, tmp_path / "whole") == "finished"
    assert run_once(spec, tmp_path / "cut", stop_after=1) == "stopped"
    assert run_once(spec, tmp_path / "cut") == "finished"
    assert stable(tmp_path / "cut") == stable(tmp_path / "whole")


def test_seeds_change_the_order(weights: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run_once(make_spec(weights, "source", seed=seed), tmp_path / name)
    a, b, c = ([line["entropy"] for line in stable(tmp_path / name)] for name in "abc")
    assert a == b
    assert a != c
    assert sum(a) == pytest.approx(sum(c), rel=1e-5)


def test_weights_of_any_model_are_found_with_their_head(weights: Path) -> None:
    model = load_named("builtin", weights)
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert model(x).shape == (2, 10)
        assert not torch.equal(model(x), load_named("builtin")(x))


def test_what_cannot_be_run_says_so(weights: Path, tmp_path: Path) -> None:
    for name, changes, kind, says in (
        ("a", {"prepare": Preparing()}, ArtifactMissing, 'part = "train"'),
        ("b", {"domains": DomainChoice(names=("scetch",))}, BadInput, 'Did you mean "sketch"'),
        ("c", {"corruptions": ("fog",)}, BadInput, "not corrupted on the fly"),
    ):
        assert run_once(make_spec(weights, **changes), tmp_path / name) == "failed"
        error = JobFolder(tmp_path / name).read("error.json")
        assert error is not None
        assert error["type"] == kind.__name__
        assert says in error["message"]
