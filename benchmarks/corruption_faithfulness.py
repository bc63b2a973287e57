"""How near the corruptions are to those of their authors' program, and what a model makes of them.

    python benchmarks/corruption_faithfulness.py --reference DIR --weights FILE --data-dir DIR \
        --out results/corruption-faithfulness.json

`--reference` holds 500 clean images (cifar10-test-first500.npy), the same corrupted at severity 5
by the authors' program (cifar10c-authors-severity5-first500.npz), and the errors in percent of a
ResNet-20 on the whole set corrupted by it (cifar10c-resnet20.json). Corruptions that draw nothing
are compared pixel by pixel. Of the others, whose draws differ, the distributions of nine statistics
of an image and of its change are compared by two-sample Kolmogorov-Smirnov tests. The errors are
those of the model given by `--weights`, without adaptation, on CIFAR-10-C in `--data-dir`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from acclimate import data, zoo
from acclimate.corruptions import BENCHMARK, Pixels, apply
from acclimate.corruptions.frost import PHOTOGRAPHS, find_photographs, frost_from
from acclimate.data import SETS
from acclimate.storage import file_digest
from acclimate.zoo.readers import content_digest

Values = npt.NDArray[np.float64]

SEVERITY = 5
SEED = 0
MODEL = "resnet20-cifar10"
CLEAN = "cifar10-test-first500.npy"
CORRUPTED = "cifar10c-authors-severity5-first500.npz"
ERRORS = "cifar10c-resnet20.json"

#: Those that draw nothing: their pixels can be compared.
FIXED = (*("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"),)
RANDOM = tuple(name for name in BENCHMARK if name not in FIXED)


def ks_p_value(a: Values, b: Values) -> float:
    """Return the asymptotic p-value of the two-sample Kolmogorov-Smirnov test."""
    a, b = np.sort(a), np.sort(b)
    both = np.concatenate([a, b])
    below_a = np.searchsorted(a, both, side="right") / len(a)
    below_b = np.searchsorted(b, both, side="right") / len(b)
    gap = np.abs(below_a - below_b).max()
    if gap < 1e-3:  # the series below does not converge there
        return 1.0
    size = len(a) * len(b) / (len(a) + len(b))
    scaled = (np.sqrt(size) + 0.12 + 0.11 / np.sqrt(size)) * gap
    terms = np.arange(1, 101)
    series = (-1.0) ** (terms - 1) * np.exp(-2 * terms**2 * scaled**2)
    return float(np.clip(2 * series.sum(), 0, 1))


def spectrum(x: Values) -> list[Values]:
    """Return the logarithm of the power of each image in three bands of frequency."""
    size = x.shape[1]
    power = np.abs(np.fft.fft2(x.mean(axis=-1), axes=(1, 2))) ** 2
    line = np.fft.fftfreq(size)
    frequency = np.hypot(line[:, None], line)
    bands = ((0.01, 0.1), (0.1, 0.25), (0.25, 0.8))
    return [
        np.log(power[:, (frequency >= low) & (frequency < high)].mean(axis=1) + 1e-9)
        for low, high in bands
    ]


def statistics(x: Values, clean: Values) -> dict[str, Values]:
    """Return what is compared: of the image, and of what was done to it, which says more."""
    axes = (1, 2, 3)
    change = x - clean
    found = {"mean": x.mean(axis=axes), "std": x.std(axis=axes), "change": change.std(axis=axes)}
    for what, of in (("image", x), ("change", change)):
        found.update({f"{what} band {i}": band for i, band in enumerate(spectrum(of))})
    return found


def compare_pixels(clean: Pixels, theirs: Pixels, name: str) -> dict[str, float]:
    """Return mean and largest absolute difference of our copies from theirs, in levels of 255."""
    difference = np.abs(apply(clean, name, SEVERITY, SEED).astype(float) - theirs)
    return {"mean": float(difference.mean()), "largest": float(difference.max())}


def compare_distributions(clean: Pixels, theirs: Pixels, name: str) -> dict[str, float]:
    """Return the p-value of each statistic for our copies having the distribution of theirs."""
    x = clean.astype(float)
    found = statistics(apply(clean, name, SEVERITY, SEED).astype(float), x)
    expected = statistics(theirs.astype(float), x)
    return {what: ks_p_value(found[what], expected[what]) for what in found}


def read_images(folder: Path) -> tuple[Pixels, dict[str, Pixels]]:
    """Return the clean images of the reference and their corrupted copies."""
    with np.load(folder / CORRUPTED) as file:
        return np.load(folder / CLEAN), {name: file[name] for name in BENCHMARK}


def read_errors(folder: Path) -> dict[str, float]:
    """Return the errors of the reference in percent."""
    errors: dict[str, float] = json.loads((folder / ERRORS).read_text())["error"]["source"]
    return errors


def measure_error(model: torch.nn.Module, images: Pixels, labels: npt.NDArray[np.int64]) -> float:
    """Return the error of a model that is not adapted, in percent."""
    n_wrong = 0
    with torch.inference_mode():
        for start in range(0, len(images), 500):
            pixels = torch.from_numpy(np.array(images[start : start + 500])).permute(0, 3, 1, 2)
            found = model(pixels.float() / 255).argmax(1).numpy()
            n_wrong += int((found != labels[start : start + 500]).sum())
    return 100 * n_wrong / len(images)


def compare_images(folder: Path) -> dict[str, dict[str, Any]]:
    """Compare our copies of the reference's images with the authors', by corruption."""
    clean, corrupted = read_images(folder)
    found: dict[str, dict[str, Any]] = {}
    for name in BENCHMARK:
        if name in FIXED:
            difference = compare_pixels(clean, corrupted[name], name)
            found[name] = {"absolute_difference": difference}
            print(f"{name:20} mean difference {difference['mean']:.4f} of 255", flush=True)
        else:
            p_values = compare_distributions(clean, corrupted[name], name)
            found[name] = {"smallest_p_value": min(p_values.values()), "p_values": p_values}
            print(f"{name:20} smallest p-value {min(p_values.values()):.3f}", flush=True)
    return found


def compare_errors(folder: Path, model: torch.nn.Module, root: Path | None) -> dict[str, Any]:
    """Compare the error of the model on the set in the data root with the reference's."""
    expected = read_errors(folder)
    rows: dict[str, dict[str, Any]] = {}
    for name in BENCHMARK:
        loaded = data.load("cifar10c", root=root, corruption=name, severity=SEVERITY)
        error = measure_error(model, loaded.images, loaded.labels)
        said = loaded.description
        rows[name] = {
            "error": round(error, 2),
            "reference": expected[name],
            "difference": round(error - expected[name], 2),
            **{key: said.get(key) for key in ("n", "source", "seed", "sha256")},
            # Without the folder, which is of this machine only.
            "made_from": str(said.get("made_from", "published file")).partition(" in ")[0],
        }
        print(f"{name:20} error {error:6.2f}, reference {expected[name]:6.2f}", flush=True)
    means = {key: float(np.mean([row[key] for row in rows.values()])) for key in
             ("error", "reference")}  # fmt: skip
    largest = max(abs(row["difference"]) for row in rows.values())
    print(f"{'mean':20} error {means['error']:6.2f}, reference {means['reference']:6.2f}")
    return {
        "mean": {key: round(value, 2) for key, value in means.items()},
        "largest_difference": largest,
        "corruptions": rows,
    }


