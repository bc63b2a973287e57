"""Fixtures of the tests of training on several domains."""

from __future__ import annotations

from tests.domains.conftest import tree

__all__ = ["tree"]
