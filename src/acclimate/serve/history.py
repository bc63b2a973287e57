"""What a stream has shown over time, for the live page; bounded in length."""

from __future__ import annotations

import io
import time
from base64 import b64encode
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from torch import Tensor

from acclimate.metrics.batch import BatchMetrics
from acclimate.metrics.sums import to_plain

#: Numbers of points, events and images that are kept.
POINTS, EVENTS, RECENT = 600, 200, 8
_WIDEST = 96  # pixels of the pictures on the page


@dataclass
class History:
    """Points, events, images and predicted classes of a stream since the server was started."""

    points: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=POINTS))
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS))
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT))
    predicted: Counter[str] = field(default_factory=Counter)

    def add_batch(self, metrics: BatchMetrics, samples: int, latency_ms: float | None) -> None:
        """Add a point for a batch that was learned from; the latency is that of recent answers."""
        self.points.append(
            {
                "t": time.time(),
                "samples": samples,
                "source": _make_interval(metrics, "source"),
                "adapted": _make_interval(metrics, "adapted"),
                **{
                    name: to_plain(getattr(metrics, name))
                    for name in ("entropy", "effective_classes")
                },
                "latency_ms": latency_ms,
            }
        )

    def add_event(self, kind: str, text: str = "") -> None:
        """Add an event that happened now."""
        self.events.append({"t": time.time(), "kind": kind, "text": text})

    @staticmethod
    def make_recent(
        pixels: Tensor, source: dict[str, Any], adapted: dict[str, Any], answered_by: str
    ) -> dict[str, Any]:
        """Return an image, (3, height, width) in [0, 1], with the predictions of both models."""
        values = (pixels.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
        image, file = Image.fromarray(values), io.BytesIO()
        image.thumbnail((_WIDEST, _WIDEST))
        image.save(file, "PNG")
        return {
            "t": time.time(),
            "image": "data:image/png;base64," + b64encode(file.getvalue()).decode(),
            "source": source,
            "adapted": adapted,
            "answered_by": answered_by,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return a copy as JSON types."""
        return {
            "points": list(self.points),
            "events": list(self.events),
            "recent": list(self.recent),
            "predicted": dict(self.predicted),
        }


def _make_interval(metrics: BatchMetrics, who: str) -> dict[str, float] | None:
    value = getattr(metrics, f"{who}_accuracy")
    if value is None:
        return None
    ends = {end: getattr(metrics, f"{who}_accuracy_{end}") for end in ("low", "high")}
    made: dict[str, float] = to_plain({"value": value, **ends})
    return made
