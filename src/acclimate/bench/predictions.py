"""Predict a folder of images while adapting to it; the result survives a crash.

While it runs, `<out>.part` is a `RunFolder`: the rows so far, and the state of the method after
them. At the end its rows become the output, and it is removed.
"""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from acclimate.bench.execute import use_threads
from acclimate.bench.run_folder import (
    CHECKPOINT,
    N_THREADS,
    RECORDS,
    Checkpoint,
    Resume,
    RunFolder,
    check_start,
)
from acclimate.errors import BadInput, CorruptFile, check_at_least, check_output, import_extra
from acclimate.forward import get_logits
from acclimate.functional.entropy import entropy, log_probs
from acclimate.functional.pixels import resize_maps, resize_masks, to_rows
from acclimate.introspect import try_forward
from acclimate.methods.method import Method
from acclimate.metrics import BatchMetrics, MetricsWriter
from acclimate.progress import Progress
from acclimate.storage import write_atomically
from acclimate.streams.folder import FolderStream
from acclimate.streams.images import read_size

COLUMNS = ("path", "label", "probability", "entropy", "batch")

#: The number of classes that the 8 bits of a mask can represent.
MOST_CLASSES = 256

#: File names may be invalid text; this preserves their bytes.
_CODEC: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}
# All images are one unit of the run.
_UNIT = "images"
_AGAIN = "Start again with --force (force=True)."
_TO_FILE = "For a model that predicts whole images, pass a file that ends in .csv or .parquet."

Rows = list[list[str]]


