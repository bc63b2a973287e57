"""Protocols: what they refuse, their units, and how batches are counted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from acclimate.bench.protocol import STREAMS, Protocol
from acclimate.errors import BadInput
from tests.bench.toys import make_domains
from tests.codes import raises


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "shuffled", "epochs": 2},
        {"clean_probe": True, "epochs": 2},
        {"window": 4},
        {"episodic": True, "clean_probe": True},
        {"stream": "continual", "clean_probe": True, "epochs": 2},
        {"stream": "recurring", "times": 2, "clean_probe": True},
        {"stream": "gradual"},
        {"stream": "gradual", "clean_probe": True},
        {"stream": "mixed", "clean_probe": True, "epochs": 2},
        {"stream": "mixed", "window": 5},
        {"stream": "label_sorted"},
        {"stream": "dirichlet", "delta": 0.5},
        {"stream": "imbalanced"},
        {"stream": "single_images", "clean_probe": True},
        {"stream": "single_images", "window": 3},
        {"stream": "one_class"},
        {"stream": "one_class", "n_batches": 2, "n_classes": 2, "clean_probe": True, "epochs": 2},
        {"stream": "one_class", "n_classes": 3, "window": 3},
        {"stream": "video", "frames": 3, "clean_probe": True},
        {"stream": "video", "frames": 5, "n_scenes": 8, "window": 4, "epochs": 2},
        {"stream": "alternating"},
        {"stream": "alternating", "period": 2, "clean_probe": True, "epochs": 2},
        {"stream": "alternating", "period": 99, "window": 2, "order": "shuffled"},
        {"stream": "foreign", "share": 0.25, "clean_probe": True},
        {"stream": "foreign", "share": 0.5, "window": 3, "epochs": 2},
        {"stream": "markov", "clean_probe": True, "epochs": 2},
        {"stream": "markov", "n_samples": 9, "domain_correlation": 1.0, "class_ratio": 3},
        {"stream": "markov", "n_samples": 9, "window": 4},
    ],
)
def test_batches_are_counted_without_being_made(options):
    groups = {"a": (*make_domains(19)["dark"], *make_domains(9)["dim"])}
    groups["b"] = make_domains(20)["bright"]
    clean = replace(make_domains(9)["dim"][0], name="clean")
    size = {} if options.get("stream") == "single_images" else {"batch_size": 4}
    protocol = Protocol(**size, **options)
    units = protocol.units(groups, clean, seed=1)
    for unit in units:
        batches = list(unit.batches)
        assert len(batches) == unit.n_batches
        assert batches[0].reset
    names = ["dark", "dim", "bright"]
    whole = protocol.stream not in ("reset_each", "single_images")
    assert [unit.name for unit in units] == ([options["stream"]] if whole else names)
    assert f"batches of {protocol.batch_size}" in protocol.describe(groups, clean, seed=1)


@pytest.mark.parametrize(
    ("options", "code", "data"),
    [
        (
            {"stream": "continuous"},
            "unknown_name",
            {"kind": "stream", "name": "continuous", "known": lambda known: "continual" in known},
        ),
        (
            {"order": "random"},
            "unknown_name",
            {"kind": "order", "name": "random", "known": ("file", "shuffled")},
        ),
        ({"batch_size": 0}, "out_of_range", {"option": "batch_size", "found": 0}),
        ({"epochs": 0}, "out_of_range", {"option": "epochs", "found": 0}),
        ({"times": 3}, "not_applicable", {"option": "times"}),
        ({"stream": "continual", "delta": 1.0}, "not_applicable", {"option": "delta"}),
        ({"stream": "video", "share": 0.1}, "not_applicable", {"option": "share"}),
        ({"stream": "imbalanced", "class_ratio": 2.0}, "not_applicable", {"option": "class_ratio"}),
        ({"stream": "video", "frames": 2.5}, "wrong_type", {"option": "frames", "found": 2.5}),
        ({"stream": "foreign", "share": "0.1"}, "wrong_type", {"option": "share", "found": "0.1"}),
        (
            {"stream": "single_images", "batch_size": 64},
            "conflicting_options",
            {"options": ("stream", "batch_size")},
        ),
        (
            {"window": 4, "episodic": True},
            "conflicting_options",
            {"options": ("window", "episodic")},
        ),
    ],
)
def test_protocols_that_make_no_sense_are_refused(options, code, data):
    with raises(code, BadInput, **data):
        Protocol(**options)


def test_clean_images_to_probe_with_are_asked_for():
    with raises("missing_option", BadInput, option="clean"):
        Protocol(clean_probe=True).units(make_domains())
    with raises("missing_option", BadInput, option="clean"):
        Protocol(stream="alternating").units(make_domains())


def test_defaults_are_those_of_the_streams():
    assert Protocol(stream="recurring").own_options == {"times": 20}
    assert Protocol(stream="single_images").batch_size == 1
    assert Protocol(stream="video").own_options == {"frames": 32}
    assert Protocol(stream="markov").own_options == {
        "domain_correlation": 0.85,
        "class_correlation": 0.95,
        "domain_ratio": 1.0,
        "class_ratio": 1.0,
    }
    # Options of streams that came later are not stated by others: their names stay the same.
    assert Protocol().to_dict().keys() == {
        *("stream", "batch_size", "order", "times", "delta", "ratio"),
        *("episodic", "epochs", "window", "clean_probe"),
    }
    for name in STREAMS:
        given = Protocol(stream=name).to_dict()
        assert Protocol(**given).to_dict() == given


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"stream": "recurring", "times": 0}, "times"),
        ({"stream": "recurring", "times": -1}, "times"),
        ({"stream": "dirichlet", "delta": 0.0}, "delta"),
        ({"stream": "dirichlet", "delta": math.nan}, "delta"),
        ({"stream": "imbalanced", "ratio": 0.5}, "ratio"),
        ({"stream": "imbalanced", "ratio": math.inf}, "ratio"),
        ({"stream": "one_class", "n_batches": 0}, "n_batches"),
        ({"stream": "one_class", "n_classes": 0}, "n_classes"),
        ({"stream": "video", "frames": 0}, "frames"),
        ({"stream": "video", "n_scenes": -1}, "n_scenes"),
        ({"stream": "alternating", "period": 0}, "period"),
        ({"stream": "foreign", "share": 1.0}, "share"),
        ({"stream": "foreign", "share": 0.1, "batch_size": 2}, "share"),
        ({"stream": "markov", "n_samples": 0}, "n_samples"),
        ({"stream": "markov", "domain_correlation": 1.5}, "domain_correlation"),
        ({"stream": "markov", "class_correlation": math.nan}, "class_correlation"),
        ({"stream": "markov", "domain_ratio": 0.1}, "domain_ratio"),
        ({"stream": "markov", "class_ratio": math.inf}, "class_ratio"),
        ({"window": 1}, "window"),
        ({"window": -3}, "window"),
    ],
)
def test_a_protocol_is_checked_when_it_is_made(options, option):
    with raises("out_of_range", option=option, found=lambda found: found is options[option]):
        Protocol(**options)
