"""The methods against logits that the authors' own programs returned, where these are at hand.

A ResNet-20 in double precision sees five batches of 50 images, each of another corruption of
CIFAR-10-C, in a row. The largest difference in the logits, over all batches, as it was measured
with PyTorch 2.13 on a CPU:

    source, norm            0
    tent                    2.5e-14 with Adam, 3.6e-14 with SGD
    eta                     3.0e-14
    eata                    2.0e-14
    sar                     3.9e-14
    rdumb                   2.0e-14
    rpl                     2.5e-14
    roid                    8.2e-11; their program has a constant in single precision
    alpha_bn                5.3e-14
    bn_ema, passes="two"    9.8e-14
    t3a                     6.2e-15

The tolerance is ten times the largest of these, but for ROID. The recording of ROID has a fixed
view in the place of the random one: the mirror image, with less contrast.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import acclimate
from acclimate import zoo
from acclimate.artifact import Artifact
from acclimate.parts import FisherInformation
from tests.paths import SHARED

REFERENCE = SHARED / "reference"
LOGITS = REFERENCE / "authors-logits.npz"
CORRUPTED = REFERENCE / "cifar10c-authors-severity5-first500.npz"
CLEAN = REFERENCE / "cifar10-test-first500.npy"
WEIGHTS = SHARED / "data" / "weights" / "cifar10-resnet20.safetensors"

N_BATCHES, BATCH_SIZE = 5, 50
TOLERANCE, TOLERANCE_OF_ROID = 1e-12, 1e-9

missing = [str(path) for path in (LOGITS, CORRUPTED, CLEAN, WEIGHTS) if not path.is_file()]
pytestmark = [
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(missing),
        reason=f"no recorded logits: {', '.join(missing)} missing; set ACCLIMATE_SHARED",
    ),
]

SGD: dict[str, Any] = {"optimizer": "sgd"}
#: By the name of the recording: the method, and its options where they are not the defaults.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "source": ("source", {}),
    "norm": ("norm", {}),
    "tent_adam": ("tent", {}),
    "tent_sgd": ("tent", {**SGD, "lr": 0.01}),
    "eta_d0.4": ("eta", {}),
    "eta_d0.05": ("eta", {"max_similarity": 0.05}),
    "eata_beta1": ("eata", {}),
    "eata_beta2000": ("eata", {"fisher_weight": 2000.0}),
    "sar_lr0.001": ("sar", {}),
    "sar_lr0.05": ("sar", {"lr": 0.05}),
    "rdumb": ("rdumb", {**SGD, "lr": 2.5e-4}),
    "rdumb_every2": ("rdumb", {**SGD, "lr": 2.5e-4, "reset_every": 2}),
    "rpl_sgd": ("rpl", {**SGD, "lr": 5e-4}),
    "rpl_adam": ("rpl", {}),
    "roid_adam": ("roid", {}),
    "alpha_bn_0.1": ("alpha_bn", {"source_share": 0.9}),
    "bn_ema_two_pass": ("bn_ema", {"passes": "two"}),
    "t3a_m5": ("t3a", {"n_supports": 5}),
    "t3a_m20": ("t3a", {"n_supports": 20}),
    "t3a_m100": ("t3a", {}),
}


def to_images(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).double() / 255


@cache
def batches() -> list[Tensor]:
    """Batch i: rows 50 i to 50 i + 49 of the corruption 2 i."""
    with np.load(CORRUPTED) as file:
        found = [file[file.files[2 * i]] for i in range(N_BATCHES)]
    return [
        to_images(pixels[i * BATCH_SIZE : (i + 1) * BATCH_SIZE]) for i, pixels in enumerate(found)
    ]


def make_model() -> nn.Module:
    return zoo.load("resnet20-cifar10", WEIGHTS).double().eval()


@cache
def fisher() -> Artifact:
    """Measured as for the recording: on 500 clean images, in batches of 50, without labels."""
    unused = torch.zeros(BATCH_SIZE, dtype=torch.long)
    source = [(x, unused) for x in to_images(np.load(CLEAN)).split(BATCH_SIZE)]
    part = FisherInformation(n_samples=len(source) * BATCH_SIZE, batch_size=BATCH_SIZE)
    return acclimate.prepare(make_model(), source, parts=[part])


def difference(name: str, method: str, options: dict[str, Any]) -> float:
    artifact = fisher() if method == "eata" else None
    adapted = acclimate.adapt(make_model(), method, artifact, **options)
    found = torch.cat([adapted(x) for x in batches()])
    with np.load(LOGITS) as file:
        expected = torch.from_numpy(file[name])
    assert found.shape == expected.shape == (N_BATCHES * BATCH_SIZE, 10)
    return float((found - expected).abs().max())


def mirror(how: object, x: Tensor, normalization: object, generator: object) -> Tensor:
    """The view of the recording of ROID, which this test found: the recording does not say it."""
    return 0.9 * x.flip(-1) + 0.05


def test_every_recording_is_compared() -> None:
    with np.load(LOGITS) as file:
        assert set(file.files) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_authors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acclimate.methods.roid.augment", mirror)
    tolerance = TOLERANCE_OF_ROID if name == "roid_adam" else TOLERANCE
    assert difference(name, *CASES[name]) < tolerance


@pytest.mark.parametrize(
    ("name", "method", "options", "least"),
    [
        ("bn_ema_two_pass", "bn_ema", {"passes": "one"}, 1.0),
        ("tent_sgd", "tent", {**SGD, "lr": 0.01, "nesterov": True}, 1e-3),
        ("rdumb_every2", "rdumb", {**SGD, "lr": 2.5e-4, "reset_every": 3}, 1e-4),
    ],
)
def test_other_options_are_told_apart(
    name: str, method: str, options: dict[str, Any], least: float
) -> None:
    assert difference(name, method, options) > least