class Predictions:
    """The output: a table (CSV or Parquet) with a row per image, or a folder with masks.

    There are masks if `out` is a folder or has no suffix. A mask is a PNG file with the image's
    name and size, and has 8 bits per pixel, the class number. It is written before the row of its
    image, which is then kept only until the end.

    Args:
        out: Path of the output.
        images: The folder of the images, which must not contain the masks; None if it is not known
            yet.
        resume: Resume an interrupted run; starts a new one if there is none.
        force: Overwrite an existing output, and discard an interrupted run.
        state: Where the state of the method is kept at the end, if at all.
    """

    def __init__(
        self,
        out: str | Path,
        *,
        images: Path | None = None,
        resume: bool = False,
        force: bool = False,
        state: str | Path | None = None,
    ) -> None:
        # The folder beside it needs a name, which "." does not have.
        self.out = Path(out).resolve() if Path(out).name in ("", "..") else Path(out)
        self.part = self.out.with_name(f"{self.out.name}.part")
        self.state = None if state is None else Path(state)
        self.holds_masks = self.out.is_dir() or not self.out.suffix
        self.folder = RunFolder(self.part, _AGAIN)
        if self.holds_masks and images is not None:
            self._check_apart(images)
        self._check_kind()
        check_output(self.out, is_folder=self.holds_masks)
        check_output(self.state)
        if self.state is not None and self.state.resolve() in (
            self.out.resolve(),
            self.part.resolve(),
        ):
            raise BadInput(
                "conflicting_options",
                f"Predictions and state cannot both be {self.state}. Pass another --state.",
                options=("out", "state"),
            )
        check_start(resume, force)
        self.resumes = resume and self.part.exists()
        if not (force or self.resumes):
            self._check_free()

    @contextmanager
    def open(self, identity: Mapping[str, Any]) -> Iterator[Resume]:
        """Give what is known of an interrupted run, and keep other processes from the output."""
        state = None if self.state is None else str(self.state.resolve())
        folder, identity = self.folder, {**identity, "state": state}
        if self.part.is_file() and not self.resumes:
            self.part.unlink()  # an earlier version wrote a file
        with folder.lock():
            if self.resumes:
                remedy = "Resume with the same ones, or start again with --force (force=True)."
                folder.check_same(identity, str(self.part), remedy)
                self._check_complete()
            else:
                folder.clear()
            resume = folder.begin({**identity, N_THREADS: torch.get_num_threads()})
            with use_threads(resume.n_threads):
                yield resume

    def write_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Write class numbers (height, width) by image name, each atomically, before their rows."""
        for name, mask in masks.items():
            path = self.out / mask_name(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            buffer = io.BytesIO()
            Image.fromarray(mask.cpu().numpy().astype(np.uint8)).save(buffer, "PNG")
            write_atomically(path, buffer.getvalue())

    def finish(self, has_names: bool) -> None:
        """Convert the rows to the table; masks are all written."""
        if self.holds_masks:
            return
        rows = [row for line in self.folder.read_lines(RECORDS)[0] for row in line["rows"]]
        content = io.BytesIO()
        if self.out.suffix == ".parquet":
            _write_parquet(rows, content, has_names)
        else:
            text = io.TextIOWrapper(content, newline="", **_CODEC)
            quoted = [[*map(_quote_formula, row[:2]), *row[2:]] for row in rows]
            csv.writer(text, lineterminator="\n").writerows([COLUMNS, *quoted])
            text.flush()
        write_atomically(self.out, content.getvalue())

    def check_images(self, root: Path, names: Iterable[str]) -> None:
        """Refuse images in a folder that the masks would overwrite, or that would share a mask."""
        self._check_apart(root)
        taken: dict[str, str] = {}
        for name in names:
            other = taken.setdefault(mask_name(name), name)
            if other != name:
                raise BadInput(
                    "duplicate",
                    "Expected image names that differ in more than the suffix, but the mask of "
                    f"both {other} and {name} is {mask_name(name)}. Rename one of them.",
                    name=mask_name(name),
                )

    def check_masks(self, names: Iterable[str]) -> None:
        """Refuse to resume if a mask of a finished image is missing."""
        for path in [self.out / mask_name(name) for name in names]:
            if not path.is_file():
                raise CorruptFile(
                    "file_missing",
                    f"{path} was written by the interrupted run, but is missing now. {_AGAIN}",
                    path=path,
                )

    def check_model(self, is_dense: bool, n_classes: int, names: Sequence[str] | None) -> None:
        """Refuse a model whose predictions do not fit the output, or the names of the classes."""
        if is_dense and not self.holds_masks:
            raise BadInput(
                "not_a_folder",
                f"Expected a folder for masks, because this model predicts every pixel, found "
                f"{self.out}. Pass a name without a suffix: --out DIR.",
                path=self.out,
            )
        if self.holds_masks and not is_dense:
            raise BadInput(
                "not_a_file",
                "Expected a table that ends in .csv or .parquet, because this model predicts whole "
                f"images, found the folder {self.out}. Pass another --out.",
                path=self.out,
            )
        if is_dense and n_classes > MOST_CLASSES:
            raise BadInput(
                "out_of_range",
                f"Expected at most {MOST_CLASSES} classes, which masks of 8 bits can represent, "
                f"found {n_classes}. Call the adapted model on batches instead, and take the "
                "argmax over classes.",
                option="classes",
                found=n_classes,
            )
        if names is not None and len(names) != n_classes:
            raise BadInput(
                "count_mismatch",
                f"Expected {n_classes} class names, one per logit of the model, found "
                f"{len(names)}. Pass the names of all classes in the order of training.",
                expected=n_classes,
                found=len(names),
            )

    def _check_apart(self, root: Path) -> None:
        """Refuse folders of images and masks that contain each other."""
        images, masks = root.resolve(), self.out.resolve()
        if images.is_relative_to(masks) or masks.is_relative_to(images):
            raise BadInput(
                "inside_input",
                f"Expected a folder for masks outside of the images in {root}, found {self.out}. "
                f"Pass another folder. {_TO_FILE}",
                path=self.out,
            )

    def _check_kind(self) -> None:
        if self.holds_masks and self.out.exists() and not self.out.is_dir():
            raise BadInput(
                "not_a_folder",
                f"Expected a folder for masks, but {self.out} is a file. Pass another path.",
                path=self.out,
            )
        if not self.holds_masks and self.out.suffix not in (".csv", ".parquet"):
            raise BadInput(
                "wrong_suffix",
                f"Expected an output that ends in .csv or .parquet, found {self.out}. For a model "
                "that predicts every pixel, pass a folder.",
                path=self.out,
            )
        if not self.holds_masks and self.out.suffix == ".parquet":
            import_extra("pyarrow", "Writing Parquet", "parquet")

    def _check_free(self) -> None:
        """Refuse to overwrite anything."""
        if self.part.exists():
            raise BadInput(
                "unfinished_run",
                f"{self.part} exists: an earlier run did not finish. Resume it with --resume "
                "(resume=True), or start again with --force (force=True).",
                path=self.part,
            )
        for path in (self.out, self.state):
            if path is None or not path.exists():
                continue
            if not (self.holds_masks and path == self.out and not any(path.iterdir())):
                raise BadInput(
                    "already_exists",
                    f"{path} already exists. Overwrite it with --force (force=True), or pass "
                    f"another path. {_TO_FILE if self.holds_masks else ''}".rstrip(),
                    path=path,
                )

    def _check_complete(self) -> None:
        """Refuse an interrupted run whose rows are not all there."""
        found = self.folder.read(CHECKPOINT)
        path = self.part / RECORDS
        n_bytes = path.stat().st_size if path.is_file() else 0
        if found is not None and found["bytes"] > n_bytes:
            raise CorruptFile(
                "altered_file",
                f"{path} has {n_bytes} bytes, but a checkpoint was written after "
                f"{found['bytes']}. It was altered. {_AGAIN}",
                path=path,
            )


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
    file: Predictions,
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
        file: The output; it holds masks if the model predicts every pixel.
        classes: Class names in the order of the logits; numbers are written if None.
        save_every: Number of batches between two saved states; a crash loses at most that many.
        progress: Called with "predict", the number of images done and the total.
        metrics: Writes the metrics of every batch.
    """
    check_at_least("save_every", save_every, 1)
    names = {path: path.relative_to(stream.root).as_posix() for path in stream.paths}
    if file.holds_masks:
        if stream.crops:
            raise BadInput(
                "missing_option",
                "Expected images that are not cropped, because every pixel gets a class, found a "
                "stream that crops. Pass FolderStream(..., squash=True).",
                option="squash",
            )
        file.check_images(stream.root, names.values())
    like = next(adapted.model.parameters(), torch.empty(0))  # device and precision
    identity = _describe(adapted, stream, list(names.values()), classes)
    has_rows = file.resumes
    try:
        with file.open(identity) as resume:
            rows = [row for line in resume.records for row in line["rows"]]
            labels = Counter(row[1] for row in rows)
            batches = {row[-1] for row in rows}
            n_resumed, done = len(batches), {row[0] for row in rows}
            start = 0 if resume.checkpoint is None else resume.checkpoint.n_batches
            if file.holds_masks:
                file.check_masks(done)
            if resume.state is not None:
                adapted.load(resume.state)
            before = stream.paths[: start * stream.batch_size]
            stream.mark_unreadable([path for path in before if names[path] not in done])
            if metrics is not None:
                metrics.begin(start)
            n_new, began = 0, time.perf_counter()
            for batch in stream.batches(start):
                x = batch.x.to(like)
                if n_new == 0:
                    file.check_model(*_find_output(adapted, x), classes)
                counts, called = copy.deepcopy(adapted.counts), time.perf_counter()
                output = adapted(x)
                latency_ms = 1000 * (time.perf_counter() - called)
                at = None if isinstance(output, Tensor) else adapted.logits_at
                logits = get_logits(output, at)
                own = [names[path] for path in batch.paths]
                if file.holds_masks:
                    maps = resize_maps(logits.detach(), x.shape[2:])
                    masks = map(_fit_to_image, maps.argmax(dim=1), batch.paths)
                    file.write_masks(dict(zip(own, masks, strict=True)))
                    new = _rows(own, batch.number, _sum_up(maps), classes)
                else:
                    p, numbers = log_probs(logits).exp().max(dim=1)
                    new = _rows(own, batch.number, (numbers, p, entropy(logits)), classes)
                file.folder.append(_UNIT, {"rows": new})
                has_rows = True
                if metrics is not None:
                    measured = BatchMetrics.of_call(
                        adapted, logits, index=batch.number, before=counts, latency_ms=latency_ms
                    )
                    metrics.write(measured)
                if adapted.counts.batches % save_every == 0:
                    file.folder.checkpoint(Checkpoint(_UNIT, batch.number + 1), adapted.save)
                labels.update(row[1] for row in new)
                batches.add(new[0][-1])
                n_new += len(new)
                if progress is not None:
                    last = min((batch.number + 1) * stream.batch_size, len(stream.paths))
                    progress("predict", last, len(stream.paths))
            seconds = time.perf_counter() - began
            if file.state is not None:
                adapted.save(file.state)
            file.finish(classes is not None)
            file.folder.remove()
    except BaseException:
        if not has_rows:  # a run that fails before its first row leaves nothing behind
            file.folder.remove()
        raise
    return PredictionSummary(
        n_images=labels.total(),
        n_batches=len(batches),
        n_resumed=n_resumed,
        images_per_second=n_new / seconds,
        labels=dict(labels.most_common()),
    )


