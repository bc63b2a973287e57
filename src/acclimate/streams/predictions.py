"""Predict a folder of images while adapting to it."""

from __future__ import annotations

import copy
import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.forward import get_logits
from acclimate.functional.entropy import entropy, log_probs
from acclimate.functional.pixels import resize_maps, to_rows
from acclimate.introspect import try_forward
from acclimate.methods.method import Method
from acclimate.metrics import BatchMetrics, MetricsWriter
from acclimate.progress import Progress
from acclimate.streams.folder import FolderStream
from acclimate.streams.prediction_file import CODEC, PredictionFile
from acclimate.streams.prediction_masks import (
    MOST_CLASSES,
    PredictionFolder,
    fit_to_image,
    open_predictions,
)

__all__ = [
    "PredictionFile",
    "PredictionFolder",
    "PredictionSummary",
    "open_predictions",
    "predict_folder",
]


@dataclass(frozen=True)
class PredictionSummary:
    """Counts of the predictions of a folder.

    Attributes:
        n_images: Number of rows or masks in the output.
        n_batches: Number of batches in the output.
        n_resumed: Number of batches from an earlier, interrupted run.
        images_per_second: Throughput of this run.
        labels: Number of images by predicted label, most frequent first; if every pixel is
            predicted, by the most frequent label of the pixels.
    """

    n_images: int
    n_batches: int
    n_resumed: int
    images_per_second: float
    labels: dict[str, int]


def predict_folder(
    adapted: Method,
    stream: FolderStream,
    file: PredictionFile,
    *,
    classes: Sequence[str] | None = None,
    save_every: int = 1,
    progress: Progress | None = None,
    metrics: MetricsWriter | None = None,
) -> PredictionSummary:
    """Predict all images of a folder while adapting, and write one row or mask per image.

    Args:
        adapted: The result of `acclimate.adapt`.
        stream: The images.
        file: The output: a `PredictionFile`, or a `PredictionFolder` for a model that predicts
            every pixel.
        classes: Class names in the order of the logits; numbers are written if None.
        save_every: Number of batches between two saved states; a crash loses at most that many.
        progress: Called with "predict", the number of images done and the total.
        metrics: Writes the metrics of every batch.

    Raises:
        BadInput: The output or the names do not fit the model or the images. Nothing was learned.
    """
    if save_every < 1:
        raise BadInput(
            "out_of_range",
            f"Expected save_every to be at least 1, found {save_every}.",
            option="save_every",
            found=save_every,
        )
    if isinstance(file, PredictionFolder):
        if stream.crops:
            raise BadInput(
                "missing_option",
                "Expected images that are not cropped, because every pixel gets a class, found a "
                "stream that crops. Pass FolderStream(..., squash=True).",
                option="squash",
            )
        file.check_images(stream.root, [_name(stream, path) for path in stream.paths])
    rows = file.begin(_describe(adapted, stream, classes), adapted)
    labels = Counter(row[1] for row in rows)
    batches = {row[-1] for row in rows}
    n_resumed = len(batches)
    start = int(rows[-1][-1]) + 1 if rows else 0
    done = {row[0] for row in rows}
    before = stream.paths[: start * stream.batch_size]
    stream.mark_unreadable([path for path in before if _name(stream, path) not in done])
    like = next((p for p in adapted.parameters()), torch.empty(0))  # device and precision
    if metrics is not None:
        metrics.begin(start)
    n_new, began = 0, time.perf_counter()
    try:
        for batch in stream.batches(start):
            x = batch.x.to(like)
            if n_new == 0:
                _check_fit(adapted, x, file, classes)
            counts, called = copy.deepcopy(adapted.counts), time.perf_counter()
            output = adapted(x)
            latency_ms = 1000 * (time.perf_counter() - called)
            logits = get_logits(output, None if isinstance(output, Tensor) else adapted.logits_at)
            names = [_name(stream, path) for path in batch.paths]
            if isinstance(file, PredictionFolder):
                maps = resize_maps(logits.detach(), x.shape[2:])
                masks = map(fit_to_image, maps.argmax(dim=1), batch.paths)
                file.write_masks(dict(zip(names, masks, strict=True)))
                new = _rows(names, batch.number, *_sum_up(maps), classes)
            else:
                p, numbers = log_probs(logits).exp().max(dim=1)
                new = _rows(names, batch.number, numbers, p, entropy(logits), classes)
            file.append(new)
            if metrics is not None:
                measured = BatchMetrics.of_call(
                    adapted, logits, index=batch.number, before=counts, latency_ms=latency_ms
                )
                metrics.write(measured)
            if adapted.counts.batches % save_every == 0:
                adapted.save(file.state)
            labels.update(row[1] for row in new)
            batches.add(new[0][-1])
            n_new += len(new)
            if progress is not None:
                last = min((batch.number + 1) * stream.batch_size, len(stream.paths))
                progress("predict", last, len(stream.paths))
    finally:
        file.close()
    seconds = time.perf_counter() - began
    if file.keeps_state:
        adapted.save(file.state)
    file.finish(classes is not None)
    return PredictionSummary(
        n_images=labels.total(),
        n_batches=len(batches),
        n_resumed=n_resumed,
        images_per_second=n_new / seconds,
        labels=dict(labels.most_common()),
    )


