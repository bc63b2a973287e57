"""Comparisons against plain loops, their protocols, and the options of methods."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import acclimate
from acclimate.comparison import (
    STREAMS,
    Protocol,
    Wrapping,
    check_job,
    choose_methods,
    compare,
    iter_compare,
    make_configs,
)
from acclimate.comparison.run import Finished
from acclimate.errors import BadInput, InvalidConfig
from acclimate.introspect import ModelInfo, suits_channels_last
from acclimate.streams import Domain
from acclimate.testing.models import tiny_model
from tests.codes import raises
from tests.comparison.jobs import METHODS, N_CLASSES, make_domains, make_job

# The numbers ------------------------------------------------------------------------------------


def plain_loop(name: str, seed: int) -> list[int]:
    """Errors of every batch, by the public interface alone: reset, predict, count."""
    model = tiny_model("batch_norm").double()
    options = {"lr": 0.05} if name == "tent" else {}
    adapted = acclimate.adapt(model, name, seed=seed, **options)
    wrong = []
    for (domain,) in make_domains().values():
        adapted.reset()
        order = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
        for part in order.split(8):
            logits = adapted(domain.x[part].double())
            wrong.append(int((logits.argmax(1) != domain.y[part]).sum()))
    return wrong


def test_side_by_side_gives_what_each_method_gives_alone():
    """In double precision: no error that is counted hangs on an order of summation."""
    units = Protocol(batch_size=8, order="shuffled").units(make_domains(), seed=3)
    model = tiny_model("batch_norm").double()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = compare(model, make_configs(METHODS, {"lr": 0.05}), units, seed=3)
    assert list(found) == list(METHODS)
    for name, result in found.items():
        assert [record.n_errors for record in result.records] == plain_loop(name, 3)
        assert [record.index for record in result.records] == list(range(9))
        assert result.whole.n == 60
        assert all(record.predictions is None for record in result.records)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert not isinstance(acclimate.adapt(model, "norm").unwrap(), acclimate.Method)


def test_one_after_the_other_gives_the_same_and_reads_the_stream_again():
    units = Protocol(batch_size=8).units(make_domains())
    reads = []

    def spy(unit):
        def read():
            reads.append(unit.name)
            yield from unit.batches

        return replace(unit, batches=type("Spy", (), {"__iter__": lambda self: read()})())

    results = []
    for side_by_side in (True, False):
        reads.clear()
        model = tiny_model("batch_norm")
        steps = list(
            iter_compare(model, METHODS, [spy(u) for u in units], side_by_side=side_by_side)
        )
        ends = [step.unit for step in steps if isinstance(step, Finished)]
        assert sorted(ends) == sorted([unit.name for unit in units] * 3)
        records = [step for step in steps if not isinstance(step, Finished)]
        results.append(sorted((s.method, s.record.index, s.record.n_errors) for s in records))
        # Once to warm up, then once for all methods, or once for each.
        assert len(reads) == (4 if side_by_side else 12)
    assert results[0] == results[1]


def test_images_are_normalised_and_cast_on_their_way():
    normal = acclimate.Normalization((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    units = Protocol(batch_size=8).units(make_domains())
    model = tiny_model("batch_norm").double()
    wrapping = Wrapping(info=ModelInfo(normalization=normal), channels_last=False)
    found = compare(model, ["source"], units, wrapping)
    (domain,) = make_domains()["dark"]
    with torch.no_grad():
        logits = model.eval()(normal.normalize(domain.x).double())
    wrong = int((logits.argmax(1) != domain.y).sum())
    assert found["source"].error_by_domain["dark"] == wrong / 20


def test_a_model_that_needs_its_layout_is_found_out():
    class Picky(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
            self.head = torch.nn.Linear(256, N_CLASSES)

        def forward(self, x):
            return self.head(self.conv(x).view(len(x), -1))

    x = torch.rand(2, 3, 8, 8)
    assert suits_channels_last(tiny_model("batch_norm"), x)
    assert not suits_channels_last(Picky(), x)
    groups = {"any": (Domain("any", torch.rand(9, 3, 8, 8), torch.zeros(9).long()),)}
    job = make_job(
        model=Picky(),
        data=replace(make_job().data, groups=groups),
        methods=make_configs(["source"], {}),
    )
    assert not check_job(job).wrapping.channels_last


# The protocol -----------------------------------------------------------------------------------


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


# Options of methods -----------------------------------------------------------------------------


def test_options_reach_the_methods_that_have_them():
    configs = make_configs(["source", "tent"], {"lr": 0.5, "tent.lr": 0.25, "statistics": "source"})
    assert configs["tent"].lr == 0.25
    assert configs["source"].statistics == configs["tent"].statistics == "source"
    with raises("unknown_option", InvalidConfig, option="lrr", known=lambda known: "lr" in known):
        make_configs(["source", "tent"], {"lrr": 1})
    with raises("unknown_option", InvalidConfig, option="source.lr"):
        make_configs(["source", "tent"], {"source.lr": 1})
    with raises("unknown_name", InvalidConfig, name="tnet", known=("source", "tent")):
        make_configs(["source", "tent"], {"tnet.lr": 1})


def test_methods_are_chosen_by_name_or_all():
    every = choose_methods(["all"])
    assert set(METHODS) < set(every) <= set(acclimate.list_methods())
    with raises("unknown_method", name="tnet", known=lambda known: "tent" in known):
        choose_methods(["tnet"])
    with raises("missing_option", BadInput, option="methods"):
        choose_methods([])
    with raises("duplicate", BadInput, name="tent"):
        choose_methods(["tent", "tent"])


def test_data_of_other_classes_is_refused_before_the_work():
    data = make_job().data
    with raises("count_mismatch", BadInput, expected=N_CLASSES, found=2):
        check_job(make_job(data=replace(data, classes=("a", "b"))))
