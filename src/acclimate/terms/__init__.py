"""Terms of a test-time loss that can be laid over any gradient method."""

from acclimate.terms.nsp import Nsp
from acclimate.terms.swr import Swr

__all__ = ["Nsp", "Swr"]
