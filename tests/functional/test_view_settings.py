"""Views as values: equality, JSON, repr, and the settings that are refused."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.errors import InvalidConfig
from acclimate.functional.views import (
    VIEW_SETS,
    Blur,
    ColorJitter,
    Crop,
    Flip,
    Grayscale,
    Invert,
    OneOf,
    View,
    Views,
    get_views,
)
from tests.codes import raises
from tests.functional.test_views import images, seeded

probabilities = st.floats(0, 1)
ranges = st.tuples(st.floats(0.1, 1), st.floats(0.1, 1)).map(lambda pair: tuple(sorted(pair)))
plain_views = st.one_of(
    st.builds(ColorJitter, probabilities, probabilities, probabilities, st.floats(0, 0.5)),
    st.builds(Grayscale, probabilities),
    st.builds(Invert, probabilities),
    st.builds(Flip, probabilities),
    st.builds(Blur, st.sampled_from([1, 3, 5]), ranges, probabilities),
    st.builds(Crop, ranges, ranges),
)
any_views = st.recursive(
    plain_views, lambda kinds: st.builds(OneOf, st.lists(kinds, min_size=1, max_size=3).map(tuple))
)


@given(st.lists(any_views, max_size=3))
@settings(deadline=None, max_examples=40)
def test_views_survive_json_and_repr(chosen: list[View]) -> None:
    views = Views(tuple(chosen))
    stored = json.loads(json.dumps(views.to_dict()))
    assert isinstance(stored, list)
    assert Views.from_dict(stored) == views
    assert get_views(stored) == views
    assert eval(repr(views)) == views
    assert hash(views) == hash(Views.from_dict(stored))
    x = images(4)
    assert torch.equal(Views.from_dict(stored)(x, seeded()), views(x, seeded()))


def test_dictionaries_are_plain() -> None:
    assert VIEW_SETS["swr"].to_dict() == [
        {"name": "ColorJitter", "brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2},
        {
            "name": "OneOf",
            "views": [{"name": "Grayscale", "p": 0.5}, {"name": "Invert", "p": 0.5}],
        },
        {"name": "Blur", "kernel": 3, "sigma": [1.0, 2.0], "p": 0.5},
    ]


def test_views_compare_by_value() -> None:
    assert Grayscale(1) == Grayscale(1.0)
    assert Grayscale(0.5) != Invert(0.5)
    assert Blur(sigma=[1, 2]) == Blur()  # type: ignore[arg-type]
    assert Views((Flip(),)) == get_views(Flip()) == get_views([Flip()])
    assert Views((Flip(), Invert())) != Views((Invert(), Flip()))
    assert get_views(VIEW_SETS["swr"]) is VIEW_SETS["swr"] is get_views("swr")


def _out_of_range(option: str, found: object) -> tuple[str, dict[str, object]]:
    return "out_of_range", {"option": option, "found": found}


def _wrong_type(option: str, found: str) -> tuple[str, dict[str, object]]:
    return "wrong_type", {"option": option, "found": found}


def _invalid(option: str) -> tuple[str, dict[str, object]]:
    return "invalid_options", {"problems": lambda found: set(found) == {option}}


def _unknown(kind: str, name: str, *among: str) -> tuple[str, dict[str, object]]:
    return "unknown_name", {"kind": kind, "name": name, "known": lambda k: {*among} <= {*k}}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: get_views("srw"), _unknown("set of views", "srw", *VIEW_SETS)),
        (lambda: get_views([{"name": "Grascale"}]), _unknown("view", "Grascale", "Grayscale")),
        (lambda: get_views([{"p": 0.5}]), _unknown("view", "None", "Blur", "ColorJitter")),
        (
            lambda: get_views([{"name": "Blur", "sigmas": 1}]),
            ("unknown_option", {"option": "sigmas", "known": ("kernel", "sigma", "p")}),
        ),
        (lambda: get_views([{"name": "OneOf"}]), ("missing_option", {"option": "views"})),
        (lambda: get_views(["swr"]), _wrong_type("view", "str")),
        (lambda: get_views(3), _wrong_type("views", "int")),
        (lambda: OneOf(()), _out_of_range("views", ())),
        (lambda: Grayscale(1.5), _invalid("p")),
        (lambda: Invert(math.nan), _invalid("p")),
        (lambda: Flip("often"), _invalid("p")),
        (lambda: ColorJitter(-0.1), _invalid("brightness")),
        (lambda: ColorJitter(math.inf), _invalid("brightness")),
        (lambda: ColorJitter(hue=0.6), _invalid("hue")),
        (lambda: Blur(kernel=2), _out_of_range("kernel", 2)),
        (lambda: Blur(kernel=-1), _invalid("kernel")),
        (lambda: Blur(kernel=3.0), _invalid("kernel")),
        (lambda: Blur(sigma=(2.0, 1.0)), _invalid("sigma")),
        (lambda: Blur(sigma=(0.0, 1.0)), _invalid("sigma")),
        (lambda: Blur(sigma=1.0), _invalid("sigma")),
        (lambda: Crop(scale=(0.5, 1.5)), _invalid("scale")),
        (lambda: Crop(ratio=(1.0, 2.0, 3.0)), _invalid("ratio")),
    ],
)
def test_wrong_settings_are_refused(make: object, expected: tuple[str, dict[str, object]]) -> None:
    code, data = expected
    with raises(code, InvalidConfig, **data):
        make()  # type: ignore[operator]
