"""What holds for all corruptions; those that need NumPy and Pillow only against slow oracles."""

from __future__ import annotations

import colorsys
import io
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from acclimate.builtin.render import render
from acclimate.corruptions import BENCHMARK, CORRUPTIONS, HELD_OUT, apply, weather
from acclimate.corruptions.constants import CONSTANTS, find_constant
from acclimate.errors import BadInput
from tests.codes import raises

SEVERITIES = (1, 2, 3, 4, 5)
RANDOM = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    *("glass_blur", "motion_blur", "elastic_transform", "snow", "frost", "fog", "spatter"),
)
FIXED = (
    *("gaussian_blur", "defocus_blur", "zoom_blur", "brightness", "contrast", "saturate"),
    *("pixelate", "jpeg_compression"),
)
# These leave an even grey as it is, whatever they draw.
MOVING = ("glass_blur", "motion_blur", "elastic_transform")
# One of their constants falls while another rises, or the kind of change differs.
UNEVEN = ("saturate", "elastic_transform", "spatter", "glass_blur", "frost")
JPEG_QUALITY = {1: 80, 2: 65, 3: 58, 4: 50, 5: 40}
DISKS = {1: (0.3, 0.4), 2: (0.4, 0.5), 3: (0.5, 0.6), 4: (1.0, 0.2), 5: (1.5, 0.1)}

# The photographs of frost are looked for elsewhere.
pytestmark = pytest.mark.usefixtures("quiet_frost")


@pytest.fixture(scope="module")
def images() -> npt.NDArray[np.uint8]:
    pixels = render(60, seed=11)[0]
    pixels.setflags(write=False)
    return pixels


def grey(level: int, n: int = 8) -> npt.NDArray[np.uint8]:
    return np.full((n, 32, 32, 3), level, dtype=np.uint8)


def test_every_corruption_is_random_or_fixed() -> None:
    assert set(RANDOM) == {name for name in CORRUPTIONS if CORRUPTIONS[name].random}
    assert set(FIXED) == set(CORRUPTIONS) - set(RANDOM)
    assert tuple(CORRUPTIONS) == BENCHMARK + HELD_OUT
    assert (len(BENCHMARK), len(HELD_OUT)) == (15, 4)
    for family in (32, 224):
        assert set(CONSTANTS[family]) == set(CORRUPTIONS)
        assert all(len(constants) == 5 for constants in CONSTANTS[family].values())


@cache
def six_images() -> npt.NDArray[np.uint8]:
    return render(6, seed=5)[0]


@given(
    name=st.sampled_from(sorted(CORRUPTIONS)),
    severity=st.sampled_from(SEVERITIES),
    seed=st.integers(-(2**70), 2**70),
    start=st.integers(0, 10**12),
    cut=st.integers(0, 6),
)
@settings(deadline=None, max_examples=60)
def test_parts_equal_the_whole(name: str, severity: int, seed: int, start: int, cut: int) -> None:
    # Equal to the last bit on every processor: nothing is summed or multiplied across images.
    pixels = six_images()
    before = pixels.copy()
    whole = apply(pixels, name, severity, seed, start)
    parts = [
        apply(pixels[:cut], name, severity, seed, start),
        apply(pixels[cut:], name, severity, seed, start + cut),
    ]
    assert whole.dtype == np.uint8
    assert whole.shape == pixels.shape
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(pixels, before)


