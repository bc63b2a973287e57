"""Published checkpoints: read as their publishers' code would read them, or refused."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from acclimate import zoo
from acclimate.builtin.model import WideResNet
from acclimate.errors import ArtifactMismatch, BadInput, CorruptFile
from acclimate.zoo.readers import fit, read_tensors
from acclimate.zoo.resnet import CifarResNet, PreactivationResNet, SmallStemResNet, WideStemResNet
from tests import zoo_oracles as oracles
from tests.zoo_small import add_small, make_x, saved, small_state

MEAN, STD = (0.49, 0.48, 0.45), (0.2, 0.21, 0.22)

Run = Callable[[oracles.State, Tensor], Tensor]


def by_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return add_small(monkeypatch, tmp_path)


# Names and arithmetic ------------------------------------------------------------------------


CASES: dict[str, tuple[nn.Module, str, oracles.State, Run]] = {
    "WRN-10-1": (
        WideResNet(10, 1, 10, mean=(0.5,) * 3, std=(0.5,) * 3),
        "robustbench",
        oracles.robustbench(10, 1, 10, 1),
        lambda state, x: oracles.run_robustbench(state, x, 0.5, 0.5),
    ),
    "WRN-16-2, with the stage that is never run": (
        WideResNet(16, 2, 7, mean=(0.0,) * 3, std=(1.0,) * 3),
        "robustbench",
        oracles.robustbench(16, 2, 7, 2, sub_block=True),
        lambda state, x: oracles.run_robustbench(state, x, 0.0, 1.0),
    ),
    "ResNet-14": (
        CifarResNet(14, 10, MEAN, STD),
        "cifar_resnet",
        oracles.akamaster(14, 10, 3),
        lambda state, x: oracles.run_akamaster(state, x, by_channel(MEAN), by_channel(STD)),
    ),
    "ResNet-14 with a wide stem": (
        WideStemResNet(14, 20, MEAN, STD),
        "cifar_resnet",
        oracles.distiller(14, 20, 4),
        lambda state, x: oracles.run_distiller(state, x, by_channel(MEAN), by_channel(STD)),
    ),
    "ResNet-14, pre-activation": (
        PreactivationResNet(14, 10, (0.5,) * 3, (0.5,) * 3),
        "ttt",
        oracles.ttt(14, 10, 5, 0),
        lambda state, x: oracles.run_ttt(state, x, 0.5, 0.5, 0),
    ),
    "ResNet-14, pre-activation, groups": (
        PreactivationResNet(14, 10, (0.5,) * 3, (0.5,) * 3, n_groups=8),
        "ttt",
        oracles.ttt(14, 10, 6, 8),
        lambda state, x: oracles.run_ttt(state, x, 0.5, 0.5, 8),
    ),
    "four stages, basic": (
        SmallStemResNet((1, 2, 1, 1), False, 10, MEAN, STD),
        "ttt_plus_plus",
        oracles.ttt_plus_plus((1, 2, 1, 1), False, 10, 7),
        lambda state, x: oracles.run_ttt_plus_plus(state, x, by_channel(MEAN), by_channel(STD)),
    ),
    "four stages, bottleneck": (
        SmallStemResNet((2, 1, 1, 1), True, 10, MEAN, STD),
        "ttt_plus_plus",
        oracles.ttt_plus_plus((2, 1, 1, 1), True, 10, 8),
        lambda state, x: oracles.run_ttt_plus_plus(state, x, by_channel(MEAN), by_channel(STD)),
    ),
}
EXTRAS = {"robustbench": "sub_block1.", "ttt_plus_plus": "head."}


@pytest.mark.parametrize("case", CASES)
def test_published_names_give_the_published_logits(case: str) -> None:
    model, layout, state, run = CASES[case]
    model = model.double().eval()
    left_out = fit(model, state, layout, "file")
    x = make_x()
    with torch.no_grad():
        got, expected = model(x), run(state, x)
    assert expected.std() > 0.1
    assert (got - expected).abs().max() < 1e-6  # our mean and std are single precision
    extras = EXTRAS.get(layout, "none")
    assert left_out == sorted(name for name in state if name.startswith(extras))
    # Every tensor arrived somewhere, and nothing was made up.
    kept = [tensor for name, tensor in state.items() if name not in left_out]
    loaded = {
        name: tensor for name, tensor in model.state_dict().items() if name not in ("mean", "std")
    }
    counts = {name for name in loaded if name.endswith("num_batches_tracked")}
    assert len(loaded) - len(kept) in (0, len(counts))
    assert {hashlib.sha256(t.numpy().tobytes()).digest() for t in kept} <= {
        hashlib.sha256(t.numpy().tobytes()).digest() for t in loaded.values()
    }


@pytest.mark.parametrize("form", ["plain", "augmix", "ttt", "supcon", "nested", "safetensors"])
def test_checkpoints_are_read_in_the_forms_they_are_published_in(form: str, small: Path) -> None:
    state, path = small_state(), small / "file.pt"
    with_prefix = {f"module.{name}": tensor for name, tensor in state.items()}
    contents: dict[str, Any] = {
        "plain": state,
        "augmix": {"epoch": 3, "model": "wrn", "state_dict": with_prefix, "best_acc": 0.9},
        "ttt": {"err_cls": np.float64(0.1), "net": state, "head": {"weight": torch.ones(2)}},
        "supcon": {"opt": argparse.Namespace(lr=0.1), "model": state, "epoch": 1},
        "nested": {"model": {"state_dict": {f"module.model.{k}": v for k, v in state.items()}}},
    }
    if form == "safetensors":
        path = small / "file.safetensors"
        save_file(state, path)
    else:
        torch.save(contents[form], path)
    model = zoo.load("small", path)
    assert not model.training
    expected = oracles.run_robustbench(
        {k: v.double() for k, v in state.items()}, make_x(), 0.5, 0.5
    )
    with torch.no_grad():
        assert torch.allclose(model(make_x().float()).double(), expected, rtol=0, atol=1e-4)


def test_our_own_names_are_read_too(small: Path) -> None:
    model = zoo.build("small")
    torch.save(model.state_dict(), small / "ours.pt")
    loaded = zoo.load("small", small / "ours.pt").state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in model.state_dict().items())


def test_the_normalisation_of_a_file_must_be_the_models(small: Path) -> None:
    half = torch.full((1, 3, 1, 1), 0.5)
    torch.save({**small_state(), "mu": half, "sigma": half}, small / "right.pt")
    assert zoo.load("small", small / "right.pt").mean.flatten().tolist() == [0.5] * 3
    torch.save({**small_state(), "mu": half, "sigma": half / 2}, small / "wrong.pt")
    with pytest.raises(ArtifactMismatch, match=r"std of the inputs: 0.5, 0.5, 0.5 in .*0.25, 0.25"):
        zoo.load("small", small / "wrong.pt")


def test_all_differences_are_in_one_message(small: Path) -> None:
    state = small_state(n_classes=100)
    del state["block2.layer.0.conv1.weight"]
    state |= {f"aux{number}.weight": torch.zeros(2) for number in range(11)}
    torch.save(state, small / "other.pt")
    with pytest.raises(ArtifactMismatch) as error:
        zoo.load("small", small / "other.pt")
    text = str(error.value)
    assert "14 difference(s)" in text
    assert "head.weight: (10, 64) in the model, (100, 64) in the file as fc.weight" in text
    assert "head.bias: (10,) in the model, (100,) in the file as fc.bias" in text
    assert "stage2.0.conv1.weight: (32, 16, 3, 3) in the model, not in the file" in text
    assert "aux0.weight: (2,) in the file, not in the model" in text
    assert "(+ 2 more)" in text
    assert zoo.load("small", saved(small, small_state(n_classes=100)), 100)(
        make_x().float()
    ).shape == (2, 100)


def test_two_tensors_for_one_place_are_refused(small: Path) -> None:
    state = small_state()
    state["head.weight"] = state["fc.weight"]  # ours beside theirs
    with pytest.raises(ArtifactMismatch, match=r"head.weight: several .* \(fc.weight, head.weight"):
        zoo.load("small", saved(small, state))


def test_files_that_could_run_code_or_are_damaged_are_refused(small: Path) -> None:
    torch.save(zoo.build("small"), small / "whole.pt")
    with pytest.raises(CorruptFile, match=r"could execute code"):
        read_tensors(small / "whole.pt")
    torch.save({"state_dict": {"fc.weight": "text"}}, small / "text.pt")
    with pytest.raises(CorruptFile, match=r"found no tensors under fc\.weight"):
        read_tensors(small / "text.pt")
    torch.save({}, small / "empty.pt")
    with pytest.raises(CorruptFile, match="found nothing in it"):
        read_tensors(small / "empty.pt")
    whole = saved(small, small_state()).read_bytes()
    for name, content in {
        "cut.pt": whole[:2000],
        "a.safetensors": b"hello",
        "none.pt": b"",
    }.items():
        (small / name).write_bytes(content)
        with pytest.raises(CorruptFile, match=name):
            zoo.load("small", small / name)
    with pytest.raises(BadInput, match="there is no file"):
        zoo.load("small", small / "nowhere.pt")
