"""Published checkpoints: read as their publishers' code would read them, or refused."""

from __future__ import annotations

import argparse
import hashlib
import re
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
from acclimate.zoo.resnet import (
    BasicBlock,
    Bottleneck,
    CifarResNet,
    PreactivationResNet,
    ResNet,
    WideStemResNet,
)
from tests.codes import raises
from tests.zoo import oracles
from tests.zoo.small import add_small, make_x, saved, small_state

MEAN, STD = (0.49, 0.48, 0.45), (0.2, 0.21, 0.22)

Run = Callable[[oracles.State, Tensor], Tensor]


def by_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return add_small(monkeypatch, tmp_path)


# Names and arithmetic ------------------------------------------------------------------------


# Made when they are asked for: the weights of all take half a second to draw.
CASES: dict[str, Callable[[], tuple[nn.Module, str, oracles.State, Run]]] = {
    "WRN-10-1": lambda: (
        WideResNet(10, 1, 10, mean=(0.5,) * 3, std=(0.5,) * 3),
        "robustbench",
        oracles.robustbench(10, 1, 10, 1),
        lambda state, x: oracles.run_robustbench(state, x, 0.5, 0.5),
    ),
    "WRN-16-2, with the stage that is never run": lambda: (
        WideResNet(16, 2, 7, mean=(0.0,) * 3, std=(1.0,) * 3),
        "robustbench",
        oracles.robustbench(16, 2, 7, 2, sub_block=True),
        lambda state, x: oracles.run_robustbench(state, x, 0.0, 1.0),
    ),
    "ResNet-14": lambda: (
        CifarResNet(14, 10, MEAN, STD),
        "cifar_resnet",
        oracles.akamaster(14, 10, 3),
        lambda state, x: oracles.run_akamaster(state, x, by_channel(MEAN), by_channel(STD)),
    ),
    "ResNet-14 with a wide stem": lambda: (
        WideStemResNet(14, 20, MEAN, STD),
        "cifar_resnet",
        oracles.distiller(14, 20, 4),
        lambda state, x: oracles.run_distiller(state, x, by_channel(MEAN), by_channel(STD)),
    ),
    "ResNet-14, pre-activation": lambda: (
        PreactivationResNet(14, 10, (0.5,) * 3, (0.5,) * 3),
        "ttt",
        oracles.ttt(14, 10, 5, 0),
        lambda state, x: oracles.run_ttt(state, x, 0.5, 0.5, 0),
    ),
    "ResNet-14, pre-activation, groups": lambda: (
        PreactivationResNet(14, 10, (0.5,) * 3, (0.5,) * 3, n_groups=8),
        "ttt",
        oracles.ttt(14, 10, 6, 8),
        lambda state, x: oracles.run_ttt(state, x, 0.5, 0.5, 8),
    ),
    "four stages, basic": lambda: (
        ResNet(10, MEAN, STD, BasicBlock, (1, 2, 1, 1), (64, 64, 128, 256, 512)),
        "ttt_plus_plus",
        oracles.ttt_plus_plus((1, 2, 1, 1), False, 10, 7),
        lambda state, x: oracles.run_ttt_plus_plus(state, x, by_channel(MEAN), by_channel(STD)),
    ),
    "four stages, bottleneck": lambda: (
        ResNet(10, MEAN, STD, Bottleneck, (2, 1, 1, 1), (64, 256, 512, 1024, 2048)),
        "ttt_plus_plus",
        oracles.ttt_plus_plus((2, 1, 1, 1), True, 10, 8),
        lambda state, x: oracles.run_ttt_plus_plus(state, x, by_channel(MEAN), by_channel(STD)),
    ),
}
EXTRAS = {"robustbench": "sub_block1.", "ttt_plus_plus": "head."}


@pytest.mark.parametrize("case", CASES)
def test_published_names_give_the_published_logits(case: str) -> None:
    model, layout, state, run = CASES[case]()
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
        # Mean and std are one half, so that nothing is rounded before the first layer.
        assert torch.allclose(model.double()(make_x()), expected, rtol=0, atol=1e-9)


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
    with raises("other_weights", ArtifactMismatch) as caught:
        zoo.load("small", small / "wrong.pt")
    (line,) = caught.value.differences
    assert line.startswith("std")
    assert [float(number) for number in re.findall(r"0\.\d+", line)] == [0.5] * 3 + [0.25] * 3


def test_all_differences_are_listed_and_the_message_shows_a_dozen(small: Path) -> None:
    state = small_state(n_classes=100)
    del state["block2.layer.0.conv1.weight"]
    state |= {f"aux{number}.weight": torch.zeros(2) for number in range(11)}
    torch.save(state, small / "other.pt")
    with raises("other_weights", ArtifactMismatch) as caught:
        zoo.load("small", small / "other.pt")
    found = {line.partition(":")[0]: line for line in caught.value.differences}
    assert found.keys() == {
        *("head.weight", "head.bias", "stage2.0.conv1.weight"),
        *(f"aux{number}.weight" for number in range(11)),
    }
    for words in ("(10, 64)", "(100, 64)", "fc.weight"):
        assert words in found["head.weight"]
    for words in ("(10,)", "(100,)", "fc.bias"):
        assert words in found["head.bias"]
    assert "(32, 16, 3, 3)" in found["stage2.0.conv1.weight"]
    assert "(2,)" in found["aux0.weight"]
    assert sum(line in str(caught.value) for line in found.values()) == 12
    assert zoo.load("small", saved(small, small_state(n_classes=100)), 100)(
        make_x().float()
    ).shape == (2, 100)


def test_two_tensors_for_one_place_are_refused(small: Path) -> None:
    state = small_state()
    state["head.weight"] = state["fc.weight"]  # ours beside theirs
    with raises("other_weights", ArtifactMismatch) as caught:
        zoo.load("small", saved(small, state))
    (line,) = caught.value.differences
    assert line.startswith("head.weight:")
    assert "(fc.weight, head.weight)" in line


def test_files_that_could_run_code_or_are_damaged_are_refused(small: Path) -> None:
    torch.save(zoo.build("small"), small / "whole.pt")
    with raises("unsafe_file", CorruptFile, path=small / "whole.pt"):
        read_tensors(small / "whole.pt")
    torch.save({"state_dict": {"fc.weight": "text"}}, small / "text.pt")
    with raises("wrong_content", CorruptFile, path=small / "text.pt"):
        read_tensors(small / "text.pt")
    torch.save({}, small / "empty.pt")
    with raises("wrong_content", CorruptFile, path=small / "empty.pt"):
        read_tensors(small / "empty.pt")
    whole = saved(small, small_state()).read_bytes()
    for name, content in {
        "cut.pt": whole[:2000],
        "a.safetensors": b"hello",
        "none.pt": b"",
    }.items():
        (small / name).write_bytes(content)
        with raises("unreadable_file", CorruptFile, path=small / name):
            zoo.load("small", small / name)
    with raises("not_found", BadInput, path=small / "nowhere.pt"):
        zoo.load("small", small / "nowhere.pt")
