"""Fixtures of the tests of several domains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.domains.samples import make_tree


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three domains of 20 images each in a folder `mine`, only to be read."""
    return make_tree(tmp_path_factory.mktemp("domains") / "mine")
