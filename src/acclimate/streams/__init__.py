"""Streams: ordered batches of domains, and how they are made."""

from acclimate.streams.batch import Batch
from acclimate.streams.scenarios import Domain, reset_each

__all__ = ["Batch", "Domain", "reset_each"]
