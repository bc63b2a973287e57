"""Time of the corruptions at severity 5 on 32×32 images, against a loop over single images.

    python benchmarks/corruption_speed.py --workers 2 --out results/corruption-speed.json

The loop calls NumPy, SciPy, OpenCV and Pillow for one image after the other, as the published
program does; photographs of frost are read once on both sides. It is timed on fewer images, since
its time is proportional to their number. Glass blur, a loop over pixels, is reported apart.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.ndimage import zoom as scipy_zoom

from acclimate.builtin.render import render
from acclimate.corruptions import BENCHMARK, apply_in_parallel, open_pool
from acclimate.corruptions.frost import find_photographs, load_textures

RANDOM = np.random.default_rng(0)


def gaussian_noise(x: Any) -> Any:
    return np.clip(x / 255.0 + RANDOM.normal(size=x.shape, scale=0.1), 0, 1) * 255


def shot_noise(x: Any) -> Any:
    return np.clip(RANDOM.poisson(x / 255.0 * 50) / 50.0, 0, 1) * 255


def impulse_noise(x: Any) -> Any:
    x = x / 255.0
    hit = RANDOM.random(x.shape) < 0.07
    salt = RANDOM.random(x.shape) < 0.5
    x[hit & salt] = 1
    x[hit & ~salt] = 0
    return x * 255


def defocus_blur(x: Any) -> Any:
    places = np.arange(-8, 9)
    disk = (places[:, None] ** 2 + places**2 <= 1.5**2).astype(np.float32)
    kernel = cv2.GaussianBlur(disk / disk.sum(), ksize=(3, 3), sigmaX=0.1)
    x = x / 255.0
    channels = [cv2.filter2D(x[:, :, channel], -1, kernel) for channel in range(3)]
    return np.clip(np.stack(channels, axis=-1), 0, 1) * 255


def glass_blur(x: Any) -> Any:
    x = np.uint8(gaussian_filter(x / 255.0, (0.4, 0.4, 0)) * 255)
    for _ in range(2):
        for h in range(31, 1, -1):
            for w in range(31, 1, -1):
                dx, dy = RANDOM.integers(-1, 1, size=2)
                x[h, w] = x[h + dy, w + dx]
    return np.clip(gaussian_filter(x / 255.0, (0.4, 0.4, 0)), 0, 1) * 255


def smear(x: Any, radius: int, sigma: float, angle: float) -> Any:
    taps = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    taps /= taps.sum()
    turn = math.radians(angle)
    out = np.zeros(x.shape, dtype=np.float32)
    rows, columns = np.arange(x.shape[0]), np.arange(x.shape[1])
    for i, tap in enumerate(taps):
        y = np.clip(rows + math.ceil(i * math.sin(turn) - 0.5), 0, x.shape[0] - 1)
        z = np.clip(columns + math.ceil(i * math.cos(turn) - 0.5), 0, x.shape[1] - 1)
        out += np.float32(tap) * x[y][:, z]
    return out


def motion_blur(x: Any) -> Any:
    return smear(x, 9, 2.5, RANDOM.uniform(-45, 45))


def clipped_zoom(x: Any, zoom: float) -> Any:
    cut = math.ceil(x.shape[0] / zoom)
    top = (x.shape[0] - cut) // 2
    large = scipy_zoom(x[top : top + cut, top : top + cut], (zoom, zoom, 1), order=1)
    spare = (large.shape[0] - x.shape[0]) // 2
    return large[spare : spare + x.shape[0], spare : spare + x.shape[0]]


def zoom_blur(x: Any) -> Any:
    x = (x / 255.0).astype(np.float32)
    zooms = np.arange(1, 1.26, 0.01)
    return np.clip((x + sum(clipped_zoom(x, zoom) for zoom in zooms)) / 27, 0, 1) * 255


def snow(x: Any) -> Any:
    x = (x / 255.0).astype(np.float32)
    layer = clipped_zoom(RANDOM.normal(0.3, 0.3, (32, 32, 1)), 1.25)
    layer[layer < 0.65] = 0
    flakes = smear(np.uint8(np.clip(layer, 0, 1) * 255), 14, 12, RANDOM.uniform(-135, -45))
    flakes = np.floor(flakes) / 255
    grey = cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)[..., None]
    x = 0.8 * x + 0.2 * np.maximum(x, grey * 1.5 + 0.5)
    return np.clip(x + flakes + np.rot90(flakes, 2), 0, 1) * 255


def frost(x: Any) -> Any:
    texture = load_textures(0.2, 32, 32)[RANDOM.integers(5)]
    top, left = (RANDOM.integers(0, side - 32) for side in texture.shape[:2])
    return np.clip(0.75 * x + 0.45 * texture[top : top + 32, left : left + 32], 0, 255)


def plasma(size: int, decay: float) -> Any:
    field = np.zeros((size, size))
    step, wobble = size, 100.0
    while step >= 2:
        half = step // 2

        def near(total: Any, wobble: float = wobble) -> Any:
            return total / 4 + wobble * RANDOM.uniform(-wobble, wobble, total.shape)

        corners = field[::step, ::step]
        down = corners + np.roll(corners, -1, axis=0)
        field[half::step, half::step] = near(down + np.roll(down, -1, axis=1))
        centres = field[half::step, half::step]
        across = corners + np.roll(corners, -1, axis=1)
        field[::step, half::step] = near(centres + np.roll(centres, 1, axis=0) + across)
        field[half::step, ::step] = near(centres + np.roll(centres, 1, axis=1) + down)
        step, wobble = half, wobble / decay
    field -= field.min()
    return field / field.max()


def fog(x: Any) -> Any:
    x = x / 255.0
    brightest = x.max()
    x += 1.5 * plasma(32, 1.75)[..., None]
    return np.clip(x * brightest / (brightest + 1.5), 0, 1) * 255


def brightness(x: Any) -> Any:
    hsv = cv2.cvtColor((x / 255.0).astype(np.float32), cv2.COLOR_RGB2HSV)
    hsv[..., 2] = np.clip(hsv[..., 2] + 0.3, 0, 1)
    return np.clip(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB), 0, 1) * 255


def contrast(x: Any) -> Any:
    x = x / 255.0
    mean = x.mean(axis=(0, 1), keepdims=True)
    return np.clip((x - mean) * 0.15 + mean, 0, 1) * 255


def elastic_transform(x: Any) -> Any:
    x = (x / 255.0).astype(np.float32)
    points = np.array([[26, 26], [26, 6], [6, 6]], dtype=np.float32)
    moved = points + RANDOM.uniform(-0.96, 0.96, (3, 2)).astype(np.float32)
    matrix = cv2.getAffineTransform(points, moved)
    x = cv2.warpAffine(x, matrix, (32, 32), borderMode=cv2.BORDER_REFLECT_101)
    dx, dy = (
        gaussian_filter(RANDOM.uniform(-1, 1, (32, 32)), 0.96, mode="reflect", truncate=3) * 3.2
        for _ in range(2)
    )
    rows, columns, channels = np.meshgrid(*(np.arange(side) for side in x.shape), indexing="ij")
    where = (rows + dy[..., None], columns + dx[..., None], channels)
    return np.clip(map_coordinates(x, where, order=1, mode="reflect"), 0, 1) * 255


def pixelate(x: Any) -> Any:
    box = Image.Resampling.BOX
    return np.asarray(Image.fromarray(x).resize((20, 20), box).resize((32, 32), box))


def jpeg_compression(x: Any) -> Any:
    file = io.BytesIO()
    Image.fromarray(x).save(file, "JPEG", quality=40)
    return np.asarray(Image.open(file))


def measure(n_images: int, n_loop: int, workers: int) -> dict[str, dict[str, float]]:
    """Return the seconds of both for that many images, and their ratio, by corruption."""
    few, _ = render(n_loop, seed=0)
    many = np.resize(few, (n_images, 32, 32, 3))
    load_textures(0.2, 32, 32)
    seconds = {}
    with open_pool(workers) as pool:
        start = time.perf_counter()
        for name in BENCHMARK:  # the processes start, import and read what they need
            apply_in_parallel(many[: 1024 * workers], name, workers=pool)
        first = time.perf_counter() - start
        print(f"(first calls, with the start of the processes: {first:.1f} s)")
        for name in BENCHMARK:
            function: Callable[[Any], Any] = globals()[name]
            start = time.perf_counter()
            apply_in_parallel(many, name, workers=pool)
            here = time.perf_counter() - start
            start = time.perf_counter()
            for image in few:
                np.uint8(function(image))
            loop = (time.perf_counter() - start) * n_images / len(few)
            seconds[name] = compare(loop, here)
            show(name, seconds[name])
    return seconds


def compare(loop: float, here: float) -> dict[str, float]:
    """Return both times in seconds with their ratio."""
    return {"loop_s": round(loop, 3), "here_s": round(here, 3), "ratio": round(loop / here, 2)}


def show(name: str, row: dict[str, float]) -> None:
    """Print a line of the table."""
    print(f"{name:20}{row['loop_s']:10.2f}{row['here_s']:10.2f}{row['ratio']:8.1f}", flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--loop-images", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a JSON file for the figures and how they came")
    options = parser.parse_args()
    load_before = os.getloadavg()
    print(f"{'corruption':20}{'loop s':>10}{'here s':>10}{'ratio':>8}")
    seconds = measure(options.images, options.loop_images, options.workers)
    glass = seconds.pop("glass_blur")
    total = compare(*(sum(row[key] for row in seconds.values()) for key in ("loop_s", "here_s")))
    show("sum without glass", total)
    if options.out:
        provenance = {
            "command": " ".join(["python", *sys.argv]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "images": options.images,
            "images_of_the_loop": options.loop_images,
            "size": "32 by 32 pixels, severity 5",
            "processes": {"here": options.workers, "loop": 1},
            "threads": {"opencv": cv2.getNumThreads(), "omp": os.environ.get("OMP_NUM_THREADS")},
            "frost": "procedural" if find_photographs() is None else "photographs",
            "versions": {
                "python": platform.python_version(),
                **{
                    name: version(name)
                    for name in ("acclimate", "numpy", "scipy", "pillow", "opencv-python-headless")
                },
            },
            "machine": {"cores": os.cpu_count(), "processor": platform.machine()},
            "load_average": {"before": load_before, "after": os.getloadavg()},
        }
        content = {
            "provenance": provenance,
            "seconds": seconds,
            "sum_without_glass": total,
            "glass_blur": glass,
        }
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
