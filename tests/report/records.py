"""Made-up records for the tests of the report, and readers for what it draws."""

from __future__ import annotations

import dataclasses
import io
import random
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import torch
from PIL import Image

from acclimate.evaluation import Record, Result
from acclimate.report import Layer, MethodNote, Report, Run, Sample

HOSTILE = '<script>alert("x")</script>&\'é'
METHODS = ("source", "norm", HOSTILE)
DOMAINS = ("gaussian_noise", "fog")
VOID = {"meta", "img", "br", "hr", "link", "input"}


def make_run(method: str, seed: int, shares: dict[str, float], n_batches: int = 5) -> Run:
    draws = random.Random(f"{method}{seed}")
    records = []
    for domain, share in shares.items():
        for _ in range(n_batches):
            n = 40
            wrong = sum(draws.random() < share for _ in range(n))
            records.append(
                Record(
                    domain=domain,
                    index=len(records),
                    n=n,
                    n_errors=wrong,
                    entropy=0.5,
                    nll=0.7,
                    ms=draws.uniform(5, 20),
                    n_skipped=0,
                    n_restored=0,
                    predictions=torch.zeros(n, dtype=torch.int64),
                    by_domain={domain: (n, wrong)},
                )
            )
    return Run(method, seed, Result(tuple(records)))


def exact_run(method: str, seed: int, *errors_of_100: int) -> Run:
    """A run of one batch of 100 images for each shift, with that many errors."""
    made = make_run(method, seed, {f"shift{i}": 0.0 for i in range(len(errors_of_100))}, 1)
    records = tuple(
        dataclasses.replace(record, n=100, n_errors=wrong, by_domain={record.domain: (100, wrong)})
        for record, wrong in zip(made.result.records, errors_of_100, strict=True)
    )
    return Run(method, seed, Result(records))


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), (10, 200, 30)).save(file, "PNG")
    return file.getvalue()


def make_report(seeds: int = 2, methods: tuple[str, ...] = METHODS) -> Report:
    runs = tuple(
        make_run(method, seed, {DOMAINS[0]: 0.7 / (1 + i), DOMAINS[1]: 0.4 / (1 + i)})
        for i, method in enumerate(methods)
        for seed in range(seeds)
    )
    samples = tuple(
        Sample(domain, png(), png(), HOSTILE, dict.fromkeys(methods, "star")) for domain in DOMAINS
    )
    return Report(
        task="images of toys",
        clean_error=0.0421,
        runs=runs,
        methods=tuple(MethodNote(name, f"{name} works.", "", "Costs 1.") for name in methods),
        layers=(
            Layer("stem.weight", "convolution", (0.1, 0.2)[:seeds]),
            Layer("stage1.norm.weight", "normalisation, scale", (0.5, 0.4)[:seeds]),
            Layer(HOSTILE, "head, weight", (1.0, 1.0)[:seeds]),
        ),
        samples=samples,
        protocol={"data": HOSTILE},
        provenance={"command": "acclimate demo", "date": "2020-01-01"},
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
