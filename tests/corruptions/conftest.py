"""Fixtures of the tests of corruptions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from acclimate.corruptions import frost

make_texture = cache(frost.make_texture)


@pytest.fixture(scope="module")
def quiet_frost() -> Iterator[None]:
    """Do not warn of missing photographs; compute each texture that stands in for one only once."""
    with pytest.MonkeyPatch.context() as patch, frost.without_warning():
        patch.setattr(frost, "make_texture", make_texture)
        yield
