"""Figure 6: what adaptation does to the features of the target."""

from __future__ import annotations

from acclimate.paper.claims import below
from acclimate.paper.embedding import AFTER, BEFORE, MOST_POINTS, check_tsne, draw_embedding
from acclimate.paper.experiment import Experiment, Variant

EXPERIMENTS = (
    Experiment(
        id="fig-6",
        shows="t-SNE of target features before and after, per backbone",
        settings=("CIFAR-10-C, WRN-40-2", "CIFAR-10-C, ResNet-50"),
        variants=lambda scale, setup: [
            Variant(BEFORE, {"method": "source", "keep": {"features": MOST_POINTS}}),
            Variant(AFTER, {"method": "swr_nsp", "keep": {"features": MOST_POINTS}}),
        ],
        claims=(below((AFTER, "error"), (BEFORE, "error"), "adaptation lowers the error"),),
        figure=draw_embedding,
        check=check_tsne,
    ),
)
