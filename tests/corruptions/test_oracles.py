"""Blur, weather and distortion against loops that do it the obvious way, with the same draws."""

from __future__ import annotations

import colorsys
import math
import sys

import numpy as np
import numpy.typing as npt
import pytest

from acclimate.builtin.render import render
from acclimate.corruptions import apply, blur, sampling
from acclimate.corruptions.constants import CONSTANTS
from acclimate.corruptions.frost import _scale, load_textures
from acclimate.corruptions.registry import _generator
from acclimate.errors import MissingExtra
from tests.codes import raises
from tests.corruptions.conftest import make_texture

cv2 = pytest.importorskip("cv2", reason="needs acclimate[corruptions]")
ndimage = pytest.importorskip("scipy.ndimage", reason="needs acclimate[corruptions]")

SEVERITIES = (1, 2, 3, 4, 5)
Pixels = npt.NDArray[np.uint8]

pytestmark = pytest.mark.usefixtures("quiet_frost")


@pytest.fixture(scope="module")
def images() -> Pixels:
    return render(3, seed=4)[0]


def gaussian(x: npt.NDArray, sigma: float, mode: str = "nearest", truncate: float = 4.0):  # type: ignore[no-untyped-def, type-arg]
    """Blur one image, channel by channel."""
    if x.ndim == 2:
        return ndimage.gaussian_filter(x, sigma, mode=mode, truncate=truncate)
    return np.stack([gaussian(x[..., c], sigma, mode, truncate) for c in range(3)], axis=-1)


def close(got: Pixels, expected: npt.NDArray, slack: float = 1e-3) -> None:  # type: ignore[type-arg]
    """Check that `got` is `expected`, in grey levels, truncated."""
    short = np.clip(expected, 0, 255) - got
    assert short.min() > -slack
    assert short.max() < 1 + slack


def slow_motion(image: Pixels, radius: int, sigma: float, angle: float) -> npt.NDArray[np.float64]:
    """Return the image smeared, one pixel and one tap at a time."""
    height, width = image.shape[:2]
    taps = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    out = np.zeros(image.shape)
    for row in range(height):
        for column in range(width):
            for i, tap in enumerate(taps):
                down = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
                right = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
                y = min(max(row + down, 0), height - 1)
                x = min(max(column + right, 0), width - 1)
                out[row, column] += tap / sum(taps) * image[y, x]
    return out


@pytest.mark.parametrize(
    ("radius", "sigma", "angle"), [(9, 2.5, 13.0), (3, 9.0, -44.0), (6, 1.0, -100.0)]
)
def test_motion_against_a_pixel_loop(
    radius: int, sigma: float, angle: float, images: Pixels
) -> None:
    image = images[0, :20, :24]
    got = sampling.blur_along(image[None], radius, sigma, np.array([angle]))[0]
    # Rounded to 16 bits before it is truncated to 8.
    expected = np.rint(slow_motion(image, radius, sigma, angle) * 257) / 257
    close(got, expected, slack=0.5 / 257 + 1e-3)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_motion_draws_angles_about_the_horizontal(severity: int, images: Pixels) -> None:
    radius, sigma = CONSTANTS[32]["motion_blur"][severity - 1]
    got = apply(images, "motion_blur", severity, seed=3)
    for place, image in enumerate(images):
        angle = _generator(3, place, "motion_blur", severity).uniform(-45, 45)
        expected = sampling.blur_along(image[None], radius, sigma, np.array([angle]))[0]
        np.testing.assert_array_equal(got[place], expected)


def slow_zoom(x: npt.NDArray, zoom: float):  # type: ignore[no-untyped-def, type-arg]
    """Return the centre of an image enlarged to its size, by SciPy."""
    size = x.shape[0]
    cut = math.ceil(size / zoom)
    top = (size - cut) // 2
    factors = (zoom, zoom, 1)[: x.ndim]
    large = ndimage.zoom(x[top : top + cut, top : top + cut], factors, order=1)
    spare = (large.shape[0] - size) // 2
    return large[spare : spare + size, spare : spare + size]


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(("family", "size"), [(32, 32), (224, 60)])
def test_zoom_against_scipy(severity: int, family: int, size: int) -> None:
    end, step = {
        32: ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        224: ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    }[family][severity - 1]
    pixels = np.random.default_rng(0).integers(0, 256, (2, size, size, 3)).astype(np.uint8)
    zooms = np.arange(1, end, step)
    got = apply(pixels, "zoom_blur", severity, family=family)  # type: ignore[arg-type]
    for image, out in zip(pixels.astype(float), got, strict=True):
        close(out, (image + sum(slow_zoom(image, zoom) for zoom in zooms)) / (len(zooms) + 1))


