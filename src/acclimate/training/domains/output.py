"""What a run on several domains leaves: a log of its checks, and the weights that were best."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.errors import BadInput
from acclimate.storage import read_file


@dataclass(frozen=True)
class DomainResult:
    """What a run on several domains gave.

    Attributes:
        path: Of the weights that were best on the validation splits of the training domains.
        step: After which these were had.
        validation: Their accuracy by training domain, on 20 % of each, in percent.
        checks: The figures of every check: `step`, `loss`, `penalty`, `validation` and its `mean`.
        minutes: Time spent, over all calls.
        unreadable: The reason by path, of images that were left out.
        was_done: Whether the run had ended before, and nothing was done.
    """

    path: Path
    step: int
    validation: dict[str, float]
    checks: tuple[dict[str, Any], ...]
    minutes: float
    unreadable: dict[str, str] = field(default_factory=dict)
    was_done: bool = False

    @property
    def mean(self) -> float:
        """Mean accuracy over the training domains, which the checkpoint was chosen by."""
        return sum(self.validation.values()) / len(self.validation)


def last_path(out: Path) -> Path:
    """Return where the weights after the last step are written, if they are kept."""
    return out.with_name(f"{out.stem}.last.safetensors")


def choose_best(checks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the check of the highest mean accuracy, of equal ones the first."""
    return max(checks, key=lambda figures: figures["mean"])


def read_checks(path: Path, n_steps: int) -> list[dict[str, Any]]:
    """Return the checks that were logged of the first steps."""
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [figures for figures in lines if figures["step"] <= n_steps]


def read_domain_result(out: Path, run: Mapping[str, Any]) -> DomainResult:
    """Return the result of this very run, which has ended.

    Raises:
        BadInput: The file is the result of another run.
    """
    _, card = read_file(out, "zoo")
    done = card.get("training", {})
    if any(done.get(name) != value for name, value in run.items()):
        raise BadInput(
            "other_run",
            f"{out} is the result of a different run ({done.get('command', 'not of training')}). "
            "Pass another --out, or --force to overwrite it.",
            path=out,
        )
    return DomainResult(
        path=out,
        step=done["step"],
        validation=done["validation"],
        checks=tuple(done["checks"]),
        minutes=done["minutes"],
        unreadable=done["unreadable"],
        was_done=True,
    )
