"""Figures are drawn from what was run, as well-formed pictures and a page that stands alone."""

from __future__ import annotations

import dataclasses
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch

from acclimate.artifact import Artifact
from acclimate.bench import Entry, Outcome, Suite, run_suite
from acclimate.bench.load import Loader
from acclimate.functional.swr_nsp import penalties
from acclimate.paper import EXPERIMENTS, figures
from acclimate.paper.experiment import FigureContext
from acclimate.paper.figures import (
    Features,
    draw_against,
    draw_cloud,
    draw_penalties,
    read_penalties,
    separation_by_class,
)
from acclimate.report.pages import render_clouds
from tests.codes import raises
from tests.paper.outcomes import fill
from tests.report.records import walk

COSINES = {"stem.weight": 0.1, "body.weight": 0.4, "body.bias": 0.2, "head.weight": 0.9}
SVG = "{http://www.w3.org/2000/svg}"


def save_artifact(path: Path) -> None:
    """An artifact with four penalties and nothing else."""
    cosines = {name: torch.tensor(value) for name, value in COSINES.items()}
    tensors = {f"cosine/{name}": value for name, value in cosines.items()}
    tensors |= {f"penalty/{name}": value for name, value in penalties(cosines).items()}
    layout = {name: ["float32", 1] for name in COSINES}
    card = {
        "info": {"n_classes": 10},
        "model": {"layout": layout, "weights_sha256": ""},
        "classes": None,
        "input_shape": [3, 8, 8],
        "seed": 0,
        "parts": {"penalty": {"granularity": "tensor"}},
        "versions": {},
    }
    Artifact(tensors, card).save(path)


def make_context(name: str, folder: Path, error: float = 30.0) -> FigureContext:
    experiment = EXPERIMENTS[name]
    outcomes = fill(experiment, "smoke", lambda entry, domain: error + len(entry.label) % 5)
    return FigureContext(experiment.tabulate(outcomes), outcomes, folder)


def test_curves_against_the_learning_rate(tmp_path: Path) -> None:
    drawing = draw_against(make_context("fig-1", tmp_path), "learning rate")
    (text,) = drawing.files.values()
    assert list(drawing.files) == ["fig-1.svg"]
    root = ET.fromstring(text)
    lines = list(root.iter(f"{SVG}polyline"))
    labels = {own.text for own in root.iter(f"{SVG}text") if own.get("class") == "legend"}
    assert labels == {
        "Ours",
        "Entropy, all parameters",
        "TENT",
        "Supervised",
        "Main + SWR",
    }
    assert len(lines) == 2 * 5  # in the chart and in the legend
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_penalties_of_all_variants(tmp_path: Path) -> None:
    context = make_context("fig-s2", tmp_path)
    for outcome in context.outcomes:
        save_artifact(tmp_path / f"{outcome.entry.spec.artifact_key}.acclimate")
    found = {
        str(outcome.entry.axes["column"]): list(read_penalties(outcome, tmp_path).values())
        for outcome in context.outcomes
    }
    scaled = np.array([0, 0.375, 0.125, 1])  # (cosine - lowest) / (highest - lowest)
    expected = {
        "a": scaled**2,
        "b": scaled**2,
        "c": scaled,
        "d": scaled**3,
        "e": 1 - scaled**2,
        "f": (scaled**2)[::-1],
        "g": np.full(4, (scaled**2).mean()),
        "h": np.array([0, 1 / 3, 2 / 3, 1]),
        "i": np.array([0, 1 / 9, 4 / 9, 1]),
        "j": np.array([0, 0, 1, 1]),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-6, err_msg=name)
    drawing = draw_penalties(context)
    root = ET.fromstring(drawing.files["fig-s2.svg"])
    captions = [own.text for own in root.iter(f"{SVG}text") if own.get("class") == "caption"]
    assert captions[0] == "(a) as proposed"
    assert captions[9] == "(j) step (ours)"
    marks = list(root.iter(f"{SVG}circle"))
    assert len(marks) == 10 * 4
    notes = [own.text for own in root.iter(f"{SVG}text") if own.get("class") == "note"]
    assert re.fullmatch(r"\d\d\.\d\d \([+-]\d\.\d\d\)", str(notes[1]))
    assert any("4 penalties" in note for note in drawing.notes)


def test_lost_artifacts_are_named(tmp_path: Path) -> None:
    context = make_context("fig-s2", tmp_path)
    lost = tmp_path / f"{context.outcomes[0].entry.spec.artifact_key}.acclimate"
    with raises("not_found", path=lost):
        draw_penalties(context)


def make_features(apart: float) -> Features:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 20)
    centres = apart * np.eye(3, 8)
    values = centres[labels] + rng.normal(size=(60, 8)) * 0.3
    return Features(values, labels, ("cat", "dog", "owl", "nobody"), "fog")


def test_separation_is_a_silhouette_of_class_means() -> None:
    found = make_features(1.0)
    values = found.values / np.linalg.norm(found.values, axis=1, keepdims=True)
    centres = {k: values[found.labels == k].mean(axis=0) for k in range(3)}
    centres = {k: centre / np.linalg.norm(centre) for k, centre in centres.items()}
    slow: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for value, label in zip(values, found.labels, strict=True):
        distance = {k: 1 - float(value @ centre) for k, centre in centres.items()}
        own = distance.pop(int(label))
        other = min(distance.values())
        slow[int(label)].append((other - own) / max(own, other))
    measured = separation_by_class(found)
    assert list(measured) == ["cat", "dog", "owl"]
    for k, name in enumerate(measured):
        assert measured[name] == pytest.approx(100 * np.mean(slow[k]), abs=1e-6)
    near = separation_by_class(make_features(0.2))
    assert sum(near.values()) < sum(measured.values())


