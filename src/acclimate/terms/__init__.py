"""Terms that can be added to any gradient method."""

from acclimate.terms.fisher import FisherPenalty
from acclimate.terms.nsp import Nsp
from acclimate.terms.swr import Swr
from acclimate.terms.term import (
    TERMS,
    ActiveTerm,
    Term,
    get_term_class,
    get_terms,
    register_term,
)

__all__ = [
    "TERMS",
    "ActiveTerm",
    "FisherPenalty",
    "Nsp",
    "Swr",
    "Term",
    "get_term_class",
    "get_terms",
    "register_term",
]
