"""Estimators of accuracy without labels, ours and published ones, against the labels.

    python benchmarks/estimate.py run --model resnet20-cifar10
    python benchmarks/estimate.py report

`run` measures every stream, corruption and method of a model, one cell after another, and adds each
to `results/estimate.jsonl` as it ends; run again, it does what is missing, or was measured with
other code of the guard. `report` writes `results/estimate.json` and the tables of
`docs/estimate.md`.

Of every window of a stream, a cell has the accuracies of the source and of the adapted model, and
what each estimator says of both:

* ours: `adapt(..., guard="watch")`, the estimate at the end of the window. It is made of the images
  of one batch in four, so that some may be from before the window;
* AC, DoC and ATC, from the predictions of all images of the window. DoC and ATC are calibrated on
  the images that the artifact was prepared from, which are training images, and again on clean test
  images that are not in the stream, as their authors do;
* AETTA, the mean over the window of its smoothed estimates of all batches: ten passes of the
  updated model with dropout after each stage, and one without.

Predictions are those that the method returned. The model is reset before each corruption.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor, nn

import acclimate
import estimate_report
import estimators
from acclimate.errors import AcclimateWarning
from acclimate.functional import precision
from acclimate.guard import is_probed_batch
from acclimate.methods.method import Method
from acclimate.parts.accuracy import Accuracy
from acclimate.snapshot import fingerprint
from acclimate.storage import versions, write_atomically
from estimate_cases import CASES, METHODS, SEVERITY, Case, Data, Stream

ROOT = Path(__file__).resolve().parent.parent
N_PASSES = 10
#: What our estimates depend on.
OURS = ("guard.py", "parts/accuracy.py", "functional/signals.py")

Cell = dict[str, Any]


def to_batch(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """Return 8-bit images as a batch in [0, 1]."""
    x = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)
    return x.float() / 255


@cache
def draw_mask(seed: int, place: int, shape: tuple[int, ...], p: float) -> Tensor:
    """Return what dropout multiplies an output (N, C, ...) by; channels come last in memory."""
    generator = np.random.default_rng([seed, place])
    n, channels, *sides = shape
    is_kept = generator.random((n, *sides, channels), dtype=np.float32) >= p
    return torch.from_numpy(is_kept).movedim(-1, 1).float() / (1 - p)


@contextlib.contextmanager
def dropout_after(model: nn.Module, stages: tuple[str, ...], p: float, seed: int) -> Iterator[None]:
    """Apply dropout to the outputs of modules.

    Drawing takes longer than predicting. So each seed has one mask for all batches of a size.
    """

    def drop(place: int) -> Callable[..., Tensor]:
        return lambda module, inputs, output: output * draw_mask(seed, place, output.shape, p)

    modules = [model.get_submodule(name) for name in stages]
    hooks = [module.register_forward_hook(drop(place)) for place, module in enumerate(modules)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def computed_once(model: nn.Module, names: tuple[str, ...]) -> Iterator[None]:
    """Compute the first modules of a model once, for several passes over the same batch.

    Only the output of the last of them is used by what follows.
    """
    *before, last = [model.get_submodule(name) for name in names]
    forward, kept = last.forward, []

    def skip(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x

    def recall(*args: Any, **kwargs: Any) -> Tensor:
        if not kept:
            kept.append(forward(*args, **kwargs))
            for module in before:
                module.forward = skip
        return kept[0]

    last.forward = recall
    try:
        yield
    finally:
        for module in (*before, last):
            module.__dict__.pop("forward", None)


def estimate_by_dropout(model: nn.Module, predict: Callable[[], Tensor], case: Case) -> Tensor:
    """Return AETTA's estimate for one batch that `predict` predicts."""
    logits = []
    with torch.no_grad(), computed_once(model, case.shared):
        predicted = predict().argmax(dim=1)
        for seed in range(N_PASSES):
            with dropout_after(model, case.stages, case.dropout, seed):
                logits.append(predict())
    return estimators.dropout_accuracy(predicted, torch.stack(logits))


