"""Suites: short files that stand for many jobs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from acclimate.bench import Entry, JobSpec, Suite
from acclimate.errors import AcclimateError, BadInput, InvalidConfig


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


def test_parts_of_a_method_are_switched_on_and_off(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        """
        [job]
        regularizer = true
        [[rows]]
        method = "tent"
        [[rows]]
        method = "tent"
        regularizer = false
        auxiliary = [false, true, { consistency = 0.0 }]
        """,
    )
    found = [(entry.spec.regularizer, entry.spec.auxiliary) for entry in suite.entries]
    assert found == [({}, None), (None, None), (None, {}), (None, {"consistency": 0.0})]
    assert [entry.label for entry in suite.entries] == [
        "tent + SWR",
        "tent (no auxiliary)",
        "tent (auxiliary)",
        "tent (auxiliary consistency 0.0)",
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
    with pytest.raises(BadInput, match=r"own/b\.pt"):
        load(tmp_path, '[[rows]]\nmethod = "tent"\nweights = "own/b.pt"')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tittle = 'x'\n[[rows]]\nmethod='tent'", 'no "tittle".*Did you mean "title"'),
        ("title = 3\n[[rows]]\nmethod='tent'", "a text for title, found 3"),
        ("[job]\nmetod='tent'\n[[rows]]\n", r'\[job\] has no "metod".*Did you mean "method"'),
        ("[[rows]]\nmethod='tent'\nlable='x'", 'row 1 has no "lable".*Did you mean "label"'),
        ("[[rows]]\nmethod='tent'\nlabel=3", "a text for label, found 3"),
        ("[[rows]]\nmethod='tent'\n[[rows]]\nlabel='x'", "row 2: expected a method"),
        ("[[rows]]\nmethod='tent'\nseed=[]", "list seed is empty"),
        ("[[rows]]\nmethod='tent'\ncorruptions=[]", "list corruptions is empty"),
        ("[[rows]]\nmethod='tent'\n[[rows]]\nmethod='tent'\nlabel='x'", '"tent" and "x" are the'),
        ("[[rows]]\nmethod='tent'\nseed=[0, 0]", '"tent" and "tent" are the same job'),
        ("[[rows]]\nmethod='tent'\noptions={lrr=1}", 'suite.toml, tent: .*Did you mean "lr"'),
        ("[[rows]]\nmethod='tent'\nimages='all'", "a whole number for images, found 'all'"),
        ("[[rows]]\nmethod='tent'\nimages=1.5", "a whole number for images, found 1.5"),
        ("[[rows]]\nmethod='tent'\nseed='x'", "at least 0 for seed, found 'x'"),
        ("[[rows]]\nmethod='tent'\nseed=true", "at least 0 for seed, found True"),
        ("[[rows]]\nmethod='tent'\ncorruptions='fog'", r'a list, such as \["fog"\], for corr'),
        ("[[rows]]\nmethod='tent'\noptions='lr'", "a table.* for options, found 'lr'"),
        ("[[rows]]\nmethod='tent'\nseverities=5", r"such as \[5\], for severities, found 5"),
        ("[[rows]]\nmethod=1", "a text for method, found 1"),
        ("[[rows]]\nmethod='swr'\nprepare={images='x'}", "for prepare.images, found 'x'"),
        ("[[rows]]\nmethod='swr'\nprepare='x'", "a table.* for prepare, found 'x'"),
        ("title='x'", "at least one table"),
        ("rows = 3", r"tables \[\[rows\]\], found 3"),
        ("selection='best'\n[[rows]]\nmethod='tent'", 'no selection rule "best"'),
        ("[[rows]\n", "not a TOML file"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(AcclimateError, match=says):
        load(tmp_path, text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read the suite .*nowhere\.toml"):
        Suite.load(tmp_path / "nowhere.toml")


def test_the_kind_of_an_error_is_kept(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        load(tmp_path, "[[rows]]\nmethod='tent'\noptions={lr=-1}")


def test_rows_made_in_code_may_share_a_job_but_not_a_name() -> None:
    spec = JobSpec(method="tent")
    suite = Suite(title="x", entries=(Entry(spec, "ours"), Entry(spec, "default", "ablation")))
    assert len(suite.entries) == 2
    with pytest.raises(BadInput, match=r'"ours" \(seed 0\) twice'):
        Suite(title="x", entries=(Entry(spec, "ours"), Entry(spec, "ours")))
    with pytest.raises(BadInput, match="no job"):
        Suite(title="x", entries=())
