"""A made-up page of the demonstration, and readers for what pages draw."""

from __future__ import annotations

import io
import random
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

from PIL import Image

from acclimate.bench.suite import Outcome
from acclimate.report import DemoPage, Layer, Sample, summarize
from tests.report.outcomes import make_outcome

HOSTILE = '<script>alert("x")</script>&\'é'
#: Labels with the method of each.
METHODS = {"source": "source", "norm": "norm", HOSTILE: "tent"}
DOMAINS = ("gaussian_noise", "fog")
VOID = {"meta", "img", "br", "hr", "link", "input"}


def make_run(label: str, seed: int, shares: dict[str, float], n_batches: int = 5) -> Outcome:
    draws = random.Random(f"{label}{seed}")
    counts = {
        domain: [sum(draws.random() < share for _ in range(40)) for _ in range(n_batches)]
        for domain, share in shares.items()
    }
    return make_outcome(label, counts, method=METHODS[label], seed=seed, n=40)


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), (10, 200, 30)).save(file, "PNG")
    return file.getvalue()


def make_demo(seeds: int = 2, notes: tuple[str, ...] = ()) -> DemoPage:
    runs = [
        make_run(label, seed, {DOMAINS[0]: 0.7 / (1 + i), DOMAINS[1]: 0.4 / (1 + i)})
        for i, label in enumerate(METHODS)
        for seed in range(seeds)
    ]
    predictions = dict.fromkeys(METHODS, "star")
    return DemoPage(
        task="images of toys",
        clean_error=0.0421,
        summary=summarize(runs),
        layers=(
            Layer("stem.weight", "convolution", (0.1, 0.2)[:seeds]),
            Layer("stage1.norm.weight", "normalisation, scale", (0.5, 0.4)[:seeds]),
            Layer(HOSTILE, "head, weight", (1.0, 1.0)[:seeds]),
        ),
        samples=tuple(Sample(domain, png(), png(), HOSTILE, predictions) for domain in DOMAINS),
        protocol={"data": HOSTILE},
        provenance={"command": "acclimate demo", "date": "2020-01-01"},
        notes=notes,
    )


class Walker(HTMLParser):
    """Checks that every element that is opened is closed, and keeps tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"an attribute twice in <{tag}>"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def walk(page: str) -> Walker:
    walker = Walker()
    walker.feed(page)
    walker.close()
    assert walker.open == []
    return walker


def series_in(svg: str) -> dict[str, list[tuple[float, float]]]:
    root = ElementTree.fromstring(svg)
    found = {}
    for group in root.iter("g"):
        line = group.find("polyline")
        if line is not None:
            pairs = [point.split(",") for point in line.attrib["points"].split()]
            found[group.attrib["data-label"]] = [(float(x), float(y)) for x, y in pairs]
    return found