class Calibration:
    """Confidence-based estimators, calibrated on labelled images."""

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        self.is_correct = logits.argmax(dim=1) == labels
        self.confidence = estimators.confidences(logits)
        self.thresholds = [
            estimators.find_threshold(score, self.is_correct)
            for score in (self.confidence, estimators.negative_entropies(logits))
        ]

    def estimate(self, logits: Tensor) -> dict[str, float]:
        """Return the estimates for a window of predictions."""
        confidence = estimators.confidences(logits)
        entropy = estimators.negative_entropies(logits)
        found = {
            "doc": estimators.difference_of_confidences(
                confidence, self.confidence, self.is_correct
            ),
            "atc_confidence": estimators.accuracy_above(confidence, self.thresholds[0]),
            "atc_entropy": estimators.accuracy_above(entropy, self.thresholds[1]),
        }
        return {name: float(value) for name, value in found.items()}

    def to_dict(self) -> dict[str, float]:
        """Return what it is calibrated to."""
        names = ("threshold_confidence", "threshold_entropy")
        return {
            "n": len(self.is_correct),
            "accuracy": float(self.is_correct.double().mean()),
            "confidence": float(self.confidence.double().mean()),
            **dict(zip(names, map(float, self.thresholds), strict=True)),
        }


class Bench:
    """A model with its artifact and calibrations, ready for cells."""

    def __init__(self, name: str, n_images: int, seed: int, out: Path) -> None:
        self.name, self.n_images, self.seed = name, n_images, seed
        self.case = CASES[name]
        self.model = self.case.load().to(memory_format=torch.channels_last)
        self.data: Data = self.case.read(n_images, seed)
        self.artifact = self._prepare(out)
        self.calibrations = {"": self._calibrate(*self.data.source)}
        if self.data.held_out is not None:
            self.calibrations["_held_out"] = self._calibrate(*self.data.held_out)
        self.facts = self._describe()
        self.streams: Callable[..., dict[str, Any]] = cache(self._play_source)

    def _prepare(self, out: Path) -> acclimate.Artifact:
        path = out.with_name(f"{out.stem}-{self.name}-{self.seed}-{digest_of_ours()}.acclimate")
        if path.is_file():
            return acclimate.Artifact.load(path)
        images, labels = self.data.source
        batches = [
            (to_batch(images[start : start + 128]), labels[start : start + 128])
            for start in range(0, len(images), 128)
        ]
        kinds = {method for s in self.case.streams.values() for method in s.methods}
        artifact = acclimate.prepare(
            self.model,
            batches,
            method=sorted({METHODS[kind][0] for kind in kinds}),
            parts=[Accuracy(**self.case.accuracy)],
            seed=self.seed,
            progress=False,
        )
        artifact.save(path)
        return artifact

    @torch.no_grad()
    def _predict(self, images: Any) -> Tensor:
        parts = [self.model(to_batch(images[i : i + 200])) for i in range(0, len(images), 200)]
        return torch.cat(parts)

    def _calibrate(self, images: Any, labels: Tensor) -> Calibration:
        return Calibration(self._predict(images), labels)

    def _describe(self) -> dict[str, Any]:
        return {
            "data": self.data.about,
            "severity": SEVERITY,
            "model": self.name,
            "model_sha256": fingerprint(self.model)["weights_sha256"],
            "artifact": {"accuracy": self.artifact.card["parts"]["accuracy"]},
            "calibration": {
                key.strip("_") or "source": c.to_dict() for key, c in self.calibrations.items()
            },
            "aetta": {
                "passes": N_PASSES,
                "dropout": self.case.dropout,
                "after": list(self.case.stages),
            },
            "ours_sha256": digest_of_ours(),
            "commit": find_commit(),
            "seed": self.seed,
            "reset": "before each corruption",
            "predictions": "as returned by the method",
            "threads": torch.get_num_threads(),
            "versions": versions(),
            "processor": describe_processor(),
        }

    def list_keys(self, streams: list[str], shifts: list[str] | None) -> list[dict[str, Any]]:
        """Return what identifies each cell, in the order in which they are measured."""
        return [
            {
                "model": self.name,
                "stream": stream,
                "corruption": corruption,
                "method": method,
                "n_images": int(self.n_images * self.case.streams[stream].share),
                "seed": self.seed,
                "ours_sha256": digest_of_ours(),
            }
            for stream in streams
            for corruption in shifts or self.case.corruptions
            for method in self.case.streams[stream].methods
        ]

    def _play_source(self, stream_name: str, corruption: str) -> dict[str, Any]:
        """Return a stream, and what the source model predicts of it."""
        stream: Stream = self.case.streams[stream_name]
        images, labels = self.data.shifted(corruption)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(self.seed + 1))
        order = order[: int(self.n_images * stream.share)]
        if stream.order == "sorted":
            order = order[torch.argsort(labels[order], stable=True)]
        images, labels = images[order.numpy()], labels[order]
        batches = [
            to_batch(images[start : start + stream.batch_size])
            for start in range(0, len(images), stream.batch_size)
        ]
        logits, aetta = [], []
        average: Tensor | None = None
        for x in batches:
            with torch.no_grad():
                logits.append(self.model(x))
            found = estimate_by_dropout(self.model, lambda x=x: self.model(x), self.case)
            average = estimators.smooth(average, found)
            aetta += [float(average)] * len(x)
        return {
            "batches": batches,
            "labels": labels,
            "logits": torch.cat(logits),
            "aetta": torch.tensor(aetta),
        }

    def measure(self, key: dict[str, Any]) -> Cell:
        """Run one method over the stream of one corruption."""
        started = time.time()
        method, options = METHODS[key["method"]]
        source = self.streams(key["stream"], key["corruption"])
        labels = source["labels"]
        adapted = acclimate.adapt(
            self.model, method, self.artifact, guard="watch", seed=self.seed, **options
        )
        logits: list[Tensor] = []
        aetta: list[float] = []
        average: Tensor | None = None
        probed: list[int] = []
        windows = []
        for number, x in enumerate(source["batches"]):
            every = adapted.guard.every if adapted.guard else 1
            if is_probed_batch(number, every):
                probed += range(len(aetta), len(aetta) + len(x))
            logits.append(adapted(x))
            predict = predictor(adapted, x)
            found = estimate_by_dropout(adapted.model, predict, self.case)
            average = estimators.smooth(average, found)
            aetta += [float(average)] * len(x)
            start = sum(window["n"] for window in windows)
            if len(aetta) - start >= self.case.window or len(aetta) == len(labels):
                rows = slice(start, len(aetta))
                predicted = {"source": source["logits"], "adapted": torch.cat(logits)}
                by_dropout = {"source": source["aetta"], "adapted": torch.tensor(aetta)}
                windows.append(
                    {
                        **self._judge(rows, predicted, labels, by_dropout),
                        **judge_ours(adapted, probed, predicted, labels),
                    }
                )
        adapted.unwrap()
        return {
            "key": key,
            "windows": windows,
            "facts": {
                **self.facts,
                "order": self.case.streams[key["stream"]].order,
                "batch_size": self.case.streams[key["stream"]].batch_size,
                "method": method,
                "options": options,
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "seconds": round(time.time() - started, 1),
            },
        }

    def _judge(
        self,
        rows: slice,
        predicted: dict[str, Tensor],
        labels: Tensor,
        by_dropout: dict[str, Tensor],
    ) -> dict[str, Any]:
        """Return true accuracies and published estimates of a window."""
        truth, estimates = {}, {}
        for model, logits in predicted.items():
            part = logits[rows]
            truth[model] = accuracy_of(part, labels[rows])
            found = {
                "ac": float(estimators.average_confidence(estimators.confidences(part))),
                "aetta": float(by_dropout[model][rows].double().mean()),
            }
            for suffix, calibration in self.calibrations.items():
                found |= {f"{k}{suffix}": v for k, v in calibration.estimate(part).items()}
            for name, value in found.items():
                estimates.setdefault(name, {})[model] = value
        return {"n": len(labels[rows]), "truth": truth, "estimates": estimates}


