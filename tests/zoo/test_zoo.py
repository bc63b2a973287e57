"""Source models: the catalogue, their weights and hashes, and the command."""

from __future__ import annotations

import hashlib
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner, Result

from acclimate import zoo
from acclimate.cli.zoo import zoo as app
from acclimate.errors import (
    ArtifactMismatch,
    BadInput,
    CorruptFile,
    DownloadFailed,
    UnsuitableModel,
)
from acclimate.storage import read_file
from acclimate.zoo.catalog import CATALOG
from acclimate.zoo.readers import content_digest
from acclimate.zoo.resnet import CifarResNet
from tests.codes import raises, warns
from tests.paths import SHARED
from tests.zoo.small import add_small, saved, small_spec, small_state


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return add_small(monkeypatch, tmp_path)


# Hashes and the folder of imported weights ------------------------------------------------------


def test_known_weights_are_told_from_others(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published, other = small / "published.pt", small / "other.pt"
    torch.save(small_state(), published)
    torch.save(small_state(seed=2), other)
    digest = hashlib.sha256(published.read_bytes()).hexdigest()
    for known in (digest, digest[:8]):
        monkeypatch.setitem(CATALOG, "small", small_spec(sha256=known))
        zoo.load("small", published)
        with raises("weights_differ", ArtifactMismatch, name="small") as caught:
            zoo.load("small", other)
        check_listed(caught.value, known, hashlib.sha256(other.read_bytes()).hexdigest())
    zoo.load("small", other, check_hash=False)
    # The same weights in another kind of file are known by their content.
    content = content_digest(zoo.load("small", published))
    monkeypatch.setitem(CATALOG, "small", small_spec(sha256=digest, content_sha256=content))
    save_file(small_state(), small / "same.safetensors")
    zoo.load("small", small / "same.safetensors")
    with raises("weights_differ", ArtifactMismatch, name="small") as caught:
        zoo.load("small", other)
    other_content = content_digest(zoo.load("small", other, check_hash=False))
    check_listed(caught.value, content, other_content)


def check_listed(error: Exception, *checksums: str) -> None:
    """Check that the message lists these, so that people can compare them."""
    assert set(checksums) <= set(re.findall(r"\b[0-9a-f]{8,64}\b", str(error)))


def test_importing_writes_the_same_file_again_and_load_finds_it(small: Path) -> None:
    source = saved(small, {**small_state(), "sub_block1.x": torch.ones(1)})
    with raises("not_found", BadInput, path=small / "data" / "zoo" / "small.safetensors"):
        zoo.load("small")
    path = zoo.import_checkpoint("small", source)
    assert path == small / "data" / "zoo" / "small.safetensors"
    first = path.read_bytes()
    assert zoo.import_checkpoint("small", source).read_bytes() == first
    _, card = read_file(path, "zoo")
    assert card["source_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert card["left_out"] == ["sub_block1.x"]
    assert card["architecture"] == "WRN-10-1"
    direct = zoo.load("small", source).state_dict()
    loaded = zoo.load("small").state_dict()
    assert direct.keys() == loaded.keys()
    assert all(torch.equal(direct[name], loaded[name]) for name in direct)
    # The imported file can itself be imported elsewhere: the card keeps the first origin.
    again = zoo.import_checkpoint("small", path, root=small / "elsewhere")
    assert read_file(again, "zoo")[1]["source_sha256"] == card["source_sha256"]
    damaged = bytearray(first)
    damaged[-5] ^= 1
    path.write_bytes(damaged)
    with raises("altered_file", CorruptFile, path=path):
        zoo.load("small")


def test_weights_imported_on_purpose_are_taken_with_a_warning(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOG, "small", small_spec(sha256="0" * 64))
    source = saved(small, small_state())
    with raises("weights_differ", ArtifactMismatch, name="small"):
        zoo.import_checkpoint("small", source)
    zoo.import_checkpoint("small", source, check_hash=False)
    with warns("weights_differ", name="small"):
        zoo.load("small")
    zoo.load("small", check_hash=False)


def test_imported_weights_have_a_name(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zoo.import_checkpoint("small", saved(small, small_state()))
    monkeypatch.setitem(CATALOG, "twin", small_spec(name="twin"))
    with raises("other_weights", ArtifactMismatch, differences={"name": ("small", "twin")}):
        zoo.load("twin", path)


def test_downloads_are_fetched_imported_and_cleared_away(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fetch(file: Any, folder: Path, progress: Any, notify: Any) -> Path:
        asked.append(file)
        folder.mkdir(parents=True)
        torch.save(small_state(), folder / file.name)
        return Path(folder / file.name)

    monkeypatch.setattr("acclimate.data.download.fetch", fetch)
    path = zoo.download("small")
    assert asked[0].addresses == ("https://example.org/small.pt",)
    assert asked[0].checksum is None
    assert path.is_file()
    assert not list((small / "data").rglob("*.pt"))
    zoo.load("small")
    for get in (zoo.download, zoo.load):
        with raises("no_weights", BadInput, name="resnet18-cifar10"):
            get("resnet18-cifar10")


def test_a_failed_download_has_asked_all_addresses(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("acclimate.data.download.fetch", partial(fail_to_fetch, asked))
    with raises("download_failed", DownloadFailed, reasons=("no mirror",)):
        zoo.download("wrn40-2")
    first, second = asked[0].addresses
    assert first == zoo.get_spec("wrn40-2-cifar10").address
    assert second.startswith("https://drive.usercontent.google.com/download?id=1wy7gSRsUZzCzj8Q")
    with raises("download_failed", DownloadFailed):
        zoo.download("resnet20-cifar10")
    assert asked[1].addresses == (zoo.get_spec("resnet20-cifar10").address,)


def fail_to_fetch(asked: list[Any], file: Any, *_: Any) -> Path:
    asked.append(file)
    raise DownloadFailed("download_failed", "no mirror.", what=file.name, reasons=("no mirror",))


def test_messages_name_the_commands_that_help(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acclimate.data.download.fetch", partial(fail_to_fetch, []))
    with raises("not_found") as not_imported:
        zoo.load("small")
    assert "acclimate zoo get small" in str(not_imported.value)
    with raises("no_weights") as not_published:
        zoo.load("resnet18-cifar10")
    assert 'zoo.build("resnet18-cifar10")' in str(not_published.value)
    with raises("download_failed") as not_fetched:
        zoo.download("wrn40-2")
    assert "no mirror" in str(not_fetched.value)
    assert "acclimate zoo get wrn40-2-cifar10 --from FILE" in str(not_fetched.value)
    monkeypatch.setitem(CATALOG, "small", small_spec(sha256="0" * 64))
    with raises("weights_differ") as not_known:
        zoo.load("small", saved(small, small_state()))
    assert "--no-check-hash" in str(not_known.value)


# The catalogue ----------------------------------------------------------------------------------

# The count of RobustBench's model, the table of the CIFAR ResNets' publisher, which
# rounds to 0.01 million, and the ResNet paper's layers.
N_PARAMETERS = {
    "wrn28-10-cifar10": 36_479_194,
    "resnet20-cifar10": 0.27e6,
    "resnet32-cifar10": 0.46e6,
}
N_PARAMETERS |= {"resnet44-cifar10": 0.66e6, "resnet56-cifar10": 0.85e6}


@pytest.mark.parametrize("name", zoo.list_models())
def test_every_model_has_logits_of_its_classes(name: str) -> None:
    spec = zoo.get_spec(name)
    assert spec.name == name
    assert bool(spec.publisher) == bool(spec.address or spec.packaged) == bool(spec.licence)
    with torch.device("meta"):
        model, x = spec.build(), torch.empty(2, 3, spec.input_size, spec.input_size)
    assert model(x).shape == (2, spec.n_classes)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert abs(n_parameters - N_PARAMETERS.get(name, n_parameters)) < (
        0.5 if name.startswith("wrn") else 5000
    )
    buffers = dict(model.named_buffers())
    assert {"mean", "std"} <= buffers.keys()


def test_resnet50_has_the_layers_the_literature_counts() -> None:
    with torch.device("meta"):
        model = zoo.build("resnet50-cifar100")
    assert len(list(model.parameters())) == 161
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == 53


def test_inputs_are_normalised_as_published() -> None:
    cases = {
        "wrn28-10-cifar10": ((0.0,) * 3, (1.0,) * 3),
        "wrn40-2-cifar10": ((0.5,) * 3, (0.5,) * 3),
        "wrn40-2-cifar100": ((0.5,) * 3, (0.5,) * 3),
        "resnet20-cifar10": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "resnet26-cifar10": ((0.5,) * 3, (0.5,) * 3),
        "resnet50-cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        "resnet50-cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    }
    for name, (mean, std) in cases.items():
        assert (zoo.get_spec(name).mean, zoo.get_spec(name).std) == (mean, std)


def test_unknown_names_and_depths_are_explained() -> None:
    with raises("unknown_name", BadInput, kind="model", name="resnet20-cifar01") as caught:
        zoo.get_spec("resnet20-cifar01")
    assert set(caught.value.known) == set(zoo.list_models())
    with raises("out_of_range", UnsuitableModel, option="depth", found=19):
        CifarResNet(19, 10, (0.5,) * 3, (0.5,) * 3)


# Architectures alone ----------------------------------------------------------------------------


def test_an_architecture_stands_for_the_entry_of_its_classes() -> None:
    for name, n_classes, expected in (
        ("resnet20", None, "resnet20-cifar10"),
        ("resnet20", 10, "resnet20-cifar10"),
        ("resnet20", 100, "resnet20-cifar100"),
        ("resnet20", 7, "resnet20-cifar10"),
        ("resnet50", None, "resnet50-cifar10"),
        ("wrn40-2", 100, "wrn40-2-cifar100"),
        ("resnet26-gn", 100, "resnet26-gn-cifar10"),
        ("resnet20-cifar10", 100, "resnet20-cifar10"),
    ):
        assert zoo.get_spec(name, n_classes).name == expected
    for name in ("resnet", "resnet2", "resnet5", "wrn40", "cifar10", ""):
        with raises("unknown_name", BadInput, kind="model", name=name):
            zoo.get_spec(name)
    with torch.device("meta"):
        heads = [zoo.build("resnet20", n).get_parameter("head.weight") for n in (None, 100, 7)]
    assert [tuple(head.shape) for head in heads] == [(10, 64), (100, 256), (7, 64)]


def test_own_weights_of_an_architecture_are_taken(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = small_spec(name="small-cifar10", sha256="0" * 64)
    monkeypatch.setitem(CATALOG, "small-cifar10", known)
    source = saved(small, small_state())
    with raises("weights_differ", ArtifactMismatch, name="small-cifar10"):
        zoo.load("small-cifar10", source)
    model = zoo.load("small", source)  # the entry of that very name comes first
    del CATALOG["small"]
    again = zoo.load("small", source)
    assert content_digest(again) == content_digest(model)
    # The published ones are still the published ones, and where they are is said by the full name.
    with raises("not_found", path=small / "data" / "zoo" / "small-cifar10.safetensors"):
        zoo.load("small")
    with raises("weights_differ", ArtifactMismatch, name="small-cifar10"):
        zoo.import_checkpoint("small", source)
    path = zoo.import_checkpoint("small", source, check_hash=False)
    assert path.name == "small-cifar10.safetensors"
    with warns("weights_differ", name="small-cifar10"):
        zoo.load("small")
    torch.save(small_state(n_classes=7), small / "seven.pt")
    assert zoo.load("small", small / "seven.pt", 7)(torch.zeros(1, 3, 32, 32)).shape == (1, 7)


# Weights that are really published ----------------------------------------------------------------


def shared(path: str) -> Path:
    if not (SHARED / path).exists():
        pytest.skip(f"{SHARED / path} is not there (set ACCLIMATE_SHARED)")
    return SHARED / path


@pytest.mark.data
@pytest.mark.parametrize(("depth", "n_classes"), [(20, 10), (56, 10), (20, 100), (32, 100)])
def test_public_weights_are_known_and_fit(depth: int, n_classes: int, tmp_path: Path) -> None:
    path = shared(f"data/weights/cifar{n_classes}-resnet{depth}.safetensors")
    model = zoo.load(f"resnet{depth}-cifar{n_classes}", path)
    tensors = load_file(path)
    assert torch.equal(model.get_parameter("head.weight"), tensors["linear.weight"])
    tensors["linear.bias"][0] += 1e-3
    save_file(tensors, tmp_path / "altered.safetensors")
    with raises("weights_differ", ArtifactMismatch, name=f"resnet{depth}-cifar{n_classes}"):
        zoo.load(f"resnet{depth}-cifar{n_classes}", tmp_path / "altered.safetensors")


@pytest.mark.data
def test_public_weights_fit_their_architecture_alone(tmp_path: Path) -> None:
    path = shared("data/weights/cifar10-resnet20.safetensors")
    assert content_digest(zoo.load("resnet20", weights=path)) == content_digest(
        zoo.load("resnet20-cifar10", path)
    )
    tensors = load_file(path)
    tensors["linear.bias"][0] += 1e-3
    save_file(tensors, tmp_path / "own.safetensors")
    own = zoo.load("resnet20", weights=tmp_path / "own.safetensors")
    assert torch.equal(own.get_parameter("head.bias"), tensors["linear.bias"])


@pytest.mark.data
@pytest.mark.parametrize("depth", [20, 56])
def test_cifar10_weights_see_what_is_there(depth: int) -> None:
    model = zoo.load(
        f"resnet{depth}-cifar10", shared(f"data/weights/cifar10-resnet{depth}.safetensors")
    )
    images = np.load(shared("reference/cifar10-test-first500.npy"))[:10]
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        # cat ship ship plane frog frog car frog cat car
        assert model(x).argmax(dim=1).tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(("depth", "n_right"), [(20, 283), (32, 293)])
def test_cifar100_weights_are_as_good_as_they_were(depth: int, n_right: int) -> None:
    model = zoo.load(
        f"resnet{depth}-cifar100", shared(f"data/weights/cifar100-resnet{depth}.safetensors")
    )
    sheet = np.asarray(Image.open(shared("data/cifar100/test.webp")).convert("RGB"))[: 4 * 32]
    images = sheet.reshape(4, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)
    y = torch.from_numpy(np.load(shared("data/cifar100/labels.npz"))["test"][:400].astype(np.int64))
    with torch.no_grad():
        logits = model(torch.from_numpy(np.ascontiguousarray(images)).float() / 255)
    # No near tie that a machine could round otherwise: logits differ by 1e-5 between machines.
    first, second = logits.topk(2).values.unbind(dim=1)
    assert (first - second).min() > 1e-3
    # Of 400; 69.69 % and 71.70 % of all 10,000.
    assert (logits.argmax(dim=1) == y).sum() == n_right


# The command line ---------------------------------------------------------------------------------


def run(*arguments: str | Path) -> Result:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(part) for part in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_list_and_show_say_what_is_known(small: Path) -> None:
    zoo.import_checkpoint("small", saved(small, small_state()))
    lines = run("list").output.splitlines()
    for name in zoo.list_models():
        spec = zoo.get_spec(name)
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert spec.data in line
        assert spec.accuracy is None or f"{spec.accuracy:.2f} %" in line
        assert (spec.publisher or "not published") in line
        assert ("(here)" in line) == (name == "small" or bool(spec.packaged))
    assert "36,479,194" in next(line for line in lines if line.startswith("wrn28-10-cifar10"))
    text = run("show", "wrn40-2-cifar100").output
    for words in (
        "WRN-40-2",
        "mean 0.5 0.5 0.5",
        "76.28 %",
        zoo.get_spec("wrn40-2-cifar100").address,
    ):
        assert words in text


def test_show_takes_an_architecture(small: Path) -> None:
    assert run("show", "resnet20").output == run("show", "resnet20-cifar10").output
    assert "resnet20-cifar10" in run("show", "resnet20").output


def test_get_imports_a_file(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved(small, small_state())
    text = run("get", "small", "--from", source, "--data-dir", small / "mine").output
    assert str(small / "mine" / "zoo" / "small.safetensors") in text
    assert hashlib.sha256(source.read_bytes()).hexdigest() in text
    assert "not compared with a known SHA-256" in text
    card = json.loads(run_metadata(small / "mine" / "zoo" / "small.safetensors"))
    assert card["kind"] == "zoo"
    monkeypatch.setitem(CATALOG, "small", small_spec(sha256="0" * 64))
    with raises("weights_differ", ArtifactMismatch, name="small"):
        run("get", "small", "--from", source)
    run("get", "small", "--from", source, "--no-check-hash")
    with raises("no_weights", BadInput, name="resnet26-cifar10"):
        run("get", "resnet26-cifar10")


def run_metadata(path: Path) -> str:
    size = int.from_bytes(path.read_bytes()[:8], "little")
    return str(json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"]["acclimate"])
