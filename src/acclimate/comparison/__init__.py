"""Data by name, as jobs are measured on it and as artifacts are prepared from it."""

from __future__ import annotations

from acclimate.comparison.data import Data, Request
from acclimate.comparison.domains import load_data
from acclimate.comparison.source import ArraySource, Preparation

__all__ = ["ArraySource", "Data", "Preparation", "Request", "load_data"]
