"""The built-in task: its images and its network."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from acclimate import adapt, builtin
from acclimate.builtin.drawing import OUTLINES
from acclimate.builtin.model import WideResNet
from acclimate.errors import BadInput, UnsuitableModel
from acclimate.functional.rng import uniform
from tests.codes import raises

# --- random draws ----------------------------------------------------------------------------


def slow_mix(bits: int) -> int:
    """The finaliser of splitmix64, with Python's integers."""
    mask = 2**64 - 1
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & mask
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
    return bits ^ (bits >> 31)


@given(
    seed=st.integers(-(2**65), 2**65),
    index=st.integers(0, 2**62),
    stream=st.integers(0, 9),
    place=st.integers(0, 5),
)
@settings(deadline=None, max_examples=50)
def test_draws_against_python_integers(seed: int, index: int, stream: int, place: int) -> None:
    step, modulus = 0x9E3779B97F4A7C15, 2**64
    key = slow_mix((seed + step) % modulus)
    key = slow_mix((key + stream * step) % modulus)
    row = slow_mix((key + index * step) % modulus)
    expected = (slow_mix((row + (place + 1) * step) % modulus) >> 40) / 2**24
    got = uniform(seed, np.array([7, index]), stream, 6)
    assert got.dtype == np.float32
    assert got[1, place] == expected


def test_draws_are_uniform_and_unrelated() -> None:
    table = uniform(3, np.arange(4000), 0, 20)
    assert table.min() >= 0
    assert table.max() < 1
    counts = np.histogram(table, bins=50, range=(0, 1))[0]
    chi_squared = ((counts - table.size / 50) ** 2 / (table.size / 50)).sum()
    assert chi_squared < 95  # 49 degrees of freedom, p < 0.0001
    correlation = np.corrcoef(np.concatenate([table[1:], table[:-1]], axis=1).T)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 0.08


# --- outlines --------------------------------------------------------------------------------

N_SIDE = 161
AXIS = np.linspace(-1.3, 1.3, N_SIDE, dtype=np.float32)
V, U = (grid[None] for grid in np.meshgrid(AXIS, AXIS, indexing="ij"))


def distance(name: str, form: float) -> npt.NDArray[np.float64]:
    return np.float64(OUTLINES[name](U, V, np.full((1, 1, 1), form, dtype=np.float32))[0])


def polygon_contains(corners: list[tuple[float, float]]) -> npt.NDArray[np.bool_]:
    """Even-odd rule: count the sides that a ray to the right crosses."""
    inside = np.zeros(U.shape[1:], dtype=bool)
    for (u1, v1), (u2, v2) in zip(corners, corners[1:] + corners[:1], strict=True):
        if v1 == v2:
            continue
        between = (v1 > V[0]) != (v2 > V[0])
        crossing = u1 + (V[0] - v1) / (v2 - v1) * (u2 - u1)
        inside ^= between & (U[0] < crossing)
    return inside


def polygons(form: float) -> dict[str, list[tuple[float, float]]]:
    half, thick = 0.72 + 0.08 * form, 0.2 + 0.12 * form
    star = []
    for k in range(10):
        radius = 1.0 if k % 2 == 0 else 0.38 + 0.12 * form
        star.append((radius * np.cos(k * np.pi / 5), radius * np.sin(k * np.pi / 5)))
    slope = 0.9 + 0.25 * form
    reach = 0.42 * np.sqrt(1 + slope**2)
    quarter = [(0.92, -thick), (0.92, thick), (thick, thick)]
    cross = [
        (u * np.cos(turn) - v * np.sin(turn), u * np.sin(turn) + v * np.cos(turn))
        for turn in (0, np.pi / 2, np.pi, 3 * np.pi / 2)
        for u, v in quarter
    ]
    return {
        "square": [(-half, -half), (half, -half), (half, half), (-half, half)],
        "star": star,
        "triangle": [
            (0.0, reach / slope),
            (reach + slope * 0.48, -0.48),
            (-reach - slope * 0.48, -0.48),
        ],
        "cross": cross,
    }