def describe_frost(root: Path | None) -> dict[str, Any]:
    """Return what frost is made of here, and whether these are the known photographs."""
    with frost_from(root):
        folder = find_photographs()
    if folder is None:
        return {"source": "procedural"}
    sums = {name: file_digest(folder / name, "sha256") for name in PHOTOGRAPHS}
    is_published = sums == SETS["frost"].sha256
    return {"source": "photographs", "are_the_published": is_published, "sha256": sums}


def describe_run(options: argparse.Namespace, model: torch.nn.Module) -> dict[str, Any]:
    """Return how the figures came about."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    packages = ("acclimate", "numpy", "scipy", "pillow", "opencv-python-headless", "torch")
    reference = (CLEAN, CORRUPTED, ERRORS)
    return {
        "command": " ".join(["python benchmarks/corruption_faithfulness.py", *words]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "severity": SEVERITY,
        "seed": SEED,
        "reference_sha256": {
            name: file_digest(options.reference / name, "sha256") for name in reference
        },
        "model": {
            "name": MODEL,
            "file_sha256": file_digest(options.weights, "sha256"),
            "content_sha256": content_digest(model),
        },
        "clean": data.load("cifar10", root=options.data_dir).description,
        "frost": describe_frost(options.data_dir),
        "threads": options.threads,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "machine": {"cores": os.cpu_count(), "processor": platform.machine()},
    }


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, required=True, metavar="DIR")
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE")
    parser.add_argument("--data-dir", type=Path, metavar="DIR")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = zoo.load(MODEL, options.weights)
    with frost_from(options.data_dir):
        images = compare_images(options.reference)
    errors = compare_errors(options.reference, model, options.data_dir)
    if options.out:
        content = {"provenance": describe_run(options, model), "images": images, "errors": errors}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