def predictor(adapted: Method, x: Tensor) -> Callable[[], Tensor]:
    """Return a function that predicts a batch again, without learning."""
    return lambda: adapted.predict_view(x).logits


def judge_ours(
    adapted: Method, probed: list[int], predicted: dict[str, Tensor], labels: Tensor
) -> dict[str, Any]:
    """Return our estimate now, and the true accuracies on the images that it was made from."""
    estimate = adapted.estimate()
    if estimate is None:
        return {"ours": None, "covered": None}
    intervals = {
        name: [value.value, value.low, value.high]
        for name in ("source", "adapted", "gain")
        for value in [getattr(estimate, name)]
    }
    rows = torch.tensor(probed[-estimate.n_samples :])
    return {
        "ours": {
            **intervals,
            "n": estimate.n_samples,
            "correlation": estimate.correlation,
            "is_familiar": estimate.is_familiar,
        },
        "covered": {
            name: accuracy_of(logits[rows], labels[rows]) for name, logits in predicted.items()
        },
    }


def accuracy_of(logits: Tensor, labels: Tensor) -> float:
    """Return the share of correct predictions."""
    return float((logits.argmax(dim=1) == labels).double().mean())


@cache
def digest_of_ours() -> str:
    """Return a hash of the code that our estimates depend on."""
    state = hashlib.sha256()
    for name in OURS:
        state.update((Path(acclimate.__file__).parent / name).read_bytes())
    return state.hexdigest()[:12]