def mask_name(name: str) -> str:
    """Return the relative name of the mask of an image.

    >>> mask_name("monday/noon.jpg")
    'monday/noon.png'
    """
    return Path(name).with_suffix(".png").as_posix()


def _fit_to_image(mask: Tensor, path: Path) -> Tensor:
    """Resize a mask (height, width) to the size of its image with nearest neighbours."""
    size = read_size(path)
    if size is None:
        raise BadInput(
            "unreadable",
            f"The image {path} was read before, but its size cannot be read now. Do not change the "
            "images while they are predicted. Continue with --resume (resume=True).",
            path=path,
        )
    return resize_masks(mask[None], size)[0]


def _describe(
    adapted: Method, stream: FolderStream, names: Sequence[str], classes: Sequence[str] | None
) -> dict[str, Any]:
    """Return what must be the same when the run is resumed."""
    if odd := next((name for name in names if "\r" in name), None):
        text = f"Expected file names without line breaks, found {odd!r}. Rename the file."
        raise BadInput("malformed", text, option="path", found=odd)
    listing = "\0".join(names).encode(**_CODEC)
    sizes = ",".join(str(_count_bytes(path)) for path in stream.paths)
    return {
        "images": len(names),
        "listing_sha256": hashlib.sha256(listing).hexdigest(),
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


def _quote_formula(text: str) -> str:
    """Return a name for a CSV file; one that a spreadsheet would execute gets an apostrophe."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _count_bytes(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None  # a broken link, reported when its pixels are read


def _find_output(adapted: Method, x: Tensor) -> tuple[bool, int]:
    """Return whether the model predicts every pixel, and its number of classes."""
    if adapted.artifact is not None:
        return adapted.artifact.info.is_dense, adapted.artifact.info.known_classes
    logits = get_logits(try_forward(adapted.model, x[:2]), adapted.logits_at)
    return logits.dim() == 4, logits.shape[1]


def _sum_up(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the most frequent class, mean probability and mean entropy of each image."""
    rows = to_rows(maps)
    probabilities, numbers = log_probs(rows).exp().max(dim=1)
    pixels = [own.view(len(maps), -1) for own in (numbers, probabilities, entropy(rows))]
    frequent = torch.stack([torch.bincount(own).argmax() for own in pixels[0]])
    return frequent, pixels[1].mean(dim=1), pixels[2].mean(dim=1)


def _rows(
    names: Sequence[str], batch: int, values: Sequence[Tensor], classes: Sequence[str] | None
) -> Rows:
    """Return the rows of a batch, from class numbers, probabilities and entropies."""
    numbers, *shares = (own.tolist() for own in values)
    labels = [str(number) if classes is None else classes[number] for number in numbers]
    columns = ([f"{value:.6f}" for value in own] for own in shares)
    return [[*row, str(batch)] for row in zip(names, labels, *columns, strict=True)]


def _write_parquet(rows: Rows, file: io.BytesIO, has_names: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # A file name may be invalid text, but a Parquet string must be valid.
    paths = [row[0].encode(**_CODEC).decode("utf-8", "replace") for row in rows]
    labels = [row[1] if has_names else int(row[1]) for row in rows]
    columns = [
        pa.array(paths, pa.string()),
        pa.array(labels, pa.string() if has_names else pa.int64()),
        pa.array([float(row[2]) for row in rows], pa.float32()),
        pa.array([float(row[3]) for row in rows], pa.float32()),
        pa.array([int(row[4]) for row in rows], pa.int64()),
    ]
    pq.write_table(pa.table(dict(zip(COLUMNS, columns, strict=True))), file)
