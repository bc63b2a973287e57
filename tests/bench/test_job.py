"""A job as plain data, and the names made from it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.bench import JobSpec, Preparing
from acclimate.errors import BadInput, InvalidConfig, UnknownMethod
from tests.codes import raises

SPEC = JobSpec(method="tent", data="cifar10c", model="resnet20-cifar10")


def test_defaults_that_are_spelled_out_change_nothing() -> None:
    same = JobSpec(
        method="tent",
        data="cifar10c",
        model="resnet20-cifar10",
        options={"lr": 1e-3},
        protocol={"batch_size": 200, "stream": "reset_each", "order": "file"},
        severities=(5,),
        speed="exact",
    )
    assert same.key == SPEC.key
    assert dataclasses.replace(SPEC, preset="cifar10").key == SPEC.key


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"options": {"lr": 2e-3}},
        {"protocol": {"batch_size": 100}},
        {"protocol": {"stream": "continual"}},
        {"corruptions": ("fog",)},
        {"severities": (3,)},
        {"images": 10},
        {"data": "cifar100c"},
        {"model": "resnet20-cifar100"},
        {"method": "norm"},
        {"preset": "imagenet"},
        {"terms": {"swr": {}}},
        {"terms": {"nsp": {}}},
        {"speed": "fast"},
        {"reveal_labels": True},
    ],
)
def test_whatever_changes_numbers_changes_the_key(change) -> None:
    assert dataclasses.replace(SPEC, **change).key != SPEC.key


def test_only_the_content_of_a_file_of_weights_counts(tmp_path: Path) -> None:
    for name, content in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (dataclasses.replace(SPEC, weights=str(tmp_path / name)).key for name in "abc")
    assert a == b != c
    assert SPEC.key != a
    (tmp_path / "a").write_bytes(b"three")
    assert dataclasses.replace(SPEC, weights=str(tmp_path / "a")).key not in (a, c)
    with raises("unreadable", BadInput, path=str(tmp_path / "nowhere")):
        _ = dataclasses.replace(SPEC, weights=str(tmp_path / "nowhere")).key


def test_the_keys_of_artifacts_are_those_of_what_makes_them(tmp_path: Path) -> None:
    assert SPEC.artifact_key is None
    swr = dataclasses.replace(SPEC, method="swr")
    assert swr.artifact_key is not None
    assert dataclasses.replace(swr, options={"lr": 1e-4}).artifact_key == swr.artifact_key
    # SWR as a term of another method needs the same.
    assert dataclasses.replace(SPEC, terms={"swr": {}}).artifact_key == swr.artifact_key
    fixed = Preparing(seed=0)
    assert dataclasses.replace(swr, seed=1).artifact_key != swr.artifact_key
    assert dataclasses.replace(swr, seed=1, prepare=fixed).artifact_key == swr.artifact_key
    for how in (
        Preparing(images=100),
        Preparing(source="cifar100"),
        Preparing(speed="fast"),
        Preparing(parts={"penalty": {"n_samples": 8}}),
    ):
        assert dataclasses.replace(swr, prepare=how).artifact_key != swr.artifact_key
    # Options of a part that is not needed change nothing.
    other = Preparing(parts={"prototypes": {"depth": 1}})
    assert dataclasses.replace(swr, prepare=other).artifact_key == swr.artifact_key
    (tmp_path / "head").write_bytes(b"weights")
    head = Preparing(contrast_head=str(tmp_path / "head"))
    assert dataclasses.replace(swr, prepare=head).artifact_key != swr.artifact_key


def test_a_folder_is_shuffled_unless_told_otherwise(tmp_path: Path) -> None:
    assert JobSpec(data=str(tmp_path)).get_protocol().order == "shuffled"
    assert JobSpec(data=str(tmp_path), protocol={"order": "file"}).get_protocol().order == "file"
    assert JobSpec(data="cifar10c").get_protocol().order == "file"


def test_a_folder_is_known_by_what_is_in_it_not_by_its_place(tmp_path: Path) -> None:
    here, moved, other = (tmp_path / name / "photos" for name in ("a", "b", "c"))
    for place, content in ((here, b"one"), (moved, b"two"), (other, b"three")):
        (place / "cat").mkdir(parents=True)
        (place / "cat" / "1.png").write_bytes(content)
    for method in ("tent", "swr"):
        keys = [JobSpec(method=method, data=str(own)).key for own in (here, moved, other)]
        assert keys[0] == keys[1] != keys[2]
    nowhere = JobSpec(data=str(tmp_path / "nowhere" / "photos"))
    assert nowhere.key not in keys


@pytest.mark.parametrize(
    ("values", "code", "error", "data", "meant"),
    [
        ({"metod": "tent"}, "unknown_option", InvalidConfig, {"option": "metod"}, "method"),
        ({"method": "tnet"}, "unknown_method", UnknownMethod, {"name": "tnet"}, "tent"),
        (
            {"options": {"lrr": 1}, "method": "tent"},
            *("unknown_option", InvalidConfig, {"option": "lrr"}, "lr"),
        ),
        (
            {"protocol": {"batchsize": 1}},
            *("unknown_option", InvalidConfig, {"option": "batchsize"}, "batch_size"),
        ),
        ({"prepare": {"image": 1}}, "unknown_option", InvalidConfig, {"option": "image"}, "images"),
        (
            {"prepare": {"parts": {"penaltyy": {}}}},
            *("unknown_name", InvalidConfig, {"kind": "part", "name": "penaltyy"}, "penalty"),
        ),
        (
            {"prepare": {"speed": "fastt"}},
            *("unknown_name", InvalidConfig, {"name": "fastt"}, "fast"),
        ),
        (
            {"corruptions": ["fogg"]},
            *("unknown_name", BadInput, {"kind": "corruption", "name": "fogg"}, "fog"),
        ),
    ],
)
def test_names_that_are_misspelt_are_refused_with_those_there_are(
    values, code, error, data, meant
) -> None:
    with raises(code, error, **data) as caught:
        JobSpec.from_dict(values)
    assert meant in caught.value.known


def test_oracles_and_severities_beyond_five_are_refused() -> None:
    with raises("oracle_method", BadInput, methods=("supervised",)):
        JobSpec.from_dict({"method": "supervised"})
    with raises("out_of_range", BadInput, option="severities", found=(6,)):
        JobSpec.from_dict({"severities": [6]})


def test_plain_values_leave_defaults_out() -> None:
    assert JobSpec(method="source").to_dict() == {"method": "source"}
    spec = JobSpec(method="swr", prepare=Preparing(images=9), severities=(1, 2))
    assert spec.to_dict() == {"method": "swr", "prepare": {"images": 9}, "severities": [1, 2]}


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 5),
    lr=st.floats(1e-6, 1.0),
    severities=st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True),
    terms=st.sampled_from([{}, {"swr": {}}, {"swr": {"strength": 3.0}}]),
    images=st.one_of(st.none(), st.integers(1, 100)),
)
def test_a_job_survives_a_file(seed, lr, severities, terms, images) -> None:
    spec = JobSpec(
        method="tent",
        seed=seed,
        options={"lr": lr},
        severities=tuple(severities),
        terms=terms,
        images=images,
    )
    again = JobSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.key == spec.key
