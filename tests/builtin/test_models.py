"""The source models of the built-in task: the weights that come with it, and how they are made."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from acclimate import builtin
from acclimate.errors import BadInput, CorruptFile
from acclimate.functional.iabn import iabn_layers
from acclimate.functional.norm import batch_norm_layers
from acclimate.functional.views import get_views
from acclimate.parts.contrastive_head import build_contrastive_head
from tests.codes import check_coded, raises
from tests.paths import BENCHMARKS

FOLDER = Path(str(files("acclimate.builtin")))
FILES = {
    "plain": FOLDER / "source.safetensors",
    "iabn": FOLDER / "source_iabn.safetensors",
    "joint": FOLDER / "source_joint.safetensors",
}
HEAD = FOLDER / "source_joint.head.safetensors"

# --- weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [300, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", builtin.KINDS)
def test_source_model_has_the_error_its_card_states(kind: str, n: int) -> None:
    model, card = builtin.load_model(kind), builtin.model_card(kind)
    assert not any(module.training for module in model.modules())
    stated = float(card["test_error_percent"]) / 100
    assert 0 < stated <= 0.05
    x, y = builtin.load_split("test", n)
    with torch.no_grad():
        guess = torch.cat([model(part).argmax(dim=1) for part in x.split(200)])
    error = float((guess != y).double().mean())
    # Four standard deviations of the error on n images of a model with the stated error.
    assert abs(error - stated) < 4 * np.sqrt(stated * (1 - stated) / n)


def test_source_models_are_what_their_names_say() -> None:
    plain, aware, joint = (builtin.load_model(kind) for kind in builtin.KINDS)
    assert not iabn_layers(plain)
    assert not iabn_layers(joint)
    assert list(iabn_layers(aware)) == list(batch_norm_layers(plain))
    assert [*aware.state_dict()] == [*joint.state_dict()] == [*plain.state_dict()]
    known = builtin.KINDS
    with raises("unknown_name", BadInput, kind="source model", name="joined", known=known):
        builtin.load_model("joined")


def test_the_head_tells_images_apart_by_their_views() -> None:
    """Two views of an image are near each other for it: that is what it was trained for."""
    model, head = builtin.load_model("joint"), builtin.load_head()
    assert not any(parameter.requires_grad for parameter in head.parameters())
    x, _ = builtin.load_split("test", 64)
    views, generator = get_views("simclr"), torch.Generator().manual_seed(0)
    kept: list[Tensor] = []
    hook = model.head.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    with torch.no_grad():
        model(torch.cat([views(x, generator), views(x, generator)]))
        projected = F.normalize(head(kept[0]), dim=1)
    hook.remove()
    similar = projected[:64] @ projected[64:].T
    n_found = int((similar.argmax(dim=1) == torch.arange(64)).sum())
    # About 20 are found. By chance it is one, and 10 or more with a probability of 1e-7.
    assert n_found >= 10


@pytest.mark.parametrize("kind", builtin.KINDS)
def test_card_says_how_the_weights_were_made(kind: str) -> None:
    card = builtin.model_card(kind)
    assert card["command"].startswith("python benchmarks/train_builtin.py ")
    assert FILES[kind].name in card["command"]
    assert card.get("kind", "plain") == kind
    for key in ("seed", "images", "epochs", "data", "torch", "numpy", "test_images"):
        assert card[key], key
    assert all(name in card["data"] for name in builtin.CLASSES)


@pytest.mark.parametrize("path", [*FILES.values(), HEAD], ids=lambda path: path.name)
def test_weights_are_small_and_plain(path: Path) -> None:
    assert path.stat().st_size <= 1.5e6
    tensors = load_file(path)
    assert all(
        tensor.dtype == (torch.int64 if name.endswith("num_batches_tracked") else torch.float32)
        for name, tensor in tensors.items()
    )
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


def test_damaged_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FILES["plain"].read_bytes()
    (tmp_path / "source.safetensors").write_bytes(whole[: len(whole) // 2])
    shutil.copy(FILES["joint"], tmp_path)
    shutil.copy(HEAD, tmp_path)
    monkeypatch.setattr(builtin, "_FOLDER", tmp_path)
    with raises("unreadable_file", CorruptFile, path=tmp_path / "source.safetensors"):
        builtin.load_model()
    with raises("file_missing", CorruptFile, path=tmp_path / "source_iabn.safetensors"):
        builtin.load_model("iabn")
    builtin.load_head()
    tensors = load_file(FILES["joint"])
    save_file({**tensors, "head.bias": tensors["head.bias"] + 1}, tmp_path / FILES["joint"].name)
    with raises("wrong_content", CorruptFile, path=tmp_path / HEAD.name) as caught:
        builtin.load_head()
    check_coded(
        caught.value.__cause__,
        "other_model",
        differences=lambda found: set(found) == {"weights_sha256"},
    )


def test_the_message_says_what_to_do_about_missing_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtin, "_FOLDER", tmp_path)
    with raises("file_missing") as caught:
        builtin.load_model()
    assert "Install acclimate again" in str(caught.value)


# --- training --------------------------------------------------------------------------------


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    path = BENCHMARKS / "train_builtin.py"
    spec = importlib.util.spec_from_file_location("train_builtin", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BATCH_SIZE", 16)
    monkeypatch.setattr(module, "N_VALIDATION", 20)
    monkeypatch.setattr(module, "N_TEST", 20)
    n_threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(n_threads)
    if torch.are_deterministic_algorithms_enabled():  # asking costs nothing, setting imports much
        torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]


def test_augmentation_only_flips_and_shifts(script: ModuleType) -> None:
    x = torch.rand(40, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    out = script.augment(x, torch.Generator().manual_seed(1))
    seen = set()
    for image, changed in zip(x, out, strict=True):
        inner = changed[:, 2:-2, 2:-2]
        found = [
            (flip, down, right)
            for flip in (False, True)
            for down in range(5)
            for right in range(5)
            if torch.equal(
                (image.flip(2) if flip else image)[:, down : down + 28, right : right + 28], inner
            )
        ]
        assert len(found) == 1
        seen.add(found[0])
    assert len(seen) > 20


@pytest.mark.slow
def test_training_again_gives_the_same_file(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    for seed, name in (("0", "a"), ("0", "b"), ("1", "c")):
        out = tmp_path / name / "weights.safetensors"
        out.parent.mkdir()
        arguments = ["train_builtin.py", "--images", "32", "--epochs", "1", "--seed", seed]
        monkeypatch.setattr("sys.argv", [*arguments, "--out", str(out)])
        script.main()
        assert [path.name for path in out.parent.iterdir()] == [out.name]
        written.append(load_file(out))
    first, again, other = written
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    builtin.untrained_model().load_state_dict(first, strict=True)


@pytest.mark.slow
def test_other_kinds_are_trained_by_the_same_recipe(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plain", "iabn", "joint", "joint"):
        out = tmp_path / f"source_{name}.safetensors"
        arguments = ["--kind", name, "--images", "16", "--epochs", "1", "--out", str(out)]
        monkeypatch.setattr("sys.argv", ["train_builtin.py", *arguments])
        before = load_file(out) if out.exists() else {}
        script.main()
        after = load_file(out)
        assert all(torch.equal(after[key], value) for key, value in before.items())
    monkeypatch.setattr(builtin, "_FOLDER", tmp_path)
    plain = load_file(tmp_path / "source_plain.safetensors")
    for kind in ("iabn", "joint"):
        weights = builtin.load_model(kind).state_dict()
        assert builtin.model_card(kind)["kind"] == kind
        assert not torch.equal(weights["stem.weight"], plain["stem.weight"])
    fresh = build_contrastive_head(128, seed=0).state_dict()
    head = builtin.load_head().state_dict()
    assert list(head) == list(fresh)
    assert not torch.equal(head["2.weight"], fresh["2.weight"])


def test_training_can_go_on_from_other_weights(script: ModuleType) -> None:
    model, objective = script.train("joint", 16, 1, 0, FILES["plain"], 0.0)
    began, ended = builtin.load_model(), model.state_dict()
    # A learning rate of zero leaves parameters as they began; running statistics move.
    assert all(torch.equal(ended[name], value) for name, value in began.named_parameters())
    assert not torch.equal(ended["norm.running_mean"], began.norm.running_mean)
    assert list(objective.parameters())


@pytest.mark.slow
def test_the_card_names_the_weights_training_went_on_from(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "source_joint.safetensors"
    arguments = ["--kind", "joint", "--images", "16", "--epochs", "1", "--out", str(out)]
    arguments += ["--start", str(FILES["plain"]), "--peak-lr", "0"]
    monkeypatch.setattr("sys.argv", ["train_builtin.py", *arguments])
    script.main()
    ended = load_file(out)
    assert all(
        torch.equal(ended[name], value) for name, value in builtin.load_model().named_parameters()
    )
    monkeypatch.setattr(builtin, "_FOLDER", tmp_path)
    assert builtin.model_card("joint")["start"] == "source.safetensors"


@pytest.mark.parametrize("folder", ["builtin", "zoo/weights"])
def test_a_notice_names_every_shipped_file_of_weights(folder: str) -> None:
    place = Path(builtin.__file__).parents[1] / folder
    shipped = {
        path.name for path in place.iterdir() if path.suffix in (".safetensors", ".acclimate")
    }
    words = set((place / "NOTICE").read_text(encoding="utf-8").split())
    assert shipped
    assert shipped <= words