@pytest.mark.parametrize("name", sorted(CORRUPTIONS))
def test_images_worked_on_together_do_not_matter(
    name: str, images: npt.NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = apply(images[:5], name, 4, seed=2, start=9)
    in_pairs = replace(CORRUPTIONS[name], block=2 * 32 * 32)
    monkeypatch.setitem(CORRUPTIONS, name, in_pairs)
    np.testing.assert_array_equal(apply(images[:5], name, 4, seed=2, start=9), whole)


@pytest.mark.parametrize("name", RANDOM)
def test_draws_differ_by_image_seed_and_severity(name: str) -> None:
    same = grey(128)
    if name in MOVING:
        same[:, ::3, 1::4] = 20
    out = apply(same, name, 4, seed=1)
    assert len(np.unique(out.reshape(len(out), -1), axis=0)) == len(out)
    assert not np.array_equal(out, apply(same, name, 4, seed=2))
    assert not np.array_equal(out, apply(same, name, 5, seed=1))


def test_random_corruptions_do_not_share_draws() -> None:
    # The same stream for two severities would make the noise proportional.
    weak = apply(grey(128, 1), "gaussian_noise", 1).astype(float).ravel()
    strong = apply(grey(128, 1), "gaussian_noise", 5).astype(float).ravel()
    assert abs(np.corrcoef(weak, strong)[0, 1]) < 0.1


@pytest.mark.parametrize("name", sorted(CORRUPTIONS))
def test_damage_grows_with_severity(name: str, images: npt.NDArray[np.uint8]) -> None:
    damage = [
        np.abs(apply(images[:20], name, severity).astype(float) - images[:20]).mean()
        for severity in SEVERITIES
    ]
    assert damage[0] > 0
    if name in UNEVEN:
        assert min(damage) > 0.5
    else:
        assert np.all(np.diff(damage) > 0), damage


@pytest.mark.parametrize(
    ("severity", "scale"), list(zip(SEVERITIES, (0.04, 0.06, 0.08, 0.09, 0.1), strict=True))
)
def test_gaussian_noise_has_the_stated_width(severity: int, scale: float) -> None:
    noise = apply(grey(128, 50), "gaussian_noise", severity) / 255.0 - 128 / 255
    assert noise.std() == pytest.approx(scale, rel=0.01)
    # Truncation takes half a grey level off the mean.
    assert noise.mean() == pytest.approx(-0.5 / 255, abs=0.001)


@pytest.mark.parametrize(
    ("severity", "n_photons"), list(zip(SEVERITIES, (500, 250, 100, 75, 50), strict=True))
)
def test_shot_noise_has_the_variance_of_counts(severity: int, n_photons: int) -> None:
    level = 90
    out = apply(grey(level, 50), "shot_noise", severity) / 255.0
    assert out.var() == pytest.approx(level / 255 / n_photons, rel=0.03)


@pytest.mark.parametrize(
    ("severity", "amount"), list(zip(SEVERITIES, (0.01, 0.02, 0.03, 0.05, 0.07), strict=True))
)
def test_impulse_noise_is_half_salt_half_pepper(severity: int, amount: float) -> None:
    out = apply(grey(128, 100), "impulse_noise", severity)
    tolerance = 5 * np.sqrt(amount / out.size)
    assert np.mean(out == 255) == pytest.approx(amount / 2, abs=tolerance)
    assert np.mean(out == 0) == pytest.approx(amount / 2, abs=tolerance)
    assert set(np.unique(out)) == {0, 128, 255}
    # Each channel value is hit by itself.
    hit = out != 128
    assert np.mean(hit.all(axis=-1)) < 2 * amount**3 + 1e-4


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_against_colorsys(severity: int, images: npt.NDArray[np.uint8]) -> None:
    amount = {1: 0.05, 2: 0.1, 3: 0.15, 4: 0.2, 5: 0.3}[severity]
    pixels = images[:2].copy()
    pixels[0, 0, :4] = [[0, 0, 0], [255, 255, 255], [7, 7, 7], [255, 0, 0]]
    expected = np.empty(pixels.shape)
    for place in np.ndindex(pixels.shape[:3]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixels[place] / 255))
        expected[place] = colorsys.hsv_to_rgb(hue, saturation, min(value + amount, 1.0))
    got = apply(pixels, "brightness", severity)
    # Truncated: never above the exact value, never a whole grey level below (but for rounding).
    short = expected * 255 - got
    assert short.min() > -1e-6
    assert short.max() < 1 + 1e-6


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_against_a_loop(severity: int, images: npt.NDArray[np.uint8]) -> None:
    factor = {1: 0.75, 2: 0.5, 3: 0.4, 4: 0.3, 5: 0.15}[severity]
    got = apply(images[:20], "contrast", severity)
    for image, out in zip(images[:20], got, strict=True):
        for channel in range(3):
            values = image[:, :, channel] / 255
            mean = sum(values.ravel().tolist()) / values.size
            short = ((values - mean) * factor + mean) * 255 - out[:, :, channel]
            assert short.min() > -1e-6
            assert short.max() < 1 + 1e-6


@pytest.mark.parametrize("severity", SEVERITIES)
def test_defocus_against_a_pixel_loop(severity: int, images: npt.NDArray[np.uint8]) -> None:
    radius, sigma = DISKS[severity]
    inside = {
        (row, column): 1.0
        for row in range(-8, 9)
        for column in range(-8, 9)
        if row * row + column * column <= radius * radius
    }
    bell = {offset: np.exp(-(offset**2) / (2 * sigma**2)) for offset in (-1, 0, 1)}
    kernel: dict[tuple[int, int], float] = {}
    for (row, column), weight in inside.items():
        for down, by_row in bell.items():
            for right, by_column in bell.items():
                share = weight / len(inside) * by_row * by_column / sum(bell.values()) ** 2
                place = (row + down, column + right)
                kernel[place] = kernel.get(place, 0.0) + share

    def mirrored(place: int) -> int:
        place = abs(place)
        return place if place < 32 else 62 - place

    image = images[3]
    got = apply(images[3:4], "defocus_blur", severity)[0]
    for row in range(32):
        for column in range(32):
            exact = sum(
                weight * image[mirrored(row + down), mirrored(column + right)]
                for (down, right), weight in kernel.items()
            )
            short = exact - got[row, column]
            # Weights are single precision, so a grey level may fall to either side.
            assert np.all(short > -1e-3)
            assert np.all(short < 1 + 1e-3)


