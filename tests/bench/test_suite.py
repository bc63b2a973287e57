"""Suites: short files that stand for many jobs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from acclimate.bench import Entry, JobSpec, Suite
from acclimate.errors import AcclimateError, BadInput, InvalidConfig
from tests.codes import raises


def load(tmp_path: Path, text: str) -> Suite:
    (tmp_path / "suite.toml").write_text(text)
    return Suite.load(tmp_path / "suite.toml")


def test_lists_stand_for_the_product_and_rows_win_over_what_is_shared(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        """
        title = "All of it"
        notes = "three of the fifteen corruptions"
        selection = "held-out"
        [job]
        data = "builtin"
        corruptions = ["fog", "snow", "frost"]
        protocol = { batch_size = 100, stream = "continual" }
        seed = [0, 1]
        [[rows]]
        label = "nothing"
        method = "source"
        seed = 5
        [[rows]]
        method = ["tent", "swr"]
        options = { lr = [1e-4, 1e-3] }
        protocol = { batch_size = 50 }
        """,
    )
    assert (suite.title, suite.notes) == ("All of it", "three of the fifteen corruptions")
    assert suite.selection == "held-out"
    first, *rest = suite.entries
    assert (first.label, first.spec.seed, first.spec.method) == ("nothing", 5, "source")
    found = [(e.spec.method, e.spec.options["lr"], e.spec.seed) for e in rest]
    assert found == list(itertools.product(("tent", "swr"), (1e-4, 1e-3), (0, 1)))
    for entry in rest:
        assert entry.spec.corruptions == ("fog", "snow", "frost")
        assert entry.spec.protocol == {"batch_size": 50, "stream": "continual"}
        assert entry.label == f"{entry.spec.method} (lr {entry.spec.options['lr']})"
        assert entry.axes == {
            "method": entry.spec.method,
            "batch_size": 50,
            "lr": entry.spec.options["lr"],
        }
    assert dict(first.axes) == {"method": "source", "batch_size": 100}
    assert Suite.from_dict(json.loads(json.dumps(suite.to_dict()))) == suite


def test_lists_that_are_values_need_a_list_around_them_to_stand_for_several(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        """
        [job]
        data = "builtin"
        [[rows]]
        method = "swr"
        corruptions = [["fog"], ["fog", "snow"]]
        severities = [[1, 2], [5]]
        prepare.parts.penalty.views = [{ name = "Flip" }, { name = "Grayscale" }]
        """,
    )
    assert suite.title == "suite"
    found = [(entry.spec.corruptions, entry.spec.severities) for entry in suite.entries]
    assert found == list(itertools.product((("fog",), ("fog", "snow")), ((1, 2), (5,))))
    views = [{"name": "Flip"}, {"name": "Grayscale"}]
    assert all(e.spec.prepare.parts["penalty"]["views"] == views for e in suite.entries)
    assert suite.entries[1].label == "swr (corruptions fog, severities 5)"
    assert suite.entries[2].label == "swr (corruptions fog + snow, severities 1 + 2)"


def test_names_of_views_stand_for_several_jobs(tmp_path: Path) -> None:
    text = "[[rows]]\nmethod = 'swr'\nprepare.parts.penalty.views = ['swr', 'color']"
    suite = load(tmp_path, text)
    assert [entry.label for entry in suite.entries] == ["swr (views swr)", "swr (views color)"]
    assert [entry.axes for entry in suite.entries] == [{"views": "swr"}, {"views": "color"}]


def test_terms_are_switched_on_and_off(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        """
        [job]
        terms.swr = true
        [[rows]]
        method = "tent"
        [[rows]]
        method = "tent"
        terms.swr = false
        terms.nsp = [false, true, { consistency = 0.0 }]
        """,
    )
    found = [entry.spec.terms for entry in suite.entries]
    assert found == [{"swr": {}}, {}, {"nsp": {}}, {"nsp": {"consistency": 0.0}}]
    assert [entry.label for entry in suite.entries] == [
        "tent + SWR",
        "tent (no nsp)",
        "tent (nsp)",
        "tent (nsp consistency 0.0)",
    ]


def test_models_and_data_make_groups(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        """
        [job]
        model = ["resnet20-cifar10", "builtin"]
        [[rows]]
        method = "source"
        [[rows]]
        method = "tent"
        group = "mine"
        model = "builtin"
        """,
    )
    assert [(entry.label, entry.group) for entry in suite.entries] == [
        ("source", "resnet20-cifar10"),
        ("source", "builtin"),
        ("tent", "mine"),
    ]


def test_files_are_looked_for_beside_the_suite(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for name in ("a.pt", "head.pt"):
        (tmp_path / "own" / name).write_bytes(b"x")
    suite = load(
        tmp_path,
        """
        [[rows]]
        method = "ttt_pp"
        weights = "own/a.pt"
        prepare = { contrast_head = "own/head.pt" }
        """,
    )
    spec = suite.entries[0].spec
    assert spec.weights == str(tmp_path / "own" / "a.pt")
    assert spec.prepare.contrast_head == str(tmp_path / "own" / "head.pt")
    rows = '[[rows]]\nmethod = "tent"\ndata = ["own", "cifar10c", "elsewhere"]'
    found = [entry.spec.data for entry in load(tmp_path, rows).entries]
    assert found == [str(tmp_path / "own"), "cifar10c", "elsewhere"]
    with raises("unreadable", BadInput, path=str(tmp_path / "own" / "b.pt")):
        load(tmp_path, '[[rows]]\nmethod = "tent"\nweights = "own/b.pt"')


TENT = "[[rows]]\nmethod='tent'\n"


@pytest.mark.parametrize(
    ("text", "option", "known", "unknown"),
    [
        (f"tittle = 'x'\n{TENT}", "tittle", "title", "method"),
        ("[job]\nmetod='tent'\n[[rows]]\n", "metod", "method", "label"),
        (f"{TENT}lable='x'", "lable", "label", "title"),
        (f"{TENT}options={{lrr=1}}", "lrr", "lr", "method"),
    ],
)
def test_names_that_are_misspelt_are_refused_with_those_of_their_table(
    tmp_path: Path, text: str, option: str, known: str, unknown: str
) -> None:
    """What is known in one table is not in another, so that the right table is meant."""
    with raises("unknown_option", option=option) as caught:
        load(tmp_path, text)
    assert known in caught.value.known
    assert unknown not in caught.value.known


@pytest.mark.parametrize(
    ("text", "option", "found"),
    [
        (f"title = 3\n{TENT}", "title", 3),
        (f"{TENT}label=3", "label", 3),
        (f"{TENT}images='all'", "images", "all"),
        (f"{TENT}images=1.5", "images", 1.5),
        (f"{TENT}seed='x'", "seed", "x"),
        (f"{TENT}seed=true", "seed", True),
        (f"{TENT}corruptions='fog'", "corruptions", "fog"),
        (f"{TENT}options='lr'", "options", "lr"),
        (f"{TENT}severities=5", "severities", 5),
        ("[[rows]]\nmethod=1", "method", 1),
        ("[[rows]]\nmethod='swr'\nprepare={images='x'}", "prepare.images", "x"),
        ("[[rows]]\nmethod='swr'\nprepare='x'", "prepare", "x"),
        ("rows = 3", "rows", 3),
    ],
)
def test_values_of_the_wrong_kind_are_refused(
    tmp_path: Path, text: str, option: str, found: object
) -> None:
    with raises("wrong_type", option=option, found=found):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "code", "data"),
    [
        (f"{TENT}[[rows]]\nlabel='x'", "missing_option", {"option": "method"}),
        ("title='x'", "missing_option", {"option": "rows"}),
        (f"{TENT}seed=[]", "out_of_range", {"option": "seed", "found": []}),
        (f"{TENT}corruptions=[]", "out_of_range", {"option": "corruptions", "found": []}),
        (f"{TENT}{TENT}label='x'", "duplicate", {"name": "x"}),
        (f"{TENT}seed=[0, 0]", "duplicate", {"name": "tent"}),
        (
            f"selection='best'\n{TENT}",
            "unknown_name",
            {"kind": "selection rule", "name": "best", "known": lambda names: "oracle" in names},
        ),
    ],
)
def test_other_mistakes_are_refused(
    tmp_path: Path, text: str, code: str, data: dict[str, Any]
) -> None:
    with raises(code, **data):
        load(tmp_path, text)


def test_the_message_names_the_file_and_the_row(tmp_path: Path) -> None:
    for text, place in (
        ("[job]\nmetod='tent'\n[[rows]]\n", "suite.toml, [job]"),
        (f"{TENT}[[rows]]\nlable='x'", "suite.toml, row 2"),
        (f"{TENT}[[rows]]\nlabel='x'", "suite.toml, row 2"),
        (f"{TENT}options={{lrr=1}}", "suite.toml, tent"),
    ):
        with pytest.raises(AcclimateError) as caught:
            load(tmp_path, text)
        assert place in str(caught.value)


def test_a_file_that_is_not_there_or_is_no_toml_is_named(tmp_path: Path) -> None:
    with raises("unreadable", BadInput, path=tmp_path / "nowhere.toml"):
        Suite.load(tmp_path / "nowhere.toml")
    with raises("malformed_file", BadInput, path=tmp_path / "suite.toml"):
        load(tmp_path, "[[rows]\n")


def test_the_class_and_the_data_of_an_error_are_kept(tmp_path: Path) -> None:
    with raises("invalid_options", InvalidConfig, problems=lambda own: list(own) == ["lr"]):
        load(tmp_path, f"{TENT}options={{lr=-1}}")


def test_rows_made_in_code_may_share_a_job_but_not_a_name() -> None:
    spec = JobSpec(method="tent")
    suite = Suite(title="x", entries=(Entry(spec, "ours"), Entry(spec, "default", "ablation")))
    assert len(suite.entries) == 2
    with raises("duplicate", BadInput, name="ours"):
        Suite(title="x", entries=(Entry(spec, "ours"), Entry(spec, "ours")))
    with raises("missing_option", BadInput, option="entries"):
        Suite(title="x", entries=())
