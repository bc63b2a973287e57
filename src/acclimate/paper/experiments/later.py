"""Experiments that cannot be run yet, and what they wait for."""

from __future__ import annotations

from acclimate.paper.experiment import Experiment

EXPERIMENTS = (
    Experiment(
        id="table-6",
        shows="domain generalization",
        missing="the sets VLCS, PACS, OfficeHome and TerraIncognita with leave-one-domain-out "
        "selection, and source models trained with ERM and CORAL, are missing.",
    ),
)
