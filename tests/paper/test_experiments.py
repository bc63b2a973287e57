"""Every experiment makes the jobs that it should, at every scale."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from acclimate.corruptions import BENCHMARK
from acclimate.methods.swr_nsp import SwrNspConfig
from acclimate.paper import (
    ALIASES,
    EXPERIMENTS,
    SCALES,
    WHOLES,
    Experiment,
    Settings,
    find_experiments,
)
from acclimate.paper.published import read_toml
from acclimate.parts import Penalty, Prototypes
from acclimate.zoo import list_models
from tests.codes import raises

# Those whose jobs are known before anything is run; table 6 has tests of its own.
RUNNABLE = [n for n, own in EXPERIMENTS.items() if own.plan is None]
IMAGENET = Settings(sources={"imagenetc": "/nowhere/train"})
PUBLISHED = read_toml("published.toml")["settings"]


def _settings(name: str, scale: str) -> Settings:
    return IMAGENET if name.startswith("table-s6") and scale != "smoke" else Settings()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", RUNNABLE)
def test_jobs_build_and_are_different(name: str, scale: str) -> None:
    suite = EXPERIMENTS[name].suite(scale, (0, 1), _settings(name, scale))
    assert name in suite.title
    assert scale in suite.title
    assert suite.selection == "paper"
    assert suite.notes
    for seed in (0, 1):
        keys = Counter(entry.spec.key for entry in suite.entries if entry.spec.seed == seed)
        assert len(keys) > 1
        assert max(keys.values()) == 1, "two cells of a table are the same job"
    labels = Counter((entry.group, entry.label) for entry in suite.entries)
    assert set(labels.values()) == {2}, "a label stands for one job and its seeds"


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_full_scale_has_every_published_cell(name: str) -> None:
    experiment = EXPERIMENTS[name]
    entries = experiment.suite("full", (0,), _settings(name, "full")).entries
    made = {(e.axes["setting"], e.axes["row"], e.axes["column"]) for e in entries}
    assert all(entry.group == entry.axes["setting"] for entry in entries)
    published = experiment.published
    by_job = experiment.kind in ("jobs", "severities")
    for setting, rows in published.rows.items():
        for row in rows:
            if row == "TTT++" or setting == "ImageNet-C, WRN-40-2":
                continue  # need what is not public; the notes say so
            columns = published.columns if by_job else ("mean",)
            columns = ("error",) if experiment.kind == "passes" else columns
            for column in columns:
                if experiment.kind == "severities" and column == "mean":
                    continue
                assert (setting, row, column) in made, (setting, row, column)


def test_the_full_scale_has_the_papers_settings() -> None:
    """What the paper states is what a job of "ours" has, by whatever way it got there."""
    for entry in EXPERIMENTS["table-1b"].suite("full").entries:
        spec = entry.spec
        protocol = spec.get_protocol()
        name = "resnet50_batch" if "ResNet-50" in entry.group else "wide_resnet_batch"
        assert protocol.batch_size == PUBLISHED[name]
        assert (protocol.stream, protocol.epochs, protocol.episodic) == ("reset_each", 1, False)
        assert (spec.severities, spec.corruptions, spec.images) == ((5,), None, None)
        assert spec.model in list_models()
        assert spec.prepare.images is None
        if spec.method != "swr_nsp":
            continue
        config = spec.get_config()
        assert isinstance(config, SwrNspConfig)
        for option in ("strength", "temperature", "consistency", "lr", "main_confidence"):
            assert getattr(config, option) == PUBLISHED[option]
        for option in ("main_diversity", "aux_confidence", "aux_diversity"):
            assert getattr(config, option) == PUBLISHED[option]
        assert (config.optimizer, config.statistics, config.anchor) == ("adam", "batch", "previous")
        parts = spec.prepare.options()
        penalty = parts.get("penalty", Penalty())
        assert penalty.n_samples == PUBLISHED["penalty_samples"]
        assert penalty.exponent == PUBLISHED["penalty_exponent"]
        prototypes = parts.get("prototypes", Prototypes())
        assert prototypes.epochs == PUBLISHED["projector_epochs"]
        assert prototypes.width == PUBLISHED["projector_width"]
        assert prototypes.momentum == PUBLISHED["prototype_momentum"]
        assert (prototypes.depth_for(10), prototypes.depth_for(100)) == (0, 2)


def test_imagenet_has_its_own_settings() -> None:
    entries = EXPERIMENTS["table-s6a"].suite("full", (0,), IMAGENET).entries
    (ours,) = [entry.spec for entry in entries if entry.spec.method == "swr_nsp"]
    config = ours.get_config()
    assert isinstance(config, SwrNspConfig)
    assert config.strength == PUBLISHED["imagenet_strength"]
    assert config.lr == PUBLISHED["imagenet_lr"]
    assert ours.get_protocol().batch_size == PUBLISHED["imagenet_batch"]
    assert ours.prepare.source == "/nowhere/train"
    with raises("missing_option", option="sources"):
        EXPERIMENTS["table-s6a"].suite("full")
    models = {"ImageNet-C, WRN-40-2": "mine:wrn"}
    given = Settings(models=models, sources=IMAGENET.sources)
    groups = {entry.group for entry in EXPERIMENTS["table-s6a"].suite("full", (0,), given).entries}
    assert groups == {"ImageNet-C, WRN-40-2", "ImageNet-C, ResNet-50"}


def test_the_small_scale_says_what_it_leaves_out() -> None:
    whole = EXPERIMENTS["table-1b"].suite("small")
    assert {entry.spec.seed for entry in whole.entries} == {0}
    (ours,) = [entry.spec for entry in whole.entries if entry.label == "Ours"]
    assert (ours.model, ours.data, ours.images) == ("resnet20-cifar10", "cifar10c", None)
    assert ours.corruptions is None
    assert len({entry.label for entry in whole.entries}) > 18
    subset = EXPERIMENTS["table-3"].suite("small")
    assert {entry.group for entry in subset.entries} == {
        "CIFAR-100-C, ResNet-32",
        "CIFAR-10-C, ResNet-20",
    }
    assert {entry.spec.seed for entry in subset.entries} == {0, 1, 2}
    chosen = subset.entries[0].spec.corruptions
    assert chosen is not None
    assert set(chosen) < set(BENCHMARK)
    for text in (*chosen, "first 1000 images", "10000 source images", "stands in for"):
        assert text in subset.notes


def test_rows_can_be_picked() -> None:
    asked = Settings(rows=("Source", "TENT"))
    suite = EXPERIMENTS["table-1b"].suite("smoke", None, asked)
    assert [entry.label for entry in suite.entries] == ["Source", "TENT"]
    assert "Only these rows were run: Source, TENT." in suite.notes


def test_what_is_for_several_domains_is_refused_elsewhere() -> None:
    for option, value in {"trials": 2, "selection": "oracle"}.items():
        with raises("not_applicable", option=option):
            EXPERIMENTS["table-2"].suite("smoke", None, Settings(**{option: value}))
    with raises("out_of_range", option="trials", found=0):
        Settings(trials=0)


def test_experiments_share_jobs() -> None:
    """What several tables have in common is the same job, so that it is run once."""
    of = {
        name: {entry.spec.key for entry in EXPERIMENTS[name].suite("small", (0,)).entries}
        for name in ("table-2", "table-4a", "table-4b", "table-4c", "table-s1", "table-3")
    }
    common = set.intersection(*of.values())
    assert len(common) == 1


def test_rows_differ_in_what_they_should() -> None:
    def find(name: str, scale: str = "full") -> dict[str, list[str]]:
        entries = EXPERIMENTS[name].suite(scale, (0,)).entries
        return {str(e.axes["column"]): [str(e.spec.to_dict())] for e in entries}

    two = {e.label: e.spec for e in EXPERIMENTS["table-2"].suite("full").entries}
    assert {spec.method for spec in two.values()} == {"infomax", "nsp", "swr", "swr_nsp"}
    assert two["Main, lr 1e-4"].get_config().to_dict()["lr"] == 1e-4
    last, only = list(two.values())[-1], list(two.values())[-2]
    assert (last.options, only.options["consistency"]) == ({"lr": 1e-3}, 0.0)
    assert "'exponent': 3.0" in find("fig-s2")["d"][0]
    assert "horizontal_flip" in find("fig-s2")["f"][0]
    assert "'n_samples': 4096" in find("fig-s1")["4096"][0]
    assert "'predictor': 'prototypes'" in find("table-s3")["NSP"][0]
    assert "'anchor': 'source'" in find("table-s5")["frozen"][0]
    assert "'source': 'classifier'" in find("table-s4")["θ_c"][0]
    assert "'train_projector': True" in find("table-4c")["fine-tuned"][0]
    assert "'severities': [3]" in find("table-1c")["3"][0]


def test_only_oracles_see_labels() -> None:
    for name in ("fig-1", "table-5"):
        for entry in EXPERIMENTS[name].suite("full").entries:
            assert entry.spec.reveal_labels == (entry.spec.method == "supervised")
            assert ("oracle" in entry.axes["mark"]) == (entry.spec.method == "supervised")


def test_settings_change_a_scale(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"not looked into here")
    settings = Settings(
        weights={"resnet20-cifar10": str(file)},
        corruptions=("fog", "snow"),
        images=100,
        only="CIFAR-10-C",
    )
    entries = EXPERIMENTS["table-3"].suite("small", (0,), settings).entries
    assert {entry.group for entry in entries} == {"CIFAR-10-C, ResNet-20"}
    for entry in entries:
        assert entry.spec.weights == str(file)
        assert (entry.spec.corruptions, entry.spec.images) == (("fog", "snow"), 100)


def test_a_head_brings_ttt_pp_in(tmp_path: Path) -> None:
    file = tmp_path / "head.safetensors"
    file.write_bytes(b"not looked into here")
    given = Settings(heads={"resnet50-cifar100": str(file)}, only="ResNet-50")
    specs = {e.label: e.spec for e in EXPERIMENTS["table-1a"].suite("full", (0,), given).entries}
    assert specs["TTT++"].prepare.contrast_head == str(file)
    assert "head_scale" not in specs["TFA"].options
    assert specs["Ours"].prepare.contrast_head is None
    without = {e.label: e.spec for e in EXPERIMENTS["table-1a"].suite("full").entries}
    assert "TTT++" not in without
    assert without["TFA"].options["head_scale"] == 0.0


@pytest.mark.parametrize(
    ("option", "kind", "name", "meant"),
    [
        ("weights", "weights", "resnet2-cifar10", "resnet20-cifar10"),
        ("models", "model", "ImageNet-C, WRN", "ImageNet-C, WRN-40-2"),
        ("data", "data", "imagenet-c", "imagenetc"),
    ],
)
def test_names_that_nothing_has_are_refused(option: str, kind: str, name: str, meant: str) -> None:
    with raises("unknown_name", kind=kind, name=name, known=lambda known: meant in known):
        Settings(**{option: {name: "x"}})  # type: ignore[arg-type]


def test_other_refusals() -> None:
    with raises("unknown_name", kind="scale", name="smok", known=SCALES):
        EXPERIMENTS["table-2"].suite("smok")
    there = ("CIFAR-100-C, ResNet-32", "CIFAR-10-C, ResNet-20")
    with raises("unknown_name", kind="setting", name="MNIST", known=there):
        EXPERIMENTS["table-3"].suite("small", (0,), Settings(only="MNIST"))


def test_names() -> None:
    def ids(name: str) -> list[str]:
        return [experiment.id for experiment in find_experiments(name)]

    assert ids("table-1b") == ["table-1b"]
    assert ids("Table_1B") == ["table-1b"]
    assert ids("table-4") == ["table-4a", "table-4b", "table-4c"]
    for number, own in enumerate(range(1, 9), start=7):
        assert ids(f"table-{number}") == ids(f"table-s{own}")
    for number, own in enumerate(range(1, 4), start=7):
        assert ids(f"fig-{number}") == ids(f"figure-s{own}") == [f"fig-s{own}"]
    assert ids("table-12a") == ["table-s6a"]
    assert not set(ALIASES) & set(EXPERIMENTS)
    assert not set(WHOLES) & set(EXPERIMENTS)
    with raises("unknown_name", kind="experiment", known=lambda known: "table-1b" in known):
        find_experiments("tabel-1b")


def test_an_experiment_alone_has_nothing() -> None:
    assert Experiment(id="table-2", shows="any").claims == ()