def slow_plasma(decay: float, generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Diamond-square on a torus, one point at a time."""
    field = {(0, 0): 0.0}
    step, wobble = 32, 100.0

    def mean(points: list[tuple[int, int]]) -> float:
        return sum(field[row % 32, column % 32] for row, column in points) / 4

    while step >= 2:
        half = step // 2
        for kind in ("centre", "top", "left"):
            row_first = 0 if kind == "top" else half
            column_first = 0 if kind == "left" else half
            for row in range(row_first, 32, step):
                for column in range(column_first, 32, step):
                    sides = [(row - half, column), (row + half, column),
                             (row, column - half), (row, column + half)]  # fmt: skip
                    corners = [(row + a, column + b) for a in (-half, half) for b in (-half, half)]
                    near = mean(corners if kind == "centre" else sides)
                    field[row, column] = near + wobble * generator.uniform(-wobble, wobble)
        step, wobble = half, wobble / decay
    values = np.array([[field[row, column] for column in range(32)] for row in range(32)])
    return (values - values.min()) / (values.max() - values.min())


@pytest.mark.parametrize("decay", [1.75, 3.0])
def test_plasma_against_a_point_loop(decay: float) -> None:
    fast = weather.plasma(32, decay, [np.random.default_rng(i) for i in range(3)])
    slow = [slow_plasma(decay, np.random.default_rng(i)) for i in range(3)]
    np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-12)


def test_fog_dims_to_the_brightest_value() -> None:
    # All of a grey image lies between no fog and full fog, scaled by max / (max + strength).
    out = apply(grey(102, 20), "fog", 5) / 255.0
    low, high = 0.4 * 0.4 / 1.9, (0.4 + 1.5) * 0.4 / 1.9
    assert out.min() == pytest.approx(low, abs=1 / 255)
    # Exactly 102 grey levels, or one less if it is rounded down: the limit is attained.
    assert out.max() == pytest.approx(high, abs=1 / 255 + 1e-9)
    assert np.array_equal(out[..., 0], out[..., 2])


@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_is_pillows(severity: int, images: npt.NDArray[np.uint8]) -> None:
    got = apply(images[:20], "jpeg_compression", severity)
    for image, out in zip(images[:20], got, strict=True):
        file = io.BytesIO()
        Image.fromarray(image).save(file, format="JPEG", quality=JPEG_QUALITY[severity])
        np.testing.assert_array_equal(np.asarray(Image.open(file)), out)


def test_pixelate_averages_boxes(images: npt.NDArray[np.uint8]) -> None:
    # int(32 × 0.75) = 24: a small pixel is 4/3 wide and averages those whose centre it covers;
    # on the way back each pixel takes the small one its own centre lies in.
    weights = np.zeros((24, 32))
    for small in range(24):
        for large in range(32):
            centre = (small + 0.5) * 4 / 3
            weights[small, large] = abs(large + 0.5 - centre) <= 2 / 3
    weights /= weights.sum(axis=1, keepdims=True)
    back = ((np.arange(32) + 0.5) * 24 / 32).astype(int)
    planes = images.transpose(0, 3, 1, 2).astype(float)
    small_image = (weights @ planes @ weights.T).transpose(0, 2, 3, 1)
    expected = small_image[:, back][:, :, back]
    difference = np.abs(apply(images, "pixelate", 4) - expected)
    # Pillow rounds after the rows and after the columns, each time by half a level at most. Both
    # halves occur in these images, so that the limit is attained but for the sums made here.
    assert difference.max() <= 1 + 1e-9


def test_no_images_give_no_images() -> None:
    for name in CORRUPTIONS:
        assert apply(grey(0, 0), name).shape == (0, 32, 32, 3)


@pytest.mark.parametrize("level", [0, 255])
def test_flat_black_and_white_are_not_divided_by_zero(level: int) -> None:
    with np.errstate(divide="raise", invalid="raise"):
        spoiled = {name: apply(grey(level), name).astype(int) for name in CORRUPTIONS}
    for name in ("defocus_blur", "contrast", "pixelate", "jpeg_compression"):
        assert np.abs(spoiled[name] - level).max() <= 1, name
    assert np.all(spoiled["brightness"] == (76 if level == 0 else 255))


def test_mistakes_are_named() -> None:
    name, every = "gausian_noise", tuple(CORRUPTIONS)
    with raises("unknown_name", BadInput, kind="corruption", name=name, known=every):
        apply(grey(1), name)
    for severity in (0, 6, -1):
        with raises("out_of_range", BadInput, option="severity", found=severity):
            apply(grey(1), "fog", severity)
    with raises("wrong_dtype", BadInput, found=lambda found: str(found) == "float64"):
        apply(grey(1) / 255, "fog")  # type: ignore[arg-type]
    with raises("wrong_type", BadInput, option="images", found="list"):
        apply([1, 2], "fog")  # type: ignore[arg-type]
    for shape in ((32, 32, 3), (2, 3, 32, 32), (2, 32, 32, 4)):
        with raises("wrong_shape", BadInput, found=shape):
            apply(np.zeros(shape, dtype=np.uint8), "fog")
    with raises("image_too_small", BadInput, found=(7, 28)):
        apply(np.zeros((2, 7, 28, 3), dtype=np.uint8), "fog")
    with raises("out_of_range", BadInput, option="start", found=-1):
        apply(grey(1), "fog", start=-1)
    with raises("unknown_name", BadInput, kind="family", name=64, known=("auto", 32, 224)):
        apply(grey(1), "fog", family=64)  # type: ignore[arg-type]


# --- sizes and families -----------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CORRUPTIONS))
@pytest.mark.parametrize("shape", [(8, 9), (48, 30), (50, 70)])
def test_any_size_and_parts_of_it(name: str, shape: tuple[int, int]) -> None:
    draws = np.random.default_rng(1).integers(0, 256, (3, *shape, 3)).astype(np.uint8)
    for severity, scale in ((5, False), (2, True)):
        whole = apply(draws, name, severity, scale=scale)
        assert whole.shape == draws.shape
        last = apply(draws[2:], name, severity, start=2, scale=scale)
        np.testing.assert_array_equal(whole[2:], last)


def test_the_family_follows_the_shorter_side() -> None:
    for shape, family in (((48, 100), 32), ((100, 48), 32), ((49, 49), 224)):
        draws = np.random.default_rng(1).integers(0, 256, (2, *shape, 3)).astype(np.uint8)
        out = apply(draws, "contrast")
        np.testing.assert_array_equal(out, apply(draws, "contrast", family=family))  # type: ignore[arg-type]
        other = apply(draws, "contrast", family=256 - family)  # type: ignore[arg-type]
        assert not np.array_equal(out, other)


def test_lengths_scale_and_shares_do_not() -> None:
    assert find_constant("gaussian_blur", 5, 224, 2.0) == 12.0
    assert find_constant("glass_blur", 5, 224, 0.5) == (0.75, 2, 2)
    assert find_constant("glass_blur", 1, 224, 0.1) == (pytest.approx(0.07), 1, 2)
    assert find_constant("defocus_blur", 3, 224, 0.5) == (3.0, 0.5)
    assert find_constant("motion_blur", 2, 224, 0.25) == (4, 1.25)
    assert find_constant("snow", 1, 224, 0.5) == (0.1, 0.3, 1.5, 0.5, 5, 2.0, 0.8)
    assert find_constant("snow", 1, 224, 0.1)[2] == 1.0
    assert find_constant("frost", 1, 224, 0.5) == (1.0, 0.4, 0.5)
    assert find_constant("frost", 1, 32) == (1.0, 0.2, 0.2)
    assert find_constant("elastic_transform", 3, 32) == pytest.approx((2.56, 1.92, 1.92))
    assert find_constant("elastic_transform", 3, 224, 0.5) == pytest.approx((6.1, 1.22, 2.44))
    assert find_constant("spatter", 1, 224, 0.5) == (0.65, 0.3, 2.0, 0.69, 0.6, False)
    assert find_constant("spatter", 5, 224, 0.5) == (0.67, 0.4, 0.5, 0.65, 0.75, True)
    for name in ("fog", "zoom_blur", "contrast", "pixelate", "jpeg_compression", "shot_noise"):
        assert find_constant(name, 4, 224, 0.5) == CONSTANTS[224][name][3]


def test_scaled_blur_of_a_scaled_image_looks_the_same() -> None:
    large = np.zeros((1, 224, 224, 3), dtype=np.uint8)
    large[:, 60:150, 80:180] = 255
    small = large[:, ::2, ::2]
    for name in ("gaussian_blur", "defocus_blur"):
        expected = apply(large, name, 4)[:, ::2, ::2].astype(float)
        scaled = np.abs(apply(small, name, 4, scale=True) - expected).mean()
        assert scaled < 1.5 < np.abs(apply(small, name, 4) - expected).mean(), name
