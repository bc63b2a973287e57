"""Small comparisons for tests: three shifts of toy images, three methods, readers of records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from acclimate.comparison import Data, Job, Protocol, Wrapping, make_configs
from acclimate.streams import Domain
from acclimate.testing.models import tiny_batches, tiny_model

N_CLASSES = tiny_model("batch_norm")(tiny_batches(1, 2, 0)[0][0]).shape[1]
METHODS = ("source", "norm", "tent")
VOLATILE = {"ms", "peak_memory"}


def make_domains(n: int = 20) -> dict[str, tuple[Domain, ...]]:
    groups = {}
    for seed, name in enumerate(("dark", "dim", "bright")):
        batches = tiny_batches(4, 8, seed)
        x, y = (torch.cat(parts)[:n] for parts in zip(*batches, strict=True))
        groups[name] = (Domain(name, x * (0.4 + 0.3 * seed), y),)
    return groups


def make_job(**changes: Any) -> Job:
    groups = make_domains()
    about = {name: {"source": "test", "n": len(own[0])} for name, own in groups.items()}
    classes = tuple(map(str, range(N_CLASSES)))
    options: dict[str, Any] = {
        "model": tiny_model("batch_norm"),
        "methods": make_configs(METHODS, {"lr": 0.05}),
        "data": Data("toys", groups, classes, about, clean=lambda: groups["dim"][0]),
        "protocol": Protocol(batch_size=8),
        "wrapping": Wrapping(),
        **changes,
    }
    return Job(**options)


def lines(folder: Path, name: str = "records.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def key_of(text: bytes) -> tuple[int, str, str]:
    line = json.loads(text)
    return line["seed"], line["method"], line["unit"]


def stable(folder: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """All records by seed, method and place, without what differs from run to run."""
    return {
        (line["seed"], line["method"], line["unit"], line["index"]): {
            key: value for key, value in line.items() if key not in VOLATILE
        }
        for line in lines(folder)
    }
