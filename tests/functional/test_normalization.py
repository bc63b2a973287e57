"""Normalisation constants: the formula, what may stand for them, and what is refused."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.errors import InvalidConfig
from acclimate.functional.inputs import NORMALIZATIONS, Normalization
from tests.codes import raises
from tests.functional.test_inputs import FLOAT_TYPES, constants, image_shapes, random


@given(
    image_shapes,
    st.lists(st.floats(-1, 1), min_size=3, max_size=3),
    st.lists(st.floats(0.05, 3), min_size=3, max_size=3),
)
@settings(deadline=None, max_examples=40)
def test_normalisation_is_the_formula_and_its_inverse(
    shape: tuple[int, ...], mean: list[float], std: list[float]
) -> None:
    x = random(shape, torch.float64)
    normalization = Normalization(tuple(mean[: shape[1]]), tuple(std[: shape[1]]))
    result = normalization.normalize(x)
    for channel in range(shape[1]):
        expected = (x[:, channel] - mean[channel]) / std[channel]
        torch.testing.assert_close(result[:, channel], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(normalization.denormalize(result), x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
def test_normalisation_keeps_type_and_layout(dtype: torch.dtype) -> None:
    x = random((2, 3, 4, 4), dtype).to(memory_format=torch.channels_last)
    for change in (NORMALIZATIONS["cifar10"].normalize, NORMALIZATIONS["cifar10"].denormalize):
        assert change(x).dtype == dtype
        assert change(x).is_contiguous(memory_format=torch.channels_last)
        # Rounded once, at the end.
        precise = change(x.to(torch.float64 if dtype == torch.float64 else torch.float32))
        assert torch.equal(change(x), precise.to(dtype))


def test_what_can_stand_for_a_normalization() -> None:
    imagenet = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert Normalization.of(None) is None
    assert Normalization.of(imagenet) is imagenet
    assert Normalization.of("imagenet") == imagenet
    assert Normalization.of(([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])) == imagenet
    assert Normalization.of([torch.tensor([0.5]), torch.tensor([0.25])]) == constants(1)
    assert Normalization.of((0.5, 0.25)) == constants(1)
    assert Normalization.of(imagenet.to_dict()) == imagenet


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=4))
@settings(deadline=None, max_examples=30)
def test_normalisations_survive_json(pairs: list[tuple[float, float]]) -> None:
    normalization = Normalization(tuple(m for m, _ in pairs), tuple(s for _, s in pairs))
    assert Normalization.from_dict(json.loads(json.dumps(normalization.to_dict()))) == normalization


@pytest.mark.parametrize(
    ("make", "code", "data"),
    [
        (
            lambda: Normalization.of("imagnet"),
            "unknown_name",
            {"kind": "normalization", "name": "imagnet", "known": tuple(NORMALIZATIONS)},
        ),
        (lambda: Normalization.of(3), "wrong_type", {"option": "normalization", "found": "int"}),
        (
            lambda: Normalization.of((1, 2, 3)),
            "wrong_type",
            {"option": "normalization", "found": "tuple"},
        ),
        (
            lambda: Normalization((0.5,), (0.5, 0.5)),
            "count_mismatch",
            {"expected": 1, "found": 2},
        ),
        (lambda: Normalization((), ()), "missing_option", {"option": "mean"}),
        (
            lambda: Normalization((0.5,), (0.0,)),
            "out_of_range",
            {"option": "std", "found": (0.0,)},
        ),
        (
            lambda: Normalization((0.5,), (-1.0,)),
            "out_of_range",
            {"option": "std", "found": (-1.0,)},
        ),
        (
            lambda: Normalization((math.nan,), (1.0,)),
            "out_of_range",
            {"option": "mean", "found": lambda found: math.isnan(found[0])},
        ),
        (
            lambda: Normalization((0.5,), (math.inf,)),
            "out_of_range",
            {"option": "std", "found": (math.inf,)},
        ),
        (
            lambda: Normalization(("a",), (1.0,)),
            "malformed",
            {"option": "mean", "found": "('a',)"},
        ),
        (
            lambda: Normalization("grey", (1.0,)),
            "malformed",
            {"option": "mean", "found": "'grey'"},
        ),
        (lambda: Normalization.from_dict({"mean": [0.5]}), "missing_option", {"option": "std"}),
        (
            lambda: Normalization.from_dict({"mean": [0.5], "std": [1.0], "sdt": [1.0]}),
            "unknown_option",
            {"option": "sdt", "known": ("mean", "std")},
        ),
    ],
)
def test_wrong_normalisations_are_refused(make: object, code: str, data: dict[str, object]) -> None:
    with raises(code, InvalidConfig, **data):
        make()  # type: ignore[operator]
