"""Errors on the four held-out corruptions, on many kinds of streams: what defaults are chosen by.

    python benchmarks/held_out.py --methods source steady
    python benchmarks/held_out.py --methods steady --constant functional.stream_norm.PRIOR=30
    python benchmarks/held_out.py --methods steady --set damping=10 --guard
    python benchmarks/held_out.py --methods swr_nsp steady --time    # of a batch, without labels

Constants of modules are options that a user does not see. Data and weights are found by
ACCLIMATE_DATA and ACCLIMATE_SHARED. The fifteen corruptions of the benchmark are never read.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import acclimate
from acclimate import Artifact, corruptions, streams, zoo
from acclimate.builtin import load_model, load_split
from acclimate.data import data_root
from acclimate.streams import Batch, Domain
from harm import MODELS

SEVERITY = 5
N_SOURCE = 2048
PARTS = ("penalty", "prototypes", "mirror", "confidence", "fisher")


def load(name: str, n: int, seed: int) -> tuple[torch.nn.Module, Any, list[Domain]]:
    """Return a model, its source data, and a domain of n test images for each shift."""
    if name == "builtin":
        model = load_model()
        (x, y), (test, test_y) = load_split("train", N_SOURCE), load_split("test", n)
        pixels = (test * 255).round().byte().permute(0, 2, 3, 1).numpy()
    else:
        model = zoo.load(MODELS[name]["model"], MODELS[name]["weights"])
        draw = np.random.default_rng(seed)
        sets = []
        for split, count in (("train", N_SOURCE), ("test", n)):
            folder = data_root() / "cifar10" / split
            labels = np.load(folder / "labels.npy")
            chosen = draw.permutation(len(labels))[:count]
            images = np.load(folder / "images.npy", mmap_mode="r")[chosen]
            sets.append((images, torch.from_numpy(labels[chosen].astype(np.int64))))
        (source, y), (pixels, test_y) = sets
        x = _to_tensor(source)
    domains = [
        Domain(name, _to_tensor(corruptions.apply(pixels, name, SEVERITY, seed)), test_y)
        for name in corruptions.HELD_OUT
    ]
    clean = Domain("clean", _to_tensor(pixels), test_y)
    return model, list(zip(x.split(128), y.split(128), strict=True)), [*domains, clean]


def make_streams(domains: list[Domain], seed: int) -> dict[str, Callable[[], Iterable[Batch]]]:
    """Return functions that make each kind of stream."""
    *shifted, clean = domains
    some = [Domain(each.name, each.x[:200], each.y[:200]) for each in shifted]
    return {
        "iid 200": lambda: streams.reset_each(shifted, 200, seed),
        "iid 64": lambda: streams.reset_each(shifted, 64, seed),
        "iid 16": lambda: streams.reset_each(some, 16, seed),
        "iid 4": lambda: streams.reset_each(some, 4, seed),
        "iid 1": lambda: streams.reset_each(some, 1, seed),
        "sorted": lambda: streams.label_sorted(shifted, 64, seed),
        "dirichlet": lambda: streams.dirichlet(shifted, 0.1, 64, seed),
        "one class": lambda: streams.one_class(shifted[:1], 50, 3, 8, seed),
        "video": lambda: streams.video(shifted[:2], 32, 32, 16, seed),
        "mixed 64": lambda: streams.mixed(shifted, 64, seed),
        "mixed 200": lambda: streams.mixed(shifted, 200, seed),
        "recurring": lambda: streams.recurring(some, times=5, batch_size=50, seed=seed),
        "turns": lambda: streams.alternating(some, clean, 1, 50, seed),
        "clean": lambda: streams.reset_each([clean], 64, seed),
    }


def measure(
    model: torch.nn.Module,
    method: str,
    artifact: Artifact,
    stream: Iterable[Batch],
    options: dict[str, Any],
    guard: bool,
) -> float:
    """Return the error on a stream in percent."""
    adapted = acclimate.adapt(model, method, artifact, guard=guard, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = acclimate.evaluate(adapted, stream)
    adapted.unwrap()
    return 100 * float(result.error)


def time_batches(
    model: torch.nn.Module, methods: list[str], artifact: Artifact, batches: list[torch.Tensor]
) -> list[float]:
    """Return the median processor time of a batch in milliseconds for each method, interleaved."""
    adapted = [acclimate.adapt(copy.deepcopy(model), method, artifact) for method in methods]
    times: list[list[float]] = [[] for _ in methods]
    for x in batches:
        for each, own in zip(adapted, times, strict=True):
            started = time.process_time()
            each(x)
            own.append(1000 * (time.process_time() - started))
    return [statistics.median(own[1:]) for own in times]  # the first batch warms up


def _to_tensor(pixels: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))).float() / 255


def _set_constant(text: str) -> None:
    path, value = text.split("=")
    module, name = path.rsplit(".", 1)
    found = importlib.import_module(f"acclimate.{module}")
    if not hasattr(found, name):
        raise SystemExit(f"acclimate.{module} has no constant {name}.")
    setattr(found, name, json.loads(value))


def main() -> None:
    """Parse the command and run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", choices=("builtin", "resnet20", "resnet26-gn"), default="resnet20"
    )
    parser.add_argument("--methods", nargs="+", default=["source", "steady"])
    parser.add_argument("--streams", nargs="+")
    parser.add_argument("--set", nargs="+", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--constant", nargs="+", default=[], metavar="MODULE.NAME=VALUE")
    parser.add_argument("--guard", action="store_true")
    parser.add_argument("--artifact", type=Path, help="file to keep what was prepared")
    parser.add_argument("--time", action="store_true", help="time batches of 200 instead")
    parser.add_argument("--images", type=int, default=400, help="of each domain")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for text in asked.constant:
        _set_constant(text)
    options = {key: json.loads(value) for key, value in (text.split("=") for text in asked.set)}
    model, source, domains = load(asked.model, asked.images, asked.seed)
    parts = (*PARTS, "accuracy") if asked.guard else PARTS
    if asked.artifact is not None and asked.artifact.exists():
        artifact = Artifact.load(asked.artifact)
    else:
        artifact = acclimate.prepare(model, source, parts=list(parts))
        if asked.artifact is not None:
            artifact.save(asked.artifact)
    if asked.time:
        n, shifted = asked.images, domains[:-1]
        kinds = {
            "one style": [shifted[0].x[start : start + 200] for start in range(0, n, 200)] * 4,
            "four styles": [
                torch.cat([each.x[start : start + 50] for each in shifted])
                for start in range(0, n, 50)
            ],
        }
        for name, batches in kinds.items():
            found = time_batches(model, asked.methods, artifact, batches)
            texts = [f"{m}: {ms:.0f} ms" for m, ms in zip(asked.methods, found, strict=True)]
            print(f"{name}: {', '.join(texts)}; last / first {found[-1] / found[0]:.2f}")
        return
    made = make_streams(domains, asked.seed)
    print(f"{'stream':12}", *(f"{name:>10}" for name in asked.methods), flush=True)
    for name in asked.streams or made:
        started, errors = time.perf_counter(), []
        for method in asked.methods:
            own = {} if method == "source" else options
            is_guarded = asked.guard and method != "source"
            errors.append(measure(model, method, artifact, made[name](), own, is_guarded))
        seconds = time.perf_counter() - started
        print(
            f"{name:12}", *(f"{error:10.2f}" for error in errors), f"{seconds:8.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