@pytest.mark.parametrize("form", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("name", ["square", "star", "triangle", "cross"])
def test_outline_is_the_polygon(name: str, form: float) -> None:
    got = distance(name, form)
    clear = np.abs(got) > 1e-3
    expected = polygon_contains(polygons(form)[name])
    np.testing.assert_array_equal((got < 0)[clear], expected[clear])
    assert clear.mean() > 0.95


def lens(radius_1: float, radius_2: float, apart: float) -> float:
    """The area two discs have in common."""
    angle_1 = np.arccos((apart**2 + radius_1**2 - radius_2**2) / (2 * apart * radius_1))
    angle_2 = np.arccos((apart**2 + radius_2**2 - radius_1**2) / (2 * apart * radius_2))
    return float(
        radius_1**2 * (angle_1 - np.sin(2 * angle_1) / 2)
        + radius_2**2 * (angle_2 - np.sin(2 * angle_2) / 2)
    )


def curved_area(name: str, form: float) -> float:
    angle = np.linspace(0, 2 * np.pi, 20001)[:-1]
    if name == "disc":
        return float(np.pi * (0.82 + 0.1 * form) ** 2)
    if name == "ring":
        thick = 0.14 + 0.1 * form
        return float(np.pi * ((0.7 + thick) ** 2 - (0.7 - thick) ** 2))
    if name == "heart":
        side = 2 * (0.5 + 0.06 * form)
        return float(side**2 + np.pi * (side / 2) ** 2)
    if name == "crescent":
        return float(np.pi * 0.95**2 - lens(0.95, 0.72, 0.38 + 0.16 * form))
    radius = {
        "gear": 0.8 + (0.1 + 0.05 * form) * np.clip(2 * np.cos(8 * angle), -1, 1),
        "flower": 0.55 + (0.36 + 0.08 * form) * np.abs(np.cos(2.5 * angle)),
    }
    return float(np.mean(radius[name] ** 2) * np.pi)


@pytest.mark.parametrize("form", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("name", ["disc", "ring", "heart", "crescent", "gear", "flower"])
def test_outline_has_the_area(name: str, form: float) -> None:
    inside = np.mean(distance(name, form) < 0) * (2.6 * N_SIDE / (N_SIDE - 1)) ** 2
    assert inside == pytest.approx(curved_area(name, form), rel=0.015)


def test_outlines_fill_about_the_unit_circle() -> None:
    radius = np.sqrt(U[0] ** 2 + V[0] ** 2)
    for name in OUTLINES:
        reach = radius[distance(name, 0.5) < 0].max()
        assert 0.8 < reach < 1.2, name


# --- images ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def train() -> tuple[Tensor, Tensor]:
    return builtin.load_split("train", 2000)


@given(seed=st.integers(-5, 5), start=st.integers(0, 400), n=st.integers(0, 120))
@settings(deadline=None, max_examples=10)
def test_an_image_does_not_depend_on_its_batch(seed: int, start: int, n: int) -> None:
    images, labels = builtin.render(n, seed, start)
    assert images.shape == (n, 32, 32, 3)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    for i in {0, n // 2, n - 1} if n else set():
        alone, label = builtin.render(1, seed, start + i)
        np.testing.assert_array_equal(alone[0], images[i])
        assert label[0] == labels[i]


def test_classes_are_balanced_in_random_order(train: tuple[Tensor, Tensor]) -> None:
    blocks = train[1].numpy().reshape(-1, 10)
    assert np.all(np.sort(blocks, axis=1) == np.arange(10))
    assert len(np.unique(blocks, axis=0)) > 190
    # Every class comes first, second, … about equally often.
    counts = np.array([np.bincount(blocks[:, place], minlength=10) for place in range(10)])
    assert ((counts - 20) ** 2 / 20).sum() < 140  # 81 degrees of freedom, p < 0.0001


def test_colour_says_nothing_about_the_class(train: tuple[Tensor, Tensor]) -> None:
    x, y = train
    mean_colour = x.mean(dim=(2, 3))
    centres = torch.stack([mean_colour[:1000][y[:1000] == label].mean(0) for label in range(10)])
    guess = torch.cdist(mean_colour[1000:], centres).argmin(dim=1)
    # 0.9 is chance, with a deviation of 0.01.
    assert (guess != y[1000:]).float().mean() > 0.82


def test_images_differ_and_use_the_whole_range() -> None:
    images = np.concatenate([builtin.render(200, seed)[0] for seed in (1, 2)])
    assert len(np.unique(images.reshape(400, -1), axis=0)) == 400
    assert images.min() == 0
    assert images.max() == 255
    assert 90 < images.mean() < 165
    assert 50 < images.std() < 85
    assert images.std(axis=(1, 2, 3)).min() > 4


def test_splits_are_the_rendered_images() -> None:
    assert len(set(builtin.SPLITS.values())) == len(builtin.SPLITS) >= 2
    for split, seed in builtin.SPLITS.items():
        x, y = builtin.load_split(split, 12, start=95)
        images, labels = builtin.render(12, seed, start=95)
        assert x.shape == (12, 3, 32, 32)
        assert x.dtype == torch.float32
        assert torch.equal(
            (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1), torch.tensor(images)
        )
        assert torch.equal(y, torch.tensor(labels))


def test_mistakes_are_named() -> None:
    known = tuple(builtin.SPLITS)
    with raises("unknown_name", BadInput, kind="split", name="tarin", known=known):
        builtin.load_split("tarin", 1)
    with raises("out_of_range", BadInput, option="n", found=-1):
        builtin.load_split("train", -1)
    with raises("out_of_range", BadInput, option="start", found=-3):
        builtin.render(1, 0, start=-3)


# --- network ---------------------------------------------------------------------------------


def functional_forward(model: nn.Module, x: Tensor) -> Tensor:
    """The network written out from its tensors by name, for one block in each stage or more."""
    state = model.state_dict()

    def norm_relu(h: Tensor, name: str) -> Tensor:
        mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        scaled = (h - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        return (scaled * weight[:, None, None] + bias[:, None, None]).clamp(min=0)

    h = F.conv2d((x - state["mean"]) / state["std"], state["stem.weight"], padding=1)
    for stage in (1, 2, 3):
        block = 0
        while f"stage{stage}.{block}.conv1.weight" in state:
            name = f"stage{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            activated = norm_relu(h, f"{name}.norm1")
            inner = F.conv2d(activated, state[f"{name}.conv1.weight"], stride=stride, padding=1)
            inner = norm_relu(inner, f"{name}.norm2")
            inner = F.conv2d(inner, state[f"{name}.conv2.weight"], padding=1)
            if f"{name}.shortcut.weight" in state:
                h = F.conv2d(activated, state[f"{name}.shortcut.weight"], stride=stride)
            h = h + inner
            block += 1
    features = norm_relu(h, "norm").flatten(2).mean(dim=2)
    return features @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize(("depth", "width"), [(10, 1), (16, 1), (10, 2)])
def test_network_against_its_formula(depth: int, width: int) -> None:
    generator = torch.Generator().manual_seed(1)
    model = WideResNet(depth, width, 7, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)).double()
    model.initialise(generator)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean):
                assert tensor is not None
                tensor.normal_(generator=generator)
    x = torch.rand(3, 3, 32, 32, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        logits = model.eval()(x)
        assert logits.shape == (3, 7)
        torch.testing.assert_close(logits, functional_forward(model, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("depth", "width", "millions"), [(40, 1, 0.6), (40, 2, 2.2), (28, 10, 36.5), (16, 8, 11.0)]
)
def test_network_has_the_size_in_the_paper(depth: int, width: int, millions: float) -> None:
    with torch.device("meta"):
        model = WideResNet(depth, width, 10)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert round(n_parameters / 1e6, 1) == millions


def test_network_refuses_other_depths() -> None:
    for depth in (4, 12, 29):
        with raises("out_of_range", UnsuitableModel, option="depth", found=depth):
            WideResNet(depth, 1, 10)


def test_the_artifact_has_what_the_default_method_and_the_guard_need() -> None:
    adapted = adapt(builtin.load_model(), artifact=builtin.load_artifact(), guard=True)
    assert adapted.name == "steady"
