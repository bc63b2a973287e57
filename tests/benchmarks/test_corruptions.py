"""What the benchmarks of the corruptions write down."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from acclimate.corruptions import BENCHMARK
from acclimate.data import ArrayStore
from benchmarks import corruption_faithfulness as faithfulness


def test_speed_keeps_glass_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cv2", "scipy"):
        pytest.importorskip(name, reason="needs acclimate[corruptions]")
    from benchmarks import corruption_speed as speed

    measured = {name: speed.compare(3.0, 1.5) for name in BENCHMARK}
    measured["glass_blur"] = speed.compare(1000.0, 1.0)
    monkeypatch.setattr(speed, "measure", lambda *_: measured)
    monkeypatch.setattr(sys, "argv", ["speed.py", "--out", str(tmp_path / "out.json")])
    speed.main()
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["sum_without_glass"] == {"loop_s": 42.0, "here_s": 21.0, "ratio": 2.0}
    assert written["glass_blur"]["ratio"] == 1000.0
    assert len(written["seconds"]) == 14
    said = written["provenance"]
    assert {"command", "date", "versions", "machine", "threads", "load_average"} <= said.keys()
    assert said["processes"] == {"here": 2, "loop": 1}


class Brightest(torch.nn.Module):
    """Says which channel is brightest."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=(2, 3))


def colours(n: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(n) % 3
    images = np.zeros((n, 8, 8, 3), np.uint8)
    images[np.arange(n), :, :, labels] = 200
    return images, labels


def test_the_error_is_counted_over_all_batches() -> None:
    images, labels = colours(1201)
    assert faithfulness.measure_error(Brightest(), images, labels) == 0
    labels[[0, 600, 1200]] += 1
    error = faithfulness.measure_error(Brightest(), images, labels % 3)
    assert error == pytest.approx(100 * 3 / 1201)


def test_errors_stand_beside_those_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {name: 10.0 + place for place, name in enumerate(BENCHMARK)}
    (tmp_path / faithfulness.ERRORS).write_text(json.dumps({"error": {"source": expected}}))
    images, labels = colours(30)
    labels[:6] = (labels[:6] + 1) % 3  # an error of 20 %

    def load(name: str, root: Path, corruption: str, severity: int) -> ArrayStore:
        assert (name, root, severity) == ("cifar10c", tmp_path, 5)
        said = {"n": 30, "source": "generated", "seed": 0, "sha256": "abc"}
        said["made_from"] = f"{corruption}: photographs in /home/somebody"
        return ArrayStore(images, labels, (), said)

    monkeypatch.setattr("acclimate.data.load", load)
    found = faithfulness.compare_errors(tmp_path, Brightest(), tmp_path)
    assert found["mean"] == {"error": 20.0, "reference": 17.0}
    assert found["largest_difference"] == 10.0
    assert list(found["corruptions"]) == list(BENCHMARK)
    assert found["corruptions"]["frost"] == {
        "error": 20.0,
        "reference": 18.0,
        "difference": 2.0,
        "n": 30,
        "source": "generated",
        "seed": 0,
        "sha256": "abc",
        "made_from": "frost: photographs",
    }


def test_images_are_compared_by_pixels_or_by_distribution(tmp_path: Path) -> None:
    from acclimate.corruptions import apply

    clean = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3)).astype(np.uint8)
    same = apply(clean, "contrast")
    assert faithfulness.compare_pixels(clean, same, "contrast") == {"mean": 0.0, "largest": 0.0}
    other = same.copy()
    other[0, 0, 0, 0] += 3
    difference = faithfulness.compare_pixels(clean, other, "contrast")
    assert difference == {"mean": pytest.approx(3 / clean.size), "largest": 3.0}
    drawn = apply(clean, "gaussian_noise", 5, seed=1)
    weak = apply(clean, "gaussian_noise", 1, seed=1)
    p_values = faithfulness.compare_distributions(clean, drawn, "gaussian_noise")
    assert min(p_values.values()) > 0.001
    assert len(p_values) == 9
    p_values = faithfulness.compare_distributions(clean, weak, "gaussian_noise")
    assert p_values["change"] < 1e-6
