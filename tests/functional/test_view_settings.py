"""Views as values: equality, JSON, repr, and the settings that are refused."""

from __future__ import annotations

import json

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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: get_views("srw"), 'no set of views "srw". Did you mean "swr"'),
        (lambda: get_views([{"name": "Grascale"}]), 'no view "Grascale". Did you mean "Grayscale"'),
        (lambda: get_views([{"p": 0.5}]), 'no view "None". Known: Blur, ColorJitter'),
        (lambda: get_views([{"name": "Blur", "sigmas": 1}]), 'no "sigmas". Did you mean "sigma"'),
        (lambda: get_views([{"name": "OneOf"}]), 'OneOf needs "views"'),
        (lambda: get_views(["swr"]), r"expected a list of views \(.*\), found 'swr' in it"),
        (lambda: get_views(3), "expected a list of views, found 3"),
        (lambda: OneOf(()), "OneOf needs at least one view"),
        (lambda: Grayscale(1.5), "Grayscale needs as p a number from 0 to 1, found 1.5"),
        (lambda: Invert(float("nan")), "Invert needs as p a number from 0 to 1, found nan"),
        (lambda: Flip("often"), "Flip needs as p a number from 0 to 1, found 'often'"),
        (lambda: ColorJitter(-0.1), "ColorJitter needs as brightness a number from 0"),
        (lambda: ColorJitter(float("inf")), "ColorJitter needs as brightness a number from 0"),
        (lambda: ColorJitter(hue=0.6), "ColorJitter needs as hue a number from 0 to 0.5"),
        (lambda: Blur(kernel=2), "Blur needs as kernel an odd whole number of pixels, found 2"),
        (lambda: Blur(kernel=3.0), "Blur needs as kernel an odd whole number of pixels"),
        (lambda: Blur(sigma=(2.0, 1.0)), r"Blur needs as sigma a pair .* found \(2.0, 1.0\)"),
        (lambda: Blur(sigma=(0.0, 1.0)), "0 < low <= high"),
        (lambda: Blur(sigma=1.0), r"Blur needs as sigma a pair .* found 1.0"),
        (lambda: Crop(scale=(0.5, 1.5)), r"0 < low <= high <= 1, found \(0.5, 1.5\)"),
        (lambda: Crop(ratio=(1.0, 2.0, 3.0)), "Crop needs as ratio a pair"),
    ],
)
def test_wrong_settings_are_refused(make: object, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        make()  # type: ignore[operator]
