"""The artifact and its file: round trip, refusals, versions, damage."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import acclimate
from acclimate import Artifact, storage
from acclimate.errors import (
    AcclimateWarning,
    ArtifactMismatch,
    ArtifactMissing,
    ArtifactVersion,
    BadInput,
    CorruptFile,
)
from acclimate.testing.cases import tiny_artifact
from acclimate.testing.models import tiny_model


@pytest.fixture
def artifact():
    return tiny_artifact("batch_norm", depth=2)


@pytest.fixture
def path(artifact, tmp_path):
    artifact.save(tmp_path / "a.acclimate")
    return tmp_path / "a.acclimate"


def test_round_trip(artifact, path):
    loaded = Artifact.load(path)
    assert loaded.card == json.loads(json.dumps(artifact.card))
    assert loaded.tensors.keys() == artifact.tensors.keys()
    assert all(torch.equal(loaded.tensors[k], v) for k, v in artifact.tensors.items())
    assert repr(loaded) == repr(artifact)


def test_it_is_plain_safetensors_with_a_json_card(path):
    with safe_open(path, "pt") as file:
        card = json.loads(file.metadata()["acclimate"])
    assert {"penalty/stem.weight", "cosine/stem.weight", "prototypes/embedding"} <= set(
        load_file(path)
    )
    assert card["anatomy"] == {"head": "head", "logits_at": None, "n_classes": 4, "n_features": 8}
    assert card["parts"]["penalty"]["n_samples"] == 16
    assert card["parts"]["prototypes"]["projector_depth"] == 2
    assert card["input_shape"] == [3, 8, 8]
    assert card["seed"] == 0
    assert card["versions"]["torch"] == torch.__version__
    assert card["format"] == [1, 0]


def test_saving_leaves_no_other_file(path):
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_failed_write_keeps_the_old_file(path, monkeypatch):
    old = path.read_bytes()

    def fails(fd):
        raise OSError("disk full")

    monkeypatch.setattr(storage.os, "fsync", fails)
    with pytest.raises(OSError, match="disk full"):
        storage.write_atomically(path, b"new")
    assert path.read_bytes() == old
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_missing_folder_and_missing_file(artifact, tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        artifact.save(tmp_path / "no" / "a.acclimate")
    with pytest.raises(BadInput, match="not a file"):
        Artifact.load(tmp_path / "none.acclimate")


@pytest.mark.parametrize("keep", [0, 5, 8, 100, 0.5, 0.99])
def test_truncated(path, keep):
    content = path.read_bytes()
    path.write_bytes(content[: int(keep if keep >= 1 or keep == 0 else keep * len(content))])
    with pytest.raises(CorruptFile, match=r"cut off|damaged"):
        Artifact.load(path)


@settings(deadline=None, max_examples=60)
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_any_flipped_bit_is_found(tmp_path_factory, where, bit):
    path = tmp_path_factory.mktemp("flip") / "a.acclimate"
    tiny_artifact("batch_norm", depth=2).save(path)
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 1 << bit
    path.write_bytes(bytes(content))
    with pytest.raises((CorruptFile, ArtifactVersion, ArtifactMismatch)):
        Artifact.load(path)


def test_oversized_header(path):
    content = path.read_bytes()
    path.write_bytes(struct.pack("<Q", 2**40) + content[8:])
    with pytest.raises(CorruptFile, match="more than the 100000000"):
        Artifact.load(path)


def test_not_safetensors(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(3)}, path)
    with pytest.raises(CorruptFile, match="not a safetensors file"):
        Artifact.load(path)


def test_foreign_safetensors(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(3)}, path)
    with pytest.raises(CorruptFile, match="no acclimate card"):
        Artifact.load(path)


def test_a_state_is_not_an_artifact(tmp_path):
    acclimate.adapt(tiny_model("batch_norm"), "norm").save(tmp_path / "s.safetensors")
    with pytest.raises(ArtifactMismatch, match="kind 'state'"):
        Artifact.load(tmp_path / "s.safetensors")


def test_newer_fields_warn_and_newer_major_is_refused(artifact, tmp_path, monkeypatch):
    path = tmp_path / "a.acclimate"
    storage.write_file(path, "artifact", artifact.tensors, {**artifact.card, "novelty": 1})
    with pytest.warns(AcclimateWarning, match="novelty"):
        loaded = Artifact.load(path)
    assert "novelty" not in loaded.card
    monkeypatch.setattr(storage, "FORMAT", (2, 0))
    artifact.save(path)
    monkeypatch.undo()
    with pytest.raises(ArtifactVersion, match="Upgrade"):
        Artifact.load(path)


def test_a_later_format_is_refused_whatever_it_is_signed_with(tmp_path):
    card = json.dumps({"kind": "artifact", "format": [2, 0], "sha512": "…"})
    save_file({"a": torch.ones(1)}, tmp_path / "new", {"acclimate": card})
    with pytest.raises(ArtifactVersion, match=r"format 2\.0"):
        Artifact.load(tmp_path / "new")


def test_newer_fields_inside_known_ones_are_left_out(artifact):
    anatomy = {**artifact.card["anatomy"], "pooling": "mean"}
    assert Artifact(artifact.tensors, {**artifact.card, "anatomy": anatomy}).anatomy.head == "head"


def test_a_folder_is_no_place_for_a_file(artifact, tmp_path):
    with pytest.raises(BadInput, match="is a folder"):
        artifact.save(tmp_path)


def test_the_right_model_passes(artifact):
    artifact.check(tiny_model("batch_norm"))


def test_another_model_is_refused_with_all_differences(artifact):
    other = tiny_model("batch_norm")
    other.head = nn.Linear(8, 7)
    other.extra = nn.Linear(2, 2)
    with pytest.raises(ArtifactMismatch) as caught:
        artifact.check(other)
    message = str(caught.value)
    assert "head.weight: artifact (4, 8) float32, model (7, 8) float32" in message
    assert "head.bias" in message
    assert "extra.weight: not in the artifact" in message


def test_other_weights_are_refused(artifact):
    other = tiny_model("batch_norm")
    with torch.no_grad():
        other.head.bias[0] += 1e-6
    with pytest.raises(ArtifactMismatch, match="weights differ"):
        artifact.check(other)
    with pytest.raises(ArtifactMismatch, match="weights differ"):
        acclimate.adapt(other, "swr_nsp", artifact)


def test_many_differences_are_counted(artifact):
    with pytest.raises(ArtifactMismatch, match=r"\(\+ \d+ more\)"):
        artifact.check(tiny_model("vit"))


def test_a_missing_part_is_named(artifact):
    with pytest.raises(ArtifactMissing, match="fishes"):
        artifact.part("fishes")
    small = Artifact(
        {k: v for k, v in artifact.tensors.items() if k.startswith("penalty")},
        {**artifact.card, "parts": {"penalty": artifact.card["parts"]["penalty"]}},
    )
    with pytest.raises(ArtifactMissing, match="needs prototypes"):
        acclimate.adapt(tiny_model("batch_norm"), "swr_nsp", small)
    with pytest.raises(ArtifactMissing, match="was not given"):
        acclimate.adapt(tiny_model("batch_norm"), "swr_nsp")
