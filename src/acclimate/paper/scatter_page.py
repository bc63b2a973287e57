"""Clouds of points as one interactive page that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Cloud:
    """Points of one panel.

    Attributes:
        title: Above it.
        places: (n, 2), each from 0 to 1.
        labels: Class of each.
        classes: Names by class.
    """

    title: str
    places: npt.NDArray[np.floating]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]


def render_clouds(title: str, clouds: Sequence[Cloud], notes: Sequence[str]) -> str:
    """Return the page: classes can be hidden, and a point is found again in the other panel.

    Neighbouring clouds, first and second, third and fourth, show the same images in one order.
    """
    content = [
        {
            "title": cloud.title,
            "points": [
                [round(float(x), 4), round(float(y), 4), int(label)]
                for (x, y), label in zip(cloud.places, cloud.labels, strict=True)
            ],
        }
        for cloud in clouds
    ]
    # Inside a script element only this could end it early.
    data = json.dumps({"classes": list(clouds[0].classes), "clouds": content}).replace("</", "<\\/")
    template = (files("acclimate.paper") / "scatter.html").read_text(encoding="utf-8")
    shown = "".join(f"<p>{escape(note)}</p>" for note in notes)
    for mark, text in (("@TITLE@", escape(title)), ("@NOTES@", shown), ("@DATA@", data)):
        template = template.replace(mark, text)
    return template