def _describe(
    adapted: Method, stream: FolderStream, classes: Sequence[str] | None
) -> dict[str, Any]:
    names = [_name(stream, path) for path in stream.paths]
    if odd := next((name for name in names if "\r" in name), None):
        raise BadInput(
            "malformed",
            f"Expected file names without line breaks, found {odd!r}. Rename the file.",
            option="path",
            found=odd,
        )
    text = "\0".join(names).encode(**CODEC)
    sizes = ",".join(str(_count_bytes(path)) for path in stream.paths)
    return {
        "images": len(names),
        "listing_sha256": hashlib.sha256(text).hexdigest(),
        "file_sizes_sha256": hashlib.sha256(sizes.encode()).hexdigest(),
        "batch_size": stream.batch_size,
        "size": list(stream.size),
        "squash": stream.squash,
        "normalization": stream.normalization and stream.normalization.to_dict(),
        "classes": None if classes is None else list(classes),
        "method": adapted.name,
        "config": adapted.config.to_dict(),
        "seed": adapted.generator.initial_seed(),
    }


def _count_bytes(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None  # a broken link, reported when its pixels are read


def _name(stream: FolderStream, path: Path) -> str:
    return path.relative_to(stream.root).as_posix()


def _check_fit(
    adapted: Method, x: Tensor, file: PredictionFile, classes: Sequence[str] | None
) -> None:
    """Refuse an output or class names that do not fit the model's predictions."""
    if adapted.artifact is not None:
        is_dense, n = adapted.artifact.info.is_dense, adapted.artifact.info.known_classes
    else:
        logits = get_logits(try_forward(adapted.model, x[:2]), adapted.logits_at)
        is_dense, n = logits.dim() == 4, logits.shape[1]
    if is_dense and not file.holds_masks:
        raise BadInput(
            "not_a_folder",
            f"Expected a folder for masks, because this model predicts every pixel, found "
            f"{file.out}. Pass a name without a suffix: --out DIR, or PredictionFolder(DIR) in "
            "Python.",
            path=file.out,
        )
    if file.holds_masks and not is_dense:
        raise BadInput(
            "not_a_file",
            "Expected a table that ends in .csv or .parquet, because this model predicts whole "
            f"images, found the folder {file.out}. Pass another --out, or use PredictionFile in "
            "Python.",
            path=file.out,
        )
    if is_dense and n > MOST_CLASSES:
        raise BadInput(
            "out_of_range",
            f"Expected at most {MOST_CLASSES} classes, which masks of 8 bits can represent, found "
            f"{n}. Call the adapted model on batches instead, and take the argmax over classes.",
            option="classes",
            found=n,
        )
    if classes is not None and len(classes) != n:
        raise BadInput(
            "count_mismatch",
            f"Expected {n} class names, one per logit of the model, found "
            f"{len(classes)}. Pass the names of all classes in the order of training.",
            expected=n,
            found=len(classes),
        )


def _sum_up(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the most frequent class, mean probability and mean entropy of each image."""
    rows = to_rows(maps)
    probabilities, numbers = log_probs(rows).exp().max(dim=1)
    pixels = [own.view(len(maps), -1) for own in (numbers, probabilities, entropy(rows))]
    frequent = torch.stack([torch.bincount(own).argmax() for own in pixels[0]])
    return frequent, pixels[1].mean(dim=1), pixels[2].mean(dim=1)


def _rows(
    names: Sequence[str],
    batch: int,
    numbers: Tensor,
    probabilities: Tensor,
    uncertain: Tensor,
    classes: Sequence[str] | None,
) -> list[list[str]]:
    columns = (names, numbers.tolist(), probabilities.tolist(), uncertain.tolist())
    return [
        [
            name,
            str(number) if classes is None else classes[number],
            f"{probability:.6f}",
            f"{uncertainty:.6f}",
            str(batch),
        ]
        for name, number, probability, uncertainty in zip(*columns, strict=True)
    ]
