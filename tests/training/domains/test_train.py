"""Training on several domains: what is minimised, on which images, and which weights are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.data.catalog import SETS
from acclimate.data.domain_choice import split_keys
from acclimate.data.domains import DomainSet, load_domains
from acclimate.errors import AcclimateError, BadInput, InvalidConfig
from acclimate.functional.rng import generator_at, seed_of
from acclimate.storage import read_file, write_file
from acclimate.training import DomainSettings
from acclimate.training import train as train_model
from acclimate.training.checkpoint import last_path, log_path
from acclimate.training.domains.task import (
    VIEWS,
    DomainObjective,
    DomainTask,
    minibatches,
    pick_images,
    split_domains,
)
from acclimate.training.trainer import Trained
from acclimate.zoo.catalog import CATALOG
from acclimate.zoo.named import load_trained
from tests.cli_models import CLASSES, tiny_cnn
from tests.codes import raises, warns
from tests.training.domains.samples import DOMAINS, make_set, make_settings, make_tree


def weights(path: Path) -> dict[str, Tensor]:
    return read_file(path, "zoo")[0]


def train(tmp_path: Path, name: str = "out", **changes: Any) -> Any:
    data = changes.pop("data_set", None) or make_set()
    options = changes.pop("options", {})
    out = tmp_path / f"{name}.safetensors"
    return train_model(make_settings(**changes), out, device="cpu", data=data, **options)


def train_by_hand(settings: DomainSettings, data: DomainSet) -> nn.Module:
    """Return the model after all steps, by a loop of its own over the same images."""
    model, hparams = tiny_cnn(), settings.hparams
    optimizer = torch.optim.Adam(model.parameters(), hparams.lr, weight_decay=hparams.weight_decay)
    names = [name for name in data.domains if name not in settings.held_out]
    with torch.random.fork_rng():
        for step in range(settings.steps):
            images, labels = [], []
            for name in names:
                domain = data.domains[name]
                keys, _ = split_keys(len(domain), settings.trial_seed, DOMAINS.index(name))
                picks = pick_images(len(keys), hparams.batch_size, settings.seed, step, name)
                x, y = next(domain.batches([torch.tensor(keys)[picks]]))
                images.append(x)
                labels.append(y)
            model.train()
            model[1].eval()
            torch.manual_seed(seed_of(settings.seed, "layers", step, 0))
            draws = generator_at(settings.seed, "augmentation", step, 0)
            x = VIEWS(torch.cat(images) / 255, draws)
            features = F.dropout(model[:6](x), hparams.dropout)
            logits = model[6](features)
            loss = F.cross_entropy(logits, torch.cat(labels))
            if settings.objective == "coral":
                a, b = features.split(hparams.batch_size)
                means = (a.mean(0) - b.mean(0)).pow(2).mean()
                covariances = (torch.cov(a.T) - torch.cov(b.T)).pow(2).mean()
                loss = loss + hparams.gamma * (means + covariances)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "erm"},
        {"objective": "coral", "gamma": 3.0, "trial_seed": 2, "seed": 5},
    ],
)
def test_weights_are_those_of_a_loop_by_hand(tmp_path: Path, changes: dict[str, Any]) -> None:
    train(tmp_path, **changes, options={"keep_last": True})
    expected = train_by_hand(make_settings(**changes), make_set()).state_dict()
    found = weights(last_path(tmp_path / "out.safetensors"))
    start = tiny_cnn().state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)
        if "running" in name or "num_batches" in name:  # BatchNorm's statistics stay
            assert torch.equal(found[name], start[name])
        else:
            assert not torch.equal(found[name], start[name])


def test_the_same_again_gives_the_same_and_a_seed_something_else(tmp_path: Path) -> None:
    first = train(tmp_path, "a")
    torch.rand(3)  # whatever else the process draws has no influence
    second = train(tmp_path, "b")
    other = train(tmp_path, "c", seed=1)
    one, two, three = (weights(result.path) for result in (first, second, other))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["0.weight"], three["0.weight"])

    def figures(result: Any) -> list[dict[str, Any]]:
        return [{**check, "minutes": 0} for check in result.checks]

    assert figures(first) == figures(second)


def test_minibatches_are_balanced_and_depend_on_their_place_alone() -> None:
    data = make_set(30)
    data.domains["farm"] = make_set(10).domains["farm"]
    batches = list(minibatches(data.domains, 8, 3, range(120)))
    assert len(batches) == 120
    for images, labels in batches:
        assert [len(x) for x in images] == [8, 8, 8]
        assert [len(y) for y in labels] == [8, 8, 8]
    # A run that begins later, or with other domains, sees the same images.
    later = list(minibatches({"farm": data.domains["farm"]}, 8, 3, range(57, 120)))
    for (images, _), (others, _) in zip(batches[57:], later, strict=True):
        assert torch.equal(images[1], others[0])
    # Two devices share a minibatch.
    halves = [
        next(minibatches(data.domains, 8, 3, range(1), lambda picks, rank=rank: picks[rank::2]))
        for rank in (0, 1)
    ]
    for domain in range(3):
        x = torch.stack([halves[0][0][domain], halves[1][0][domain]], dim=1).flatten(0, 1)
        assert torch.equal(x, batches[0][0][domain])
    # Images are drawn evenly, with replacement: more than there are, in one batch.
    picks = torch.cat([pick_images(10, 32, 0, step, "farm") for step in range(200)])
    counts = torch.bincount(picks, minlength=10)
    assert counts.min() > 500
    assert len(pick_images(3, 20, 0, 0, "farm")) == 20


class Forbidden:
    """A domain that must not be looked at."""

    classes = CLASSES
    description: dict[str, Any] = {"n": 20}  # noqa: RUF012
    labels = np.zeros(20, np.int64)
    unreadable: dict[Path, str] = {}  # noqa: RUF012

    def __len__(self) -> int:
        return 20

    def batches(self, picks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        raise AssertionError("the test domain was read")

    def readable(self) -> list[int]:
        raise AssertionError("the test domain was read")


def test_the_domain_held_out_is_not_looked_at(tmp_path: Path) -> None:
    data = make_set()
    data.domains["shore"] = Forbidden()
    result = train(tmp_path, data_set=data)
    assert list(result.validation) == ["city", "farm"]
    _, card = read_file(result.path, "zoo")
    assert card["training"]["data"]["held_out"] == ["shore"]
    assert card["training"]["statistics"] == "frozen"
    with pytest.raises(AssertionError, match="the test domain was read"):
        train(tmp_path, "other", data_set=data, test_domain="farm")
    # Two are held out for a leave-one-domain-out validation, in whatever order.
    pair = train(tmp_path, "pair", objective="erm", data_set=data, test_domain=("shore", "farm"))
    assert list(pair.validation) == ["city"]
    one, two = (
        make_settings(objective="erm", test_domain=names)
        for names in (("farm", "shore"), ("shore", "farm"))
    )
    assert one == two
    with raises("duplicate", name="farm"):
        train(tmp_path, "twice", objective="erm", data_set=data, test_domain=("farm", "Farm"))


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [([10.0, 30.0, 20.0], 4), ([30.0, 30.0, 20.0], 2), ([10.0, 20.0, 20.1], 6)],
)
def test_the_checkpoint_is_chosen_on_the_training_domains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accuracies: list[float], best: int
) -> None:
    left = iter(accuracies)

    def measure(task: DomainTask) -> dict[str, float]:
        mean = next(left)
        assert [len(part) for part in task._held.values()] == [4, 4]
        return {"city": mean - 5, "farm": mean + 5}

    monkeypatch.setattr(DomainTask, "measure", measure)
    result = train(tmp_path, options={"keep_last": True})
    assert result.step == best
    assert result.mean == max(accuracies)
    assert [check["step"] for check in result.checks] == [2, 4, 6]
    monkeypatch.undo()
    # The weights are those of a run that ends there.
    train(tmp_path, "short", steps=best, check_every=best, options={"keep_last": True})
    expected = weights(last_path(tmp_path / "short.safetensors"))
    found = weights(result.path)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert len(log_path(result.path).read_text().splitlines()) == 3


def test_validation_is_the_accuracy_on_what_is_held_out(tmp_path: Path) -> None:
    data = make_set()
    result = train(tmp_path)
    model = load_trained(result.path)
    for name in ("city", "farm"):
        _, held = data.split(name)
        x, y = next(data.domains[name].batches([torch.tensor(held)]))
        with torch.no_grad():
            right = (model(x / 255).argmax(dim=1) == y).double().mean()
        assert result.validation[name] == pytest.approx(100 * float(right))


def test_a_head_of_other_classes_is_replaced(tmp_path: Path) -> None:
    model = "tests.training.domains.samples:seven_classes"
    result = train(tmp_path, model=model)
    loaded = load_trained(result.path)
    assert loaded(torch.rand(2, 3, 8, 8)).shape == (2, len(CLASSES))
    assert not loaded.training
    found = weights(result.path)
    assert found["6.weight"].shape == (4, 24)
    assert all(torch.equal(loaded.state_dict()[name], found[name]) for name in found)
    again = weights(train(tmp_path, "again", model=model).path)
    assert torch.equal(found["6.weight"], again["6.weight"])
    # Weights of another number of classes may also be a file.
    torch.save(tiny_cnn().state_dict(), tmp_path / "first.pt")
    begun = train(
        tmp_path,
        "begun",
        weights=str(tmp_path / "first.pt"),
        model="tests.cli_models:tiny_cnn",
        lr=1e-12,
    )
    assert torch.allclose(weights(begun.path)["0.weight"], tiny_cnn()[0].weight, atol=1e-6)


@pytest.mark.slow
def test_models_of_the_zoo_and_the_built_in_one(tmp_path: Path) -> None:
    short = {"steps": 1, "check_every": 1, "images": 20, "data": "builtin-domains"}
    for model in ("resnet9-cifar10", "builtin"):
        settings = make_settings(model=model, test_domain="plain", **short)
        out = tmp_path / f"{model}.safetensors"
        result = train_model(settings, out, device="cpu")
        assert list(result.validation) == ["negative", "sketch", "woven"]
        with torch.no_grad():
            assert load_trained(out)(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_statistics_stay_frozen_and_dropout_is_before_the_head() -> None:
    model = tiny_cnn()
    trained = Trained(model, DomainObjective("6", 0.0, 0.5), freezes_statistics=True)
    trained.train()
    assert not model[1].training
    assert model[3].training
    before = {name: tensor.clone() for name, tensor in model[1].named_buffers()}
    model[3].p = 0.0
    seen: list[Tensor] = []
    model[6].register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    draws = torch.Generator().manual_seed(0)
    x = [torch.randint(256, (50, 3, 8, 8), dtype=torch.uint8, generator=draws)] * 2
    y = [torch.zeros(50, dtype=torch.int64)] * 2
    loss, penalty = trained(x, y, draws)
    assert penalty == 0
    loss.backward()
    assert model[1].weight.grad is not None  # what BatchNorm learns is trained
    assert 0.3 < float((seen[0] == 0).float().mean()) < 0.9
    trained.eval()
    trained(x, y, draws)
    assert float((seen[1] == 0).float().mean()) < 0.3
    assert all(torch.equal(before[name], tensor) for name, tensor in model[1].named_buffers())


def test_images_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "mine")
    torn = root / "farm" / "cat" / "000.png"
    torn.write_bytes(b"no image")
    settings = make_settings(data=str(root), size=8, batch_size=16)
    with warns("unreadable_images", paths=(torn,)):
        result = train_model(settings, tmp_path / "out.safetensors", device="cpu")
    assert list(result.unreadable) == [str(torn)]
    _, card = read_file(result.path, "zoo")
    assert card["training"]["unreadable"] == result.unreadable


def test_broken_files_do_not_end_a_run_that_is_under_way(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "mine", dict.fromkeys(DOMAINS, 24))
    data = load_domains(str(root), size=8)
    names = [name for name in data.domains if name != "city"]
    torn = [root / name / "cat" / f"{n:03}.png" for name in names for n in (0, 4)]
    for path in torn:
        path.write_bytes(b"no image")
    settings = make_settings(data=str(root), size=8, batch_size=16, test_domain="city")
    with warns("unreadable_images") as caught:
        train, held = split_domains(load_domains(str(root), size=8), names, 0)
    assert sorted(path for warning in caught for path in warning.paths) == sorted(torn)
    assert [len(train[name]) + len(held[name]) for name in names] == [22, 22]
    with warns("unreadable_images"):
        result = train_model(settings, tmp_path / "out.safetensors", device="cpu")
    assert sorted(result.unreadable) == sorted(map(str, torn))
    cats = sorted((root / "farm" / "cat").iterdir())
    for path in cats:
        path.write_bytes(b"no image")
    with warns("unreadable_images"), raises("unreadable_images", paths=tuple(cats)):
        train_model(settings, tmp_path / "other.safetensors", device="cpu")


@pytest.mark.parametrize(
    ("changes", "kind", "code", "about"),
    [
        (
            {"objective": "corla"},
            InvalidConfig,
            "invalid_options",
            {"problems": lambda found: set(found) == {"objective"}},
        ),
        (
            {"data": "pcas"},
            BadInput,
            "unknown_name",
            {
                "kind": "data set",
                "name": "pcas",
                "known": tuple(name for name, own in SETS.items() if own.has_domains),
            },
        ),
        ({"test_domain": ()}, BadInput, "missing_option", {"option": "test_domain"}),
        ({"test_domain": ("a", "a")}, BadInput, "duplicate", {"name": "a"}),
        (
            {"pretrained": True, "weights": "a.pt"},
            InvalidConfig,
            "conflicting_options",
            {"options": ("pretrained", "weights")},
        ),
        ({"objective": "erm", "gamma": 1.0}, InvalidConfig, "not_applicable", {"option": "gamma"}),
        (
            {"steps": 0},
            InvalidConfig,
            "invalid_options",
            {"problems": lambda found: set(found) == {"steps"}},
        ),
        (
            {"lr": -1.0},
            InvalidConfig,
            "invalid_options",
            {"problems": lambda found: set(found) == {"lr"}},
        ),
        (
            {"dropout": 1.0},
            InvalidConfig,
            "invalid_options",
            {"problems": lambda found: set(found) == {"dropout"}},
        ),
        ({"batch_size": 1}, InvalidConfig, "out_of_range", {"option": "batch_size", "found": 1}),
        (
            {"batch_size": 5, "devices": 2},
            InvalidConfig,
            "out_of_range",
            {"option": "batch_size", "found": 5},
        ),
        (
            {"precision": "8"},
            InvalidConfig,
            "invalid_options",
            {"problems": lambda found: set(found) == {"precision"}},
        ),
    ],
)
def test_settings_that_make_no_sense(
    changes: dict[str, Any], kind: type[AcclimateError], code: str, about: dict[str, Any]
) -> None:
    with raises(code, kind, **about):
        make_settings(**changes)


def test_runs_that_make_no_sense(tmp_path: Path) -> None:
    with raises("unknown_name", kind="domain", name="shor", known=DOMAINS):
        train(tmp_path, test_domain="shor")
    with raises("too_few_domains", expected=2, found=1):
        train(tmp_path, data_set=make_set(domains=("city", "shore")))
    with raises("too_few_domains", expected=1, found=0):
        train(tmp_path, objective="erm", test_domain=DOMAINS)
    # The first step of Adam moves a weight by the whole rate: layers behind each other overflow.
    with raises("diverged", step=2):
        train(tmp_path, lr=1e30, batch_size=8)
    with raises("unknown_name", kind="model", name="resnet51", known=tuple(CATALOG)):
        train(tmp_path, "other", model="resnet51")
    plain = tmp_path / "plain.safetensors"
    write_file(plain, "zoo", {}, {"name": "resnet9-cifar10"})
    with raises("other_kind", path=plain, found="classification", expected="domains"):
        load_trained(plain)


def test_hyper_parameters_are_those_of_the_trial_unless_given() -> None:
    plain = DomainSettings(objective="coral", model="resnet50", data="pacs", test_domain="photo")
    assert plain.hparams.lr == 5e-5
    assert plain.hparams.batch_size == 32
    drawn = replace(plain, hparams_seed=4, trial_seed=1)
    assert drawn.hparams != plain.hparams
    assert drawn.to_dict()["lr"] == drawn.hparams.lr
    given = replace(drawn, lr=1e-3)
    assert given.hparams == replace(drawn.hparams, lr=1e-3)
    assert given.command == (
        "acclimate train --task domains --model resnet50 --data pacs --objective coral "
        "--test-domain photo --lr 0.001 --hparams-seed 4 --trial-seed 1"
    )
