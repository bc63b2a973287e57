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
from acclimate.errors import ArtifactMismatch, ArtifactVersion, CorruptFile
from acclimate.testing.cases import tiny_artifact
from acclimate.testing.models import tiny_model
from tests.codes import raises, warns


@pytest.fixture
def artifact():
    return tiny_artifact("batch_norm", depth=2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The content of a file with an artifact."""
    path = tmp_path_factory.mktemp("saved") / "a.acclimate"
    tiny_artifact("batch_norm", depth=2).save(path)
    return path.read_bytes()


@pytest.fixture
def path(saved, tmp_path):
    (tmp_path / "a.acclimate").write_bytes(saved)
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
    assert card["info"] == {
        "head": "head",
        "logits_at": None,
        "normalization": None,
        "images_at": None,
        "n_classes": 4,
        "n_features": 8,
        "is_dense": False,
    }
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
    with raises("not_writable", path=path):
        storage.write_atomically(path, b"new")
    assert path.read_bytes() == old
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_missing_folder_and_missing_file(artifact, tmp_path):
    with raises("not_found", path=tmp_path / "no"):
        artifact.save(tmp_path / "no" / "a.acclimate")
    with raises("not_found", path=tmp_path / "none.acclimate"):
        Artifact.load(tmp_path / "none.acclimate")


@pytest.mark.parametrize(
    ("keep", "code"),
    [
        *((n, "truncated_file") for n in (0, 5, 8, 100)),  # inside the header
        (-100, "unreadable_file"),  # the header is whole and promises more than there is
    ],
)
def test_truncated(path, keep, code):
    path.write_bytes(path.read_bytes()[:keep])
    with raises(code, CorruptFile, path=path):
        Artifact.load(path)


@settings(deadline=None, max_examples=60)
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_any_flipped_bit_is_found(tmp_path_factory, saved, where, bit):
    path = tmp_path_factory.getbasetemp() / "flipped.acclimate"
    content = bytearray(saved)
    content[int(where * len(content))] ^= 1 << bit
    path.write_bytes(bytes(content))
    with pytest.raises((CorruptFile, ArtifactVersion, ArtifactMismatch)):
        Artifact.load(path)


def test_oversized_header(path):
    content = path.read_bytes()
    path.write_bytes(struct.pack("<Q", 2**40) + content[8:])
    with raises("unsafe_file", path=path):
        Artifact.load(path)


def test_not_safetensors(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(3)}, path)
    with raises("not_ours", path=path):
        Artifact.load(path)


def test_foreign_safetensors(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(3)}, path)
    with raises("not_ours", path=path):
        Artifact.load(path)


def test_a_state_is_not_an_artifact(tmp_path):
    acclimate.adapt(tiny_model("batch_norm"), "norm").save(tmp_path / "s.safetensors")
    with raises("other_kind", found="state", expected="artifact"):
        Artifact.load(tmp_path / "s.safetensors")


def test_newer_fields_warn_and_newer_major_is_refused(artifact, tmp_path, monkeypatch):
    path = tmp_path / "a.acclimate"
    storage.write_file(path, "artifact", artifact.tensors, {**artifact.card, "novelty": 1})
    with warns("unknown_fields", path=path, fields=("novelty",)):
        loaded = Artifact.load(path)
    assert "novelty" not in loaded.card
    monkeypatch.setattr(storage, "FORMAT", (2, 0))
    artifact.save(path)
    monkeypatch.undo()
    with raises("newer_format", path=path, found=(2, 0)):
        Artifact.load(path)


def test_a_later_format_is_refused_whatever_it_is_signed_with(tmp_path):
    card = json.dumps({"kind": "artifact", "format": [2, 0], "sha512": "…"})
    save_file({"a": torch.ones(1)}, tmp_path / "new", {"acclimate": card})
    with raises("newer_format", found=(2, 0)):
        Artifact.load(tmp_path / "new")


def test_newer_fields_inside_known_ones_are_left_out(artifact):
    info = {**artifact.card["info"], "pooling": "mean"}
    assert Artifact(artifact.tensors, {**artifact.card, "info": info}).info.head == "head"


def test_files_from_before_version_0_2_are_refused(artifact, tmp_path):
    card = {key: value for key, value in artifact.card.items() if key != "info"}
    path = tmp_path / "old.acclimate"
    storage.write_file(path, "artifact", artifact.tensors, card)
    with raises("older_format", ArtifactVersion, path=path):
        Artifact.load(path)


def test_a_folder_is_no_place_for_a_file(artifact, tmp_path):
    with raises("not_a_file", path=tmp_path):
        artifact.save(tmp_path)


def test_the_right_model_passes(artifact):
    artifact.check(tiny_model("batch_norm"))


def test_another_model_is_refused_with_all_differences(artifact):
    other = tiny_model("batch_norm")
    other.head = nn.Linear(8, 7)
    other.extra = nn.Linear(2, 2)
    expected = {
        "head.weight": ("(4, 8) float32", "(7, 8) float32"),
        "head.bias": ("(4,) float32", "(7,) float32"),
        "extra.weight": (None, "(2, 2) float32"),
        "extra.bias": (None, "(2,) float32"),
    }
    with raises("other_model", differences=expected):
        artifact.check(other)


def test_other_weights_are_refused(artifact):
    other = tiny_model("batch_norm")
    with torch.no_grad():
        other.head.bias[0] += 1e-6
    weights_only = {"differences": lambda found: set(found) == {"weights_sha256"}}
    with raises("other_model", **weights_only):
        artifact.check(other)
    with raises("other_model", **weights_only):
        acclimate.adapt(other, "swr_nsp", artifact)


def test_the_message_counts_the_differences_that_it_does_not_show(artifact):
    with raises("other_model") as caught:
        artifact.check(tiny_model("vit"))
    message, names = str(caught.value), caught.value.differences
    n_shown = sum(f"\n  {name}: " in message for name in names)
    assert 0 < n_shown < len(names)
    assert f"\n  (+ {len(names) - n_shown} more)" in message


def test_a_missing_part_is_named(artifact):
    with raises("missing_parts", parts=("fishes",)):
        artifact.part("fishes")
    small = Artifact(
        {k: v for k, v in artifact.tensors.items() if k.startswith("penalty")},
        {**artifact.card, "parts": {"penalty": artifact.card["parts"]["penalty"]}},
    )
    with raises("missing_parts", parts=("prototypes",)):
        acclimate.adapt(tiny_model("batch_norm"), "swr_nsp", small)
    with raises("artifact_needed", methods=("swr_nsp",)):
        acclimate.adapt(tiny_model("batch_norm"), "swr_nsp")