def test_zoom_of_large_images_is_that_of_small_ones(
    images: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = images[:, :30]
    expected = apply(pixels, "zoom_blur", family=224)
    monkeypatch.setattr(blur, "_MANY_PIXELS", 100)
    # Their sums differ in the last bits of double precision, which single precision takes off.
    np.testing.assert_array_equal(apply(pixels, "zoom_blur", family=224), expected)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("family", [32, 224])
def test_glass_against_exchanges_of_views(severity: int, family: int, images: Pixels) -> None:
    sigma, reach, n_rounds = CONSTANTS[family]["glass_blur"][severity - 1]
    got = apply(images[:2], "glass_blur", severity, seed=8, family=family)  # type: ignore[arg-type]
    for place in range(2):
        draws = _generator(8, place, "glass_blur", severity)
        x = (gaussian(images[place] / 255, sigma) * 255).astype(np.uint8)
        for _ in range(n_rounds):
            n = 32 - 2 * reach
            offsets = iter(draws.integers(-reach, reach, (n * n, 2)))
            for h in range(32 - reach, reach, -1):
                for w in range(32 - reach, reach, -1):
                    dx, dy = next(offsets)
                    x[h, w], x[h + dy, w + dx] = x[h + dy, w + dx], x[h, w]
        close(got[place], gaussian(x / 255, sigma) * 255, slack=1e-9)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_blur_against_its_definition(severity: int, images: Pixels) -> None:
    sigma = (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1]
    reach = int(4 * sigma + 0.5)
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    padded = np.pad(images[0].astype(float), ((reach, reach), (reach, reach), (0, 0)), "edge")
    out = np.zeros((32, 32, 3))
    for i, by_row in enumerate(weights):
        for j, by_column in enumerate(weights):
            out += by_row * by_column * padded[i : i + 32, j : j + 32]
    close(apply(images[:1], "gaussian_blur", severity)[0], out, slack=1e-9)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow_against_one_image_at_a_time(severity: int, images: Pixels) -> None:
    mean, deviation, zoom, threshold, radius, sigma, share = CONSTANTS[32]["snow"][severity - 1]
    got = apply(images[:1], "snow", severity, seed=2)[0]
    draws = _generator(2, 0, "snow", severity)
    layer = draws.normal(mean, deviation, (32, 32))
    angle = draws.uniform(-135, -45)
    layer = slow_zoom(layer, zoom)
    layer[layer < threshold] = 0
    flakes = (np.clip(layer, 0, 1) * 255).astype(np.uint8)
    streaks = np.floor(slow_motion(flakes[..., None], radius, sigma, angle) + 0.5 / 257) / 255
    x = (images[0] / 255).astype(np.float32)
    grey = cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)[..., None]
    x = share * x + (1 - share) * np.maximum(x, grey * 1.5 + 0.5)
    expected = np.clip(x + streaks + np.rot90(streaks, 2), 0, 1) * 255
    # A value that falls between two grey levels may be cut to either in single precision.
    differing = np.abs(np.floor(expected) - got)
    assert differing.max() <= 1
    assert differing.mean() < 0.02


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("family", [32, 224])
def test_elastic_against_opencv_and_scipy(severity: int, family: int, images: Pixels) -> None:
    side = {32: 32, 224: 244}[family]
    parts = CONSTANTS[family]["elastic_transform"][severity - 1]
    strength, sigma, reach = (part * side for part in parts)
    pixels = images if family == 32 else images.repeat(3, axis=1).repeat(3, axis=2)
    got = apply(pixels, "elastic_transform", severity, seed=6, family=family)  # type: ignore[arg-type]
    size = pixels.shape[1]
    for place, image in enumerate(pixels):
        draws = _generator(6, place, "elastic_transform", severity)
        centre, third = size // 2, size // 3
        points = np.array(
            [[centre + third] * 2, [centre + third, centre - third], [centre - third] * 2],
            dtype=np.float32,
        )
        moved = points + draws.uniform(-reach, reach, (3, 2)).astype(np.float32)
        x = cv2.warpAffine(
            (image / 255).astype(np.float32),
            cv2.getAffineTransform(points, moved),
            (size, size),
            borderMode=cv2.BORDER_REFLECT_101,
        )
        if sigma > 0:
            dx, dy = (
                gaussian(field, sigma, "reflect", 3) * strength
                for field in draws.uniform(-1, 1, (2, size, size))
            )
            rows, columns = np.mgrid[:size, :size]
            where = [rows + dy, columns + dx]
            x = np.stack(
                [ndimage.map_coordinates(x[..., c], where, order=1, mode="reflect")
                 for c in range(3)], axis=-1
            )  # fmt: skip
        difference = np.abs(np.clip(x, 0, 1) * 255 - 0.5 - got[place])
        # OpenCV may read at 32nds of a pixel.
        assert difference.mean() < 0.8
        assert np.quantile(difference, 0.99) < 3


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("family", [32, 224])
def test_spatter_against_the_colours_of_opencv(severity: int, family: int, images: Pixels) -> None:
    mean, deviation, sigma, threshold, last, mud = CONSTANTS[family]["spatter"][severity - 1]
    got = apply(images, "spatter", severity, seed=5, family=family)  # type: ignore[arg-type]
    for place, image in enumerate(images):
        draws = _generator(5, place, "spatter", severity)
        layer = gaussian(draws.normal(mean, deviation, (32, 32)), sigma)
        layer[layer < threshold] = 0
        x = (image / 255).astype(np.float32)
        if mud:
            mask = gaussian((layer > threshold).astype(np.float32), last)
            mask[mask < 0.8] = 0
            colour = np.array([63, 42, 20]) / 255 * mask[..., None]
            close(got[place], (x * (1 - mask[..., None]) + colour) * 255, slack=1e-3)
            continue
        liquid = (layer * 255).astype(np.uint8)
        edges = cv2.distanceTransform(255 - cv2.Canny(liquid, 50, 150), cv2.DIST_L2, 5)
        edges = cv2.blur(np.minimum(edges, 20), (3, 3)).astype(np.uint8)
        kernel = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
        edges = cv2.filter2D(cv2.equalizeHist(edges), cv2.CV_8U, kernel)
        shine = cv2.cvtColor(
            liquid * cv2.blur(edges, (3, 3)).astype(np.float32), cv2.COLOR_GRAY2BGRA
        )
        if shine[..., 0].max() == 0:
            np.testing.assert_array_equal(got[place], image)
            continue
        shine = shine / shine.max(axis=(0, 1)) * last
        water = np.array([175, 238, 238]) / 255
        close(got[place], (x + shine[..., :3] * water) * 255, slack=1e-3)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_saturate_against_colorsys(severity: int, images: Pixels) -> None:
    factor, addend = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    pixels = images[:1].copy()
    pixels[0, 0, :4] = [[0, 0, 0], [255, 255, 255], [7, 7, 7], [255, 0, 0]]
    expected = np.empty(pixels.shape)
    for place in np.ndindex(pixels.shape[:3]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixels[place] / 255))
        saturation = min(saturation * factor + addend, 1.0)
        expected[place] = colorsys.hsv_to_rgb(hue, saturation, value)
    close(apply(pixels, "saturate", severity), expected * 255, slack=1e-6)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_speckle_is_proportional(severity: int) -> None:
    scale = (0.06, 0.10, 0.12, 0.16, 0.20)[severity - 1]
    for level in (40, 120):
        grey = np.full((40, 32, 32, 3), level, dtype=np.uint8)
        out = apply(grey, "speckle_noise", severity)
        assert out.std() / level == pytest.approx(scale, rel=0.02)


