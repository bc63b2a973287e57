"""What a comparison gives: its runs, and where the numbers come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from acclimate.evaluation import Result


@dataclass(frozen=True)
class Run:
    """One method on one whole stream.

    Attributes:
        method: Name of the method.
        seed: Of the stream's order and of all draws.
        result: What was recorded, batch by batch.
        group: What sets it apart, such as another model or fewer images; empty for nothing.
    """

    method: str
    seed: int
    result: Result
    group: str = ""

    @property
    def name(self) -> str:
        """The method, with the group if there is one."""
        return f"{self.method} ({self.group})" if self.group else self.method


@dataclass(frozen=True)
class Comparison:
    """What came out.

    Attributes:
        runs: Every method with every seed.
        provenance: Where the numbers come from.
    """

    runs: tuple[Run, ...]
    provenance: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return summaries and provenance as JSON types."""
        return {
            "runs": [
                {"method": run.method, "seed": run.seed, **run.result.to_dict()}
                for run in self.runs
            ],
            "provenance": self.provenance,
        }
