"""Weights files that nobody should load: one error, and the model stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from acclimate.errors import ArtifactError, CorruptFile
from acclimate.snapshot import fingerprint
from acclimate.zoo.readers import fit, read_tensors
from tests.codes import raises


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def refuse(path: Path, code: str) -> None:
    model = build()
    before = fingerprint(model)
    with raises(code, ArtifactError):
        fit(model, read_tensors(path), None, path)
    assert fingerprint(model) == before


def spoil(name: str, value: float) -> dict[str, Tensor]:
    state = build().state_dict()
    state[name].view(-1)[0] = value
    return state


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("0.weight", torch.nan),
        ("3.bias", torch.inf),
        ("1.running_mean", -torch.inf),
        ("1.running_var", -0.5),
        ("1.num_batches_tracked", -1),
    ],
)
def test_impossible_values(tmp_path: Path, name: str, value: float) -> None:
    state = spoil(name, value)
    torch.save(state, tmp_path / "w.pt")
    refuse(tmp_path / "w.pt", "wrong_weights")
    save_file(state, tmp_path / "w.safetensors")
    refuse(tmp_path / "w.safetensors", "wrong_weights")


def test_values_that_overflow_and_other_kinds_of_numbers(tmp_path: Path) -> None:
    state = build().state_dict()
    state["0.weight"] = state["0.weight"].double() * 1e300
    torch.save(state, tmp_path / "w.pt")
    refuse(tmp_path / "w.pt", "wrong_weights")
    state["0.weight"] = torch.ones(4, 3, 3, 3, dtype=torch.int64)
    torch.save(state, tmp_path / "w.pt")
    refuse(tmp_path / "w.pt", "wrong_weights")


@pytest.mark.parametrize("kind", ["sparse", "meta", "complex"])
def test_tensors_without_plain_values(tmp_path: Path, kind: str) -> None:
    state: dict[str, Any] = build().state_dict()
    weight = state["3.weight"]
    state["3.weight"] = {
        "sparse": weight.to_sparse(),
        "meta": weight.to("meta"),
        "complex": weight.to(torch.complex64),
    }[kind]
    torch.save(state, tmp_path / "w.pt")
    refuse(tmp_path / "w.pt", "wrong_weights")


@pytest.mark.timeout(20)
def test_a_dictionary_that_contains_itself_does_not_hang(tmp_path: Path) -> None:
    loop: dict[str, Any] = {}
    loop["state_dict"] = loop
    torch.save(loop, tmp_path / "w.pt")
    refuse(tmp_path / "w.pt", "wrong_content")
    first: dict[str, Any] = {}
    first["model"] = {"state_dict": first}
    torch.save(first, tmp_path / "w.pt")
    refuse(tmp_path / "w.pt", "wrong_content")


def test_names_are_text(tmp_path: Path) -> None:
    torch.save({0: torch.ones(2)}, tmp_path / "w.pt")
    refuse(tmp_path / "w.pt", "wrong_content")


def test_every_truncation_of_a_safetensors_file_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(build().state_dict(), path)
    content = path.read_bytes()
    for length in range(0, len(content), 37):
        path.write_bytes(content[:length])
        with pytest.raises(CorruptFile):
            read_tensors(path)


def test_infinite_values_stay_where_the_model_has_them(tmp_path: Path) -> None:
    model = build()
    model.register_buffer("mask", torch.full((2,), -torch.inf))
    torch.save(model.state_dict(), tmp_path / "w.pt")
    other = build()
    other.register_buffer("mask", torch.full((2,), -torch.inf))
    assert fit(other, read_tensors(tmp_path / "w.pt"), None, "w") == []
