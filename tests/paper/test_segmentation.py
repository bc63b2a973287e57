"""Tables s7 and s8 and figure s3: the paper's setting, mean IoU, and what is drawn."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate.bench import Entry, Outcome
from acclimate.builtin.scene_model import load_scene_model
from acclimate.data import load
from acclimate.evaluation import Collector, Result
from acclimate.methods.swr import SwrConfig
from acclimate.paper import EXPERIMENTS, Settings, reproduce
from acclimate.paper.claims import Cell, Claim, Grid, judge, read_grids
from tests.codes import raises
from tests.paper.outcomes import make_outcome, make_record

MIOU, SOURCE, MAIN, SWR = "mIoU", "Source", "Main", "Main + SWR"
NSP = "Main + SWR + NSP on pixels"
DOMAINS = ("noise", "blur", "fog", "snow", "frost", "jpeg")


def make_pixels(domain: str, n_right: int) -> tuple[Collector, float]:
    """Ten pixels of class 0, of which some are taken for class 1; their mean IoU by hand."""
    collector = Collector()
    predicted = [0] * n_right + [1] * (10 - n_right)
    logits = torch.eye(2)[predicted]
    collector.update(logits, torch.zeros(10, dtype=torch.int64), (domain,), are_pixels=True)
    return collector, (n_right / 10 + 0) / (2 if n_right < 10 else 1)


def fill(name: str, n_right: dict[str, int]) -> tuple[list[Outcome], dict[str, float]]:
    """Outcomes of the first setup of an experiment at the small scale, and their mean IoU."""
    found, expected = [], {}
    entries = EXPERIMENTS[name].suite("small", (0,), Settings(only="DeepLab")).entries
    for entry in entries:
        row = str(entry.axes["row"])
        if row in n_right:
            collector, expected[row] = make_pixels("snow", n_right[row])
            record = make_record("snow", 0.0)
            wrong = 10 - n_right[row]
            record = type(record)(
                **{
                    **vars(record),
                    "n": 10,
                    "n_errors": wrong,
                    "by_domain": {"snow": (10, wrong)},
                    "n_pixel_images": 1,
                }
            )
            found.append(Outcome(entry, collector.result([record]), {}))
    return found, expected


def test_cells_are_mean_ious() -> None:
    outcomes, expected = fill("table-s7", {SOURCE: 3, MAIN: 9, SWR: 10})
    experiment = EXPERIMENTS["table-s7"]
    table = experiment.tabulate(outcomes)
    shown = {row.label: row.ours[0].mean for row in table.rows if row.ours[0] is not None}
    assert shown == pytest.approx({row: 100 * value for row, value in expected.items()})
    assert table.measured == "miou"
    (setup,) = table.setups
    best = [label for (label, _), is_best in table.find_best(setup).items() if is_best]
    assert best == [SWR]
    (verdict,) = experiment.judge(outcomes)
    assert verdict.margin == pytest.approx(100 * (expected[SWR] - expected[SOURCE]))
    assert verdict.published is True


def test_jobs_without_pixels_are_refused() -> None:
    entry = EXPERIMENTS["table-s7"].suite("small", (0,)).entries[0]
    with raises("not_recorded", what="miou"):
        read_grids([make_outcome(entry, {"snow": 10.0})], "jobs", "miou")
    assert Result((make_record("snow", 10.0),)).miou_by_domain == {}


def _grid(means: dict[Cell, float]) -> Grid:
    cells = {
        cell: {0: {name: mean + place for place, name in enumerate(DOMAINS)}}
        for cell, mean in means.items()
    }
    return Grid("here", "there", cells)


def test_more_is_better() -> None:
    a, b = (SWR, MIOU), (SOURCE, MIOU)
    claim = Claim("more", "above", ((a,), (b,)))
    assert judge(claim, _grid({a: 50, b: 40})).verdict == "holds"
    assert judge(claim, _grid({a: 40, b: 50})).verdict == "does not hold"
    assert judge(claim, _grid({a: 50, b: 40})).margin == pytest.approx(10)


def test_steadier_compares_ranges() -> None:
    first, second = (("a", "1"), ("a", "2"), ("a", "3")), (("b", "1"), ("b", "2"), ("b", "3"))
    claim = Claim("a is steadier", "steadier", (first, second))
    means = dict(zip((*first, *second), (50.0, 53.0, 51.0, 10.0, 60.0, 40.0), strict=True))
    verdict = judge(claim, _grid(means))
    assert (verdict.verdict, verdict.margin) == ("holds", pytest.approx(50 - 3))
    turned = judge(Claim("b is steadier", "steadier", (second, first)), _grid(means))
    assert turned.verdict == "does not hold"


def test_the_papers_own_numbers_bear_its_claims_out() -> None:
    for name in ("table-s7", "table-s8"):
        experiment = EXPERIMENTS[name]
        for setting, rows in experiment.published.rows.items():
            numbers = {
                (row, column): value
                for row, values in rows.items()
                for column, value in zip(experiment.published.columns, values, strict=True)
            }
            for claim in experiment.claims:
                cells = {cell: np.asarray(numbers[cell]) for cell in claim.cells}
                assert float(claim.statistic(cells)) > 0, (setting, claim.text)


def test_the_full_scale_is_the_papers_setting() -> None:
    by_group: dict[str, dict[str, Entry]] = {}
    for entry in EXPERIMENTS["table-s7"].suite("full").entries:
        by_group.setdefault(entry.group, {})[str(entry.axes["row"])] = entry
    assert list(by_group) == ["DeepLabV3+ (ResNet-50)", "RobustNet (ResNet-50)"]
    for group, rows in by_group.items():
        assert NSP not in rows  # which is not the paper's
        spec = rows[SWR].spec
        assert spec.model == "deeplabv3plus-resnet50" + ("+isw" if "Robust" in group else "")
        assert (spec.data, len(spec.corruptions or ())) == ("cityscapes", 15)
        assert spec.get_protocol().batch_size == 2
        config = spec.get_config()
        assert isinstance(config, SwrConfig)
        assert (config.optimizer, config.lr) == ("adam", 1e-5)
        assert (config.strength, config.anchor) == (40.0, "source")
        for row in (SWR, MAIN, "TENT"):
            own = rows[row].spec.get_config().to_dict()
            assert (own["statistics"], own["statistics_momentum"]) == ("running", 0.1)
            assert own["lr"] == 1e-5


def test_the_small_scale_is_camvid_with_two_models() -> None:
    suite = EXPERIMENTS["table-s7"].suite("small", (0,))
    models = {entry.group: entry.spec.model for entry in suite.entries}
    assert models == {
        "CamVid, DeepLabV3+": "deeplabv3plus-efficientnet-lite0",
        "CamVid, RobustNet": "deeplabv3plus-efficientnet-lite0+isw",
    }
    assert NSP in {entry.label for entry in suite.entries}
    marks = {str(entry.axes["row"]): entry.axes["mark"] for entry in suite.entries}
    assert (marks[NSP], marks[SWR]) == ("ours", "")
    assert "images at even distances" in suite.notes
    s8 = EXPERIMENTS["table-s8"].suite("small", (0,))
    shared = {e.spec.key for e in suite.entries} & {e.spec.key for e in s8.entries}
    assert len(shared) == 4  # both losses at 1e-5, of both models, are run once


def test_the_message_names_the_weights_asked_for_and_how_to_train_them(tmp_path: Path) -> None:
    name = "deeplabv3plus-efficientnet-lite0"
    with raises("no_weights", name=name) as caught:
        reproduce(EXPERIMENTS["table-s7"], "small", tmp_path / "out", n_workers=0)
    assert f"--weights {name}=FILE" in str(caught.value)
    assert "acclimate train --task segmentation" in str(caught.value)
    assert not (tmp_path / "out").exists()
    file = tmp_path / "w.safetensors"
    file.write_bytes(b"not looked into here")
    settings = Settings(weights={"deeplabv3plus-efficientnet-lite0+isw": str(file)})
    entries = EXPERIMENTS["table-s8"].suite("small", (0,), settings).entries
    given = {entry.group: entry.spec.weights for entry in entries}
    assert given == {"CamVid, RobustNet": str(file), "CamVid, DeepLabV3+": None}


def test_the_picture_shows_the_last_images_as_they_were_predicted(tmp_path: Path) -> None:
    found = reproduce(EXPERIMENTS["fig-s3"], "smoke", tmp_path, n_workers=0)
    picture = np.asarray(Image.open(io.BytesIO((tmp_path / "fig-s3.png").read_bytes())))
    images = load("builtin-scenes", "test", n=4, corruption="snow")
    x, y = images.to_domain().take(torch.randperm(4, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        maps = load_scene_model().double()(x.double())
        logits = torch.nn.functional.interpolate(maps, y.shape[1:], mode="bilinear")
    expected = np.array([*images.palette], np.uint8)[logits.argmax(dim=1).numpy()]
    # Rounding moves logits by some 1e-6: pixels whose classes are nearer may turn out otherwise.
    first, second = logits.topk(2, dim=1).values.unbind(dim=1)
    is_clear = (first - second > 1e-3).numpy()
    assert is_clear.mean() > 0.99
    gap, top, times = 4, 20, 4  # of the picture; scenes are shown four times as large
    height, width = (times * side for side in y.shape[1:])
    for row, (pixels, clear) in enumerate(zip(expected[-3:], is_clear[-3:], strict=True)):
        left, upper = gap + 2 * (width + gap), top + row * (height + gap)
        shown = picture[upper : upper + height : times, left : left + width : times]
        assert np.array_equal(shown[clear], pixels[clear])
    assert any("last images" in note for note in found.table.notes)