@cache
def find_commit() -> str:
    """Return the commit of the code; empty if it is not in a repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def describe_processor() -> dict[str, Any]:
    """Return what the processor can do that changes the last bits."""
    return {
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "bfloat16": precision.has_fast_bfloat16(torch.device("cpu")),
    }


def round_floats(value: Any) -> Any:
    """Return nested values with floats of six digits after the point."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: round_floats(item) for key, item in value.items()}
    return [round_floats(item) for item in value] if isinstance(value, list) else value


def add_cell(path: Path, cell: Cell) -> None:
    """Add a line to the file, in the place of an older one; other processes may do so too."""
    with FileLock(f"{path}.lock"):
        cells = estimate_report.read_cells(path)
        cells[estimate_report.identify(cell["key"])] = round_floats(cell)
        lines = [json.dumps(each, ensure_ascii=False) + "\n" for each in cells.values()]
        write_atomically(path, "".join(lines).encode())


def run(arguments: argparse.Namespace) -> None:
    """Measure the cells that are missing."""
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore", category=AcclimateWarning)
    case = CASES[arguments.model]
    n_images = arguments.images or case.n_images
    bench = Bench(arguments.model, n_images, arguments.seed, arguments.out)
    keys = bench.list_keys(arguments.streams or list(case.streams), arguments.corruptions)
    done = [cell["key"] for cell in estimate_report.read_cells(arguments.out).values()]
    missing = [key for key in keys if key not in done]
    print(f"{len(keys) - len(missing)} of {len(keys)} cells are done", flush=True)
    for number, key in enumerate(missing, 1):
        cell = bench.measure(key)
        add_cell(arguments.out, cell)
        names = [key[name] for name in ("model", "stream", "corruption", "method")]
        seconds = cell["facts"]["seconds"]
        print(f"{number}/{len(missing)} {' '.join(names)}: {seconds} s", flush=True)


def main(words: list[str] | None = None) -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="measure what is missing")
    runs.add_argument("--model", choices=CASES, default="resnet20-cifar10")
    runs.add_argument("--images", type=int, help="per corruption")
    runs.add_argument("--streams", nargs="+", help="default: all of the model")
    runs.add_argument("--corruptions", nargs="+", help="default: all of the model")
    runs.add_argument("--seed", type=int, default=0)
    runs.add_argument("--threads", type=int, default=1)
    reports = commands.add_parser("report", help="write the summary and the tables")
    reports.add_argument("--docs", type=Path, default=ROOT / "docs/estimate.md")
    for each in (runs, reports):
        each.add_argument("--out", type=Path, default=ROOT / "results/estimate.jsonl")
    arguments = parser.parse_args(sys.argv[1:] if words is None else words)
    if arguments.command == "run":
        run(arguments)
    else:
        estimate_report.write_report(arguments.out, arguments.docs)


if __name__ == "__main__":
    main()
