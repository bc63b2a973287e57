"""Pure tensor functions without state."""

from acclimate.functional.entropy import (
    conservative_entropy,
    cross_entropy_between,
    entropy,
    entropy_of_mean,
    information_maximization,
    log_probs,
)
from acclimate.functional.norm import batch_norm_layers, norm_parameters, use_statistics
from acclimate.functional.per_sample import gradient_cosines
from acclimate.functional.swr_nsp import (
    add_penalty_gradient,
    move_prototypes,
    penalties,
    penalty_term,
    prototype_logits,
)
from acclimate.functional.views import VIEW_SETS, apply_views, get_views

__all__ = [
    "VIEW_SETS",
    "add_penalty_gradient",
    "apply_views",
    "batch_norm_layers",
    "conservative_entropy",
    "cross_entropy_between",
    "entropy",
    "entropy_of_mean",
    "get_views",
    "gradient_cosines",
    "information_maximization",
    "log_probs",
    "move_prototypes",
    "norm_parameters",
    "penalties",
    "penalty_term",
    "prototype_logits",
    "use_statistics",
]