def test_frost_is_a_piece_of_a_picture(images: Pixels) -> None:
    textures = load_textures(0.2, 32, 32)
    got = apply(images, "frost", 5, seed=1)
    for place, image in enumerate(images):
        draws = _generator(1, place, "frost", 5)
        texture = textures[draws.integers(5)]
        top = draws.integers(0, texture.shape[0] - 32)
        left = draws.integers(0, texture.shape[1] - 32)
        piece = texture[top : top + 32, left : left + 32]
        close(got[place], 0.75 * image + 0.45 * piece, slack=1e-9)


def test_a_fifth_of_a_picture_is_that_of_opencv() -> None:
    for shape in ((600, 900), (315, 560), (350, 527), (495, 660)):
        picture = make_texture(0)[: shape[0], : shape[1]]
        expected = cv2.resize(picture, (0, 0), fx=0.2, fy=0.2)
        np.testing.assert_array_equal(_scale(picture, 0.2, 32, 32), expected)


@pytest.mark.parametrize(
    ("name", "module"), [("zoom_blur", "scipy"), ("glass_blur", "scipy"), ("spatter", "scipy")]
)
def test_the_message_names_the_missing_extra_and_what_needs_it(
    name: str, module: str, images: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    blur._zoom_operator.cache_clear()
    blur._zoom_side.cache_clear()
    for blocked in ("scipy", "scipy.ndimage", "scipy.sparse", "cv2"):
        monkeypatch.setitem(sys.modules, blocked, None)
    with raises("missing_extra", MissingExtra, package=module) as caught:
        apply(images, name, 1)
    assert f"{name} requires {module}" in str(caught.value)
    assert "pip install 'acclimate[corruptions]'" in str(caught.value)
    for core in ("gaussian_noise", "defocus_blur", "fog", "contrast", "pixelate", "snow"):
        apply(images, core)
