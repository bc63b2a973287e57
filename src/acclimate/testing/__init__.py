"""Tools for authors of methods: small models of every kind, and the conformance suite."""

from acclimate.testing.contract import check_method, yield_checks
from acclimate.testing.models import TINY_MODELS, tiny_model

__all__ = ["TINY_MODELS", "check_method", "tiny_model", "yield_checks"]
