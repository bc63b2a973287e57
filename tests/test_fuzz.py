"""Damaged and altered files: a short run of `make fuzz`, and files that failed in earlier runs."""

from __future__ import annotations

import copy
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.fuzz import FAILURES, Prepared, State, Target, Weights, fuzz, try_one
from torch import Tensor

from acclimate.storage import read_file, write_file
from tests.codes import raises

KINDS = {"states": 200, "weights": 200, "artifacts": 200}


@pytest.mark.parametrize("kind", KINDS)
def test_altered_files_are_refused_or_loaded_as_they_are(kind: str) -> None:
    found = fuzz(kind, KINDS[kind], seed=1)
    assert {outcome: found[outcome] for outcome in FAILURES} == dict.fromkeys(FAILURES, 0), found
    assert found["n"] == KINDS[kind]
    assert found["refused"] > KINDS[kind] / 2


Change = Callable[[dict[str, Tensor], dict[str, Any]], None]


def remove(name: str) -> Change:
    def apply(tensors: dict[str, Tensor], card: dict[str, Any]) -> None:
        del tensors[name]

    return apply


def rename(name: str) -> Change:
    return lambda tensors, card: tensors.update({f"{name}x": tensors.pop(name)})


def change(name: str, function: Callable[[Tensor], Tensor]) -> Change:
    return lambda tensors, card: tensors.update({name: function(tensors[name])})


def set_card(value: Any, *keys: str) -> Change:
    def apply(tensors: dict[str, Tensor], card: dict[str, Any]) -> None:
        for key in keys[:-1]:
            card = card[key]
        card[keys[-1]] = value

    return apply


def write_changed(target: Target, change: Change) -> None:
    """Write the file with a change and a right checksum."""
    target.path.write_bytes(target.content)
    tensors, card = read_file(target.path, target.kind)
    card = copy.deepcopy(card)
    change(tensors, card)
    write_file(target.path, target.kind, tensors, card)


#: Artifacts that loaded although the method could not use them: the method and the change.
ARTIFACTS: dict[str, tuple[str, Change]] = {
    "no distance": ("tfa", remove("contrast/head_mean_distance")),
    "renamed moment": ("tfa", rename("contrast/encoder_mean")),
    "moments of no shape": ("tfa", change("contrast/encoder_mean_distance", lambda t: t[None])),
    "distance of zero": ("tfa", change("contrast/encoder_mean_distance", torch.zeros_like)),
    "head of another shape": ("ttt_pp", change("contrast_head/2.bias", lambda t: t[:-1])),
    "widths that are a number": ("tfa", set_card(1, "parts", "contrast", "head")),
    "no widths": ("tfa", set_card({}, "parts", "contrast")),
    "prototypes of too few classes": (
        "swr_nsp",
        change("prototypes/embedding", lambda t: t[:-1]),
    ),
    "a huge projector": ("swr_nsp", set_card(10**12, "parts", "prototypes", "hidden")),
    "a projector without weights": (
        "swr_nsp",
        set_card(2, "parts", "prototypes", "projector_depth"),
    ),
    "penalties of another shape": ("swr_nsp", change("penalty/stem.weight", lambda t: t[None])),
    "penalties above 1": ("swr_nsp", change("penalty/stem.weight", lambda t: t + 1)),
    "penalties without cosines": ("swr_nsp", remove("cosine/stem.weight")),
    "an unknown unit": ("swr_nsp", set_card("x", "parts", "penalty", "granularity")),
    "negative information": ("eata", change("fisher/norm.weight", lambda t: -1 - t)),
    "information of integers": ("eata", change("fisher/norm.weight", lambda t: t.long())),
    "means of too many classes": (
        "petta",
        change("features/class_mean", lambda t: torch.cat([t, t])),
    ),
    "no width": ("swr_nsp", set_card(None, "info", "n_features")),
    "no number of classes": ("tent", set_card(None, "info", "n_classes")),
    "no accuracy": ("steady", remove("mirror/mirrored")),
    "one more accuracy": ("steady", change("mirror/accuracy", lambda t: t.repeat(2))),
    "no map": ("tent", remove("accuracy/32/gate")),
    "a map of another size": ("tent", rename("accuracy/32/gate")),
    "a scale of zero": ("tent", change("accuracy/32/scale", torch.zeros_like)),
    "a tensor of no part": ("tent", lambda tensors, card: tensors.update(x=torch.ones(1))),
}


@pytest.mark.parametrize("name", ARTIFACTS)
def test_artifacts_that_failed_are_refused(name: str, tmp_path: Path) -> None:
    method, altered = ARTIFACTS[name]
    target = Prepared(tmp_path, method)
    write_changed(target, altered)
    with raises("wrong_content", path=target.path):
        target.load()
    assert target.is_untouched()


def test_cosines_without_a_gradient_are_undefined(tmp_path: Path) -> None:
    target = Prepared(tmp_path, "swr_nsp")
    write_changed(target, change("cosine/stem.weight", lambda t: t * torch.nan))
    assert try_one(target, sealed=True) == ("accepted", "")


def test_a_memory_of_another_precision_is_used(tmp_path: Path) -> None:
    target = State(tmp_path, "note")
    write_changed(target, change("method.images", lambda t: t.half()))
    assert try_one(target, sealed=True) == ("accepted", "")


def test_compressed_weights_are_refused(tmp_path: Path) -> None:
    target = Weights(tmp_path, "vit", as_torch=True)
    with zipfile.ZipFile(target.path) as file:
        content = {entry: file.read(entry) for entry in file.namelist()}
    with zipfile.ZipFile(target.path, "w", zipfile.ZIP_DEFLATED) as file:
        for entry, data in content.items():
            file.writestr(entry, data)
    with raises("unreadable_file", path=target.path):
        target.load()
    assert target.is_untouched()


def test_a_flipped_bit_that_marks_a_record_as_compressed_is_refused(tmp_path: Path) -> None:
    # torch.load returned uninitialised memory for it.
    target = Weights(tmp_path, "vit", as_torch=True)
    data = bytearray(target.content)
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 10] = zipfile.ZIP_DEFLATED
    target.path.write_bytes(bytes(data))
    with raises("unreadable_file", path=target.path):
        target.load()
    assert target.is_untouched()
