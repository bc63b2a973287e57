"""Predict a folder of images while adapting to it."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acclimate.errors import BadInput, UnsuitableModel
from acclimate.functional.entropy import entropy, log_probs
from acclimate.methods.base import Method
from acclimate.parts.source import Progress
from acclimate.streams.folder import FolderBatch, FolderStream
from acclimate.streams.prediction_file import CODEC, PredictionFile
from acclimate.taps import get_logits

__all__ = ["PredictionFile", "Summary", "predict_folder"]


@dataclass(frozen=True)
class Summary:
    """What was predicted.

    Attributes:
        n_images: Rows in the output.
        n_batches: Batches in the output.
        n_resumed: Batches taken over from an earlier, interrupted call.
        images_per_second: Of this call.
        labels: Predictions by label, the most frequent first.
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
) -> Summary:
    """Predict all images of a folder, adapt on the way, and write one row an image.

    Args:
        adapted: What `acclimate.adapt` returned.
        stream: The images.
        file: Where to.
        classes: Names of the classes, in the order of the logits; numbers are written if None.
        save_every: Batches between two saved states; a crash loses at most that many.
        progress: Called with "predict", the images done and all images.
    """
    if save_every < 1:
        raise BadInput(f"expected save_every to be at least 1, found {save_every}.")
    rows = file.begin(_describe(adapted, stream, classes), adapted)
    labels = Counter(row[1] for row in rows)
    batches = {row[-1] for row in rows}
    n_resumed = len(batches)
    start = int(rows[-1][-1]) + 1 if rows else 0
    done = {row[0] for row in rows}
    before = stream.paths[: start * stream.batch_size]
    stream.mark_unreadable([path for path in before if _name(stream, path) not in done])
    like = next((p for p in adapted.parameters()), torch.empty(0))  # device and precision
    n_new, began = 0, time.perf_counter()
    try:
        for batch in stream.batches(start):
            output = adapted(batch.x.to(like))
            logits = get_logits(output, None if isinstance(output, Tensor) else adapted.logits_at)
            new = _rows(stream, batch, logits, classes)
            file.append(new)
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
    return Summary(
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
        raise BadInput(f"the name {odd!r} has a line break, which a table cannot hold. Rename it.")
    text = "\0".join(names).encode(**CODEC)
    return {
        "images": len(names),
        "listing_sha256": hashlib.sha256(text).hexdigest(),
        "batch_size": stream.batch_size,
        "size": list(stream.size),
        "normalization": stream.normalization and stream.normalization.to_dict(),
        "classes": None if classes is None else list(classes),
        "method": adapted.name,
        "config": adapted.config.to_dict(),
    }


def _name(stream: FolderStream, path: Path) -> str:
    return path.relative_to(stream.root).as_posix()


def _rows(
    stream: FolderStream, batch: FolderBatch, logits: Tensor, classes: Sequence[str] | None
) -> list[list[str]]:
    if logits.dim() != 2:
        raise UnsuitableModel(
            "expected predictions of whole images, of which a table has one a row, found a model "
            "that predicts every pixel. Call the adapted model on batches of images instead, and "
            "take the argmax over its classes."
        )
    if classes is not None and len(classes) != logits.shape[1]:
        raise BadInput(
            f"expected {logits.shape[1]} class names, one a logit of the model; found "
            f"{len(classes)}. Give the names of all classes in the order of training."
        )
    probabilities, numbers = log_probs(logits).exp().max(dim=1)
    columns = (batch.paths, numbers.tolist(), probabilities.tolist(), entropy(logits).tolist())
    return [
        [
            _name(stream, path),
            str(number) if classes is None else classes[number],
            f"{probability:.6f}",
            f"{uncertainty:.6f}",
            str(batch.number),
        ]
        for path, number, probability, uncertainty in zip(*columns, strict=True)
    ]
