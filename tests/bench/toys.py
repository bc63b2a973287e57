"""Small comparisons: three shifts of toy images, three methods, and a loader that provides them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from acclimate.bench.execute import Comparison, run_side_by_side
from acclimate.bench.job import JobSpec
from acclimate.bench.load import Loader
from acclimate.bench.suite import Suite
from acclimate.commands.measure import make_comparison
from acclimate.data.request import Data
from acclimate.streams import Domain
from acclimate.testing.models import tiny_batches, tiny_model
from tests.bench.jobs import VOLATILE, read_suite

N_CLASSES = tiny_model("batch_norm")(tiny_batches(1, 2, 0)[0][0]).shape[1]
METHODS = ("source", "norm", "tent")
CLASSES = tuple(map(str, range(N_CLASSES)))


def make_domains(n: int = 20) -> dict[str, tuple[Domain, ...]]:
    groups = {}
    for seed, name in enumerate(("dark", "dim", "bright")):
        batches = tiny_batches(4, 8, seed)
        x, y = (torch.cat(parts)[:n] for parts in zip(*batches, strict=True))
        groups[name] = (Domain(name, x * (0.4 + 0.3 * seed), y),)
    return groups


def make_data(groups: Mapping[str, tuple[Domain, ...]] | None = None, **changes: Any) -> Data:
    groups = make_domains() if groups is None else groups
    about = {name: {"source": "test", "n": len(own[0])} for name, own in groups.items()}
    options = {"clean": lambda: make_domains()["dim"][0], **changes}
    return Data("toys", groups, options.pop("classes", CLASSES), about, **options)


class ToyLoader(Loader):
    """Provides toy data, and source images to prepare from."""

    def __init__(self, folder: Path, data: Data | None = None, progress: Any = None) -> None:
        super().__init__(folder / "artifacts", "cpu", progress)
        self.data = make_data() if data is None else data

    def read_data(self, spec: JobSpec) -> Data:
        return self.data

    def _plan_preparation(self, spec: JobSpec, data: Data) -> Any:
        return None

    def open_source(self, spec: JobSpec, data: Data) -> tuple[Any, Sequence[str]]:
        return tiny_batches(4, 8, 0), data.classes


def make_toys(
    methods: Sequence[str] = METHODS,
    values: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (0,),
    **shared: Any,
) -> Suite:
    """A suite of methods on the toys, by default those of `METHODS` with a high learning rate."""
    values = {"lr": 0.05} if values is None and "tent" in methods else values
    options: dict[str, Any] = {"model": tiny_model("batch_norm"), "data": "toys", **shared}
    options["protocol"] = {"batch_size": 8, "order": "file", **shared.get("protocol", {})}
    if options["protocol"].get("stream") in ("mixed", "alternating"):
        del options["protocol"]["order"]
    return make_comparison(options, methods, values, seeds=seeds)


def run_toys(
    out: Path,
    suite: Suite | None = None,
    *,
    data: Data | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
    **options: Any,
) -> Comparison:
    """Run a suite on the toys, side by side."""
    loader = ToyLoader(out, data)
    suite = make_toys() if suite is None else suite
    return run_side_by_side(suite, out, loader, progress=progress, **options)


def stable_toys(root: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """All records by seed, method and place, without what differs from run to run."""
    return {
        (line["seed"], line["method"], line["unit"], line["index"]): {
            key: value for key, value in line.items() if key not in VOLATILE
        }
        for line in read_suite(root)
    }
