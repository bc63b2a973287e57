"""Signed files: HMAC-SHA256 over the content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from acclimate.artifact import Artifact
from acclimate.errors import BadInput, CorruptFile
from acclimate.storage import read_file, write_file
from acclimate.testing.cases import Case, tiny_artifact
from acclimate.testing.steps import make_stream, run_stream, same_state, take_state
from tests.codes import raises

TENSORS = {"a": torch.arange(3.0)}


def test_a_signed_file_loads_with_its_key_and_without_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, "state", TENSORS, {"n": 1}, key="secret")
    for key in ("secret", b"secret", None):
        tensors, card = read_file(path, "state", key)
        assert torch.equal(tensors["a"], TENSORS["a"])
        assert (card["n"], "hmac" in card) == (1, False)
    assert b"secret" not in path.read_bytes()


@pytest.mark.parametrize("signed", [None, "other", b"other"])
def test_a_keyed_load_refuses_other_signatures(tmp_path: Path, signed: str | None) -> None:
    path = tmp_path / "file"
    write_file(path, "state", TENSORS, {}, key=signed)
    with raises("wrong_signature", CorruptFile, path=path) as caught:
        read_file(path, "state", "secret")
    assert "secret" not in str(caught.value) + repr(caught.value.data)


def test_a_signature_does_not_move_to_other_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, "state", TENSORS, {"n": 1}, key="secret")
    with safe_open(path, "pt") as file:
        signature = json.loads(file.metadata()["acclimate"])["hmac"]
    for tensors, n in (({"a": torch.ones(3)}, 1), (TENSORS, 2)):
        write_file(path, "state", tensors, {"n": n, "hmac": signature})
        with raises("wrong_signature"):
            read_file(path, "state", "secret")


@pytest.mark.parametrize("key", ["", b"", 3])
def test_a_key_is_text_or_bytes(tmp_path: Path, key: object) -> None:
    with raises("wrong_type", BadInput, option="key"):
        write_file(tmp_path / "file", "state", TENSORS, {}, key=key)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_artifacts_and_states_are_signed(tmp_path: Path) -> None:
    artifact, path = tiny_artifact("batch_norm"), tmp_path / "file"
    artifact.save(path, key="secret")
    assert Artifact.load(path, key="secret").card == artifact.card == Artifact.load(path).card
    with raises("wrong_signature"):
        Artifact.load(path, key="other")

    adapted = Case("tent", "batch_norm").build()
    run_stream(adapted, make_stream(1))
    adapted.save(path, key="secret")
    state = take_state(adapted)
    other = Case("tent", "batch_norm").build()
    before = take_state(other)
    with raises("wrong_signature"):
        other.load(path, key="other")
    assert same_state(take_state(other), before)
    assert same_state(take_state(other.load(path, key="secret")), state)
