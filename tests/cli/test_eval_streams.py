"""Every stream by its name, from the command line and from a suite, on the built-in data."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest

from acclimate.bench.protocol import STREAMS as ALL_STREAMS
from acclimate.bench.protocol import Protocol
from acclimate.bench.provenance import describe_order, describe_resets
from acclimate.commands.measure import EvalOptions
from tests.bench.jobs import make_spec, read_suite, run_once
from tests.bench.jobs import read_lines as read_job
from tests.cli.test_cli import run
from tests.codes import raises
from tests.paths import ROOT

WORDS = ["eval", "--model", "builtin", "--device", "cpu", "--data", "builtin", "--images", "12"]
WORDS += ["--corruptions", "fog,contrast"]
#: With these, single images can be learned from as well.
RUNNING = {"statistics": "running"}

#: Options of each stream, a part of its line, and how many images of each domain count.
STREAMS = {
    "recurring": (["--times", "2"], "recurring 2 times", {"fog": 24, "contrast": 24}),
    "single_images": ([], "single images, reset before each domain", {"fog": 12, "contrast": 12}),
    "one_class": (
        ["--n-batches", "3", "--n-classes", "2", "--batch-size", "4"],
        "one class for 3 batches in a row, samples recycled, 2 of the classes",
        {"fog": 24, "contrast": 24},
    ),
    "video": (
        ["--frames", "4", "--n-scenes", "3", "--batch-size", "6"],
        "4 frames of each of 3 images a domain",
        {"fog": 12, "contrast": 12},
    ),
    "alternating": (
        ["--period", "2", "--batch-size", "4"],
        "and corrupted in turns, changing after every 2 batches",
        {"fog": 12, "contrast": 12, "clean": 24},
    ),
    "foreign": (
        ["--share", "0.25", "--batch-size", "8"],
        "25 % foreign images (uniform noise) in each batch, not counted",
        {"fog": 12, "contrast": 12},
    ),
    "markov": (
        [
            *("--n-samples", "20", "--domain-correlation", "1", "--class-correlation", "0.5"),
            *("--domain-ratio", "3", "--class-ratio", "2", "--batch-size", "8"),
        ],
        "Markov chain, 20 samples recycled, domain stays with 1 (imbalance 3)",
        {"fog": 15, "contrast": 5},
    ),
    "dirichlet": (["--delta", "0.001"], "Dirichlet(0.001)", {"fog": 12, "contrast": 12}),
}


def count(lines: list[dict]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for line in lines:
        for name, (n, _) in line["by_domain"].items():
            found[name] += n
    return dict(found)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_by_its_name(stream: str, tmp_path: Path) -> None:
    given, line, expected = STREAMS[stream]
    out = tmp_path / "out"
    images = ["--images", "60"] if stream == "markov" else []  # with all classes in each domain
    words = [*WORDS, *images, "--method", "source,tent", "--set", "tent.statistics=running"]
    run(*words, "--stream", stream, *given, "--out", out)
    facts = json.loads((out / "result.json").read_text())["provenance"]
    assert line in facts["protocol_line"]
    assert facts["settings"]["protocol"]["stream"] == stream
    lines = read_suite(out)
    for method in ("source", "tent"):
        assert count([one for one in lines if one["method"] == method]) == expected


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_in_a_job_of_a_suite(stream: str, tmp_path: Path) -> None:
    given, line, expected = STREAMS[stream]
    protocol: dict = {"stream": stream}
    for name, value in zip(given[::2], given[1::2], strict=True):
        protocol[name.removeprefix("--").replace("-", "_")] = json.loads(value)
    images = 60 if stream == "markov" else 12
    changes = {"protocol": protocol, "corruptions": ("fog", "contrast"), "images": images}
    spec = make_spec("tent", options=RUNNING, model="builtin", **changes)
    assert run_once(spec, tmp_path / "job") == "finished"
    origin = json.loads((tmp_path / "job" / "result.json").read_text())["provenance"]
    assert line in origin["protocol_line"]
    assert count(read_job(tmp_path / "job")) == expected
    cut = tmp_path / "cut"
    assert run_once(spec, cut, stop_after=1) in ("stopped", "finished")
    assert run_once(spec, cut) == "finished"
    counts = [one["by_domain"] for one in read_job(cut)]
    assert counts == [one["by_domain"] for one in read_job(tmp_path / "job")]


def test_streams_without_what_they_need_are_refused(tmp_path: Path) -> None:
    words = [*WORDS, "--method", "source", "--out", tmp_path / "out"]
    with raises("not_applicable", option="frames"):
        run(*words, "--stream", "foreign", "--frames", "3")
    with raises("not_applicable", option="order"):
        run(*words, "--stream", "video", "--order", "file")
    with raises("conflicting_options", options=("stream", "batch_size")):
        run(*words, "--stream", "single_images", "--batch-size", "3")
    assert not (tmp_path / "out").exists()


def test_every_stream_is_in_the_help_and_in_the_documentation() -> None:
    told = EvalOptions.__dataclass_fields__["stream"].metadata["help"]
    table = (ROOT / "docs" / "streams.md").read_text()
    for name in ALL_STREAMS:
        assert name in told
        assert f"\n| `{name}` |" in table


def test_the_command_has_the_options_of_the_protocol() -> None:
    options = EvalOptions(model="builtin", data="builtin")
    for spec in dataclasses.fields(Protocol):
        unless_given = None if spec.name == "order" else spec.default
        assert getattr(options, spec.name) == unless_given


def test_orders_and_resets_are_told() -> None:
    assert describe_resets(Protocol(stream="single_images")) == "before each domain"
    assert describe_resets(Protocol(stream="video")) == "at the start only"
    assert describe_order(Protocol(stream="markov")) == "that of the stream markov"
    assert describe_order(Protocol(stream="alternating")) == "as in the files"


def test_the_page_has_a_place_for_the_table_of_harm() -> None:
    before, rest = (ROOT / "docs" / "streams.md").read_text().split("<!-- harm -->")
    table, after = rest.split("<!-- /harm -->")
    assert before
    assert table.strip()
    assert not after.strip()