def test_the_message_on_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with raises("missing_extra", package="scikit-learn") as caught:
        figures.check_tsne()
    assert "pip install 'acclimate[tsne]'" in str(caught.value)


def test_features_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the library: features that separate after adaptation, and a flat picture of them."""

    def gather(outcome: Outcome, context: FigureContext) -> Features:
        return make_features(1.5 if outcome.entry.axes["row"] == "After" else 0.1)

    monkeypatch.setattr(figures, "gather_features", gather)
    monkeypatch.setattr(figures, "embed", lambda values, seed: values[:, :2])
    drawing = figures.draw_embedding(make_context("fig-6", tmp_path))
    assert list(drawing.files) == ["fig-6.svg", "fig-6.html"]
    root = ET.fromstring(drawing.files["fig-6.svg"])
    keys = [own.text for own in root.iter(f"{SVG}text") if own.get("class") == "legend"]
    assert keys == ["cat", "dog", "owl", "nobody"]
    assert len(list(root.iter(f"{SVG}circle"))) == 2 * 60 + len(keys)
    (verdict,) = drawing.verdicts
    assert verdict.claim.startswith("classes lie closer together")
    assert verdict.margin is not None
    assert verdict.margin > 0
    assert drawing.table is not None
    assert drawing.table.columns == ("error", "separation")
    assert len(set(drawing.table.notes)) == len(drawing.table.notes)
    for setup, rows in drawing.table.setups.items():
        best = drawing.table.find_best(setup)
        shown = {row.label: row.ours[1].mean for row in rows if row.ours[1] is not None}
        (highest,) = [label for label in shown if best[label, 1]]
        assert shown[highest] == max(shown.values())
    before, after = drawing.table.rows
    assert before.ours[1] is not None
    assert after.ours[1] is not None
    assert after.ours[1].mean > before.ours[1].mean


def test_features_are_those_of_the_last_images(tmp_path: Path) -> None:
    """Those of the source method are the model's own on the same images."""
    from acclimate.forward import run
    from acclimate.introspect import get_head, inspect_model

    entry = EXPERIMENTS["fig-6"].suite("smoke", (0,)).entries[0]
    assert entry.spec.method == "source"
    (outcome,) = run_suite(
        Suite(title="one", entries=(entry,)), tmp_path / "store", n_workers=0, device="cpu"
    )
    found = figures.gather_features(
        outcome, dataclasses.replace(make_context("fig-6", tmp_path), store=tmp_path / "store")
    )
    loader = Loader(tmp_path)
    data = loader.load_data(entry.spec)
    model = loader.load_model(entry.spec, len(data.classes)).eval()
    x, y = data.domains[0].take(torch.arange(len(data.domains[0])))
    info = inspect_model(model, x[:2])
    with torch.no_grad():
        features = run(model, x, get_head(model, info.known_head)).features
    assert features is not None
    np.testing.assert_allclose(found.values, features.numpy(), atol=1e-5)
    np.testing.assert_array_equal(found.labels, y.numpy())
    assert found.domain == "gaussian_noise"
    assert found.classes == data.classes


def test_tsne_itself() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: acclimate[tsne]")
    found = make_features(2.0)
    places = figures.embed(found.values, 0)
    assert places.shape == (60, 2)
    assert places.min() == 0
    assert places.max() == 1
    np.testing.assert_array_equal(places, figures.embed(found.values, 0))


def test_the_page_stands_alone_and_links_its_charts() -> None:
    places = np.array([[0.0, 1.0], [0.5, 0.25]])
    hostile = "</script><b>"
    found = Features(places, np.array([0, 1]), ("cat", hostile), "fog")
    clouds = [draw_cloud(title, places, found) for title in ("before", "after")]
    page = render_clouds("Title & more", clouds, ["A note."])
    walker = walk(page)
    assert [tag for tag, _ in walker.tags].count("script") == 1
    assert "default-src 'none'" in page
    text = "".join(walker.text)
    assert "Title & more" in text
    assert "A note." in text
    assert [a["data-label"] for tag, a in walker.tags if tag == "li"] == ["cat", hostile]
    charts = [
        ET.fromstring(svg) for svg in re.findall(r'<svg class="chart".*?</svg>', page, re.DOTALL)
    ]
    assert len(charts) == 2
    for root in charts:
        circles = {c.attrib["data-point"]: c.attrib for c in root.iter("circle")}
        first, second = ((float(circles[i]["cx"]), float(circles[i]["cy"])) for i in "01")
        # Half of the width, and three quarters of the height, on axes that are a little longer.
        assert second[0] - first[0] == pytest.approx(0.5 / 1.06 * (340 - 36 - 12), abs=0.11)
        assert second[1] - first[1] == pytest.approx(0.75 / 1.06 * (300 - 22 - 34), abs=0.11)


def test_nothing_to_draw(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["fig-1"]
    drawing = draw_against(FigureContext(experiment.tabulate(()), (), tmp_path), "learning rate")
    assert drawing.files == {}
    assert drawing.notes


def test_an_entry_knows_its_place() -> None:
    entry = EXPERIMENTS["fig-1"].suite("full").entries[0]
    assert isinstance(entry, Entry)
    assert entry.label == "Ours, lr 1e-05"
    assert entry.axes["column"] == "1e-5"
