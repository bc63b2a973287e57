"""Corrupted copies of sets with masks, in the layout of the set itself, resumable.

`out/fog/5` is then such a set: `load_masks("camvid", "test", path="out/fog/5")`. Images are spoiled
as `load_masks(..., corruption="fog")` does it on the fly; masks are copied as they are.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from PIL import Image

from acclimate._version import __version__
from acclimate.data.arrays import CARD, read_card, write_card
from acclimate.data.corruptor import check_request
from acclimate.data.generate import open_pool
from acclimate.data.masks.images import MaskedImages
from acclimate.data.masks.loading import find_set, load_masks
from acclimate.data.masks.pixels import find_size
from acclimate.data.masks.shift import Shift, corrupt_image, describe
from acclimate.data.masks.specs import IGNORE
from acclimate.data.masks.tree import CLASSES, Pair
from acclimate.data.places import Notify, Progress, data_root, hold_lock, make_folder
from acclimate.errors import BadInput
from acclimate.storage import write_atomically
from acclimate.streams.images import Size, read_image

_Job = tuple[Pair, Path, Shift, Size]


def corrupt_masks(
    name: str,
    out: str | Path,
    names: Sequence[str],
    severities: Sequence[int] = (5,),
    split: str | None = None,
    *,
    root: str | Path | None = None,
    path: str | Path | None = None,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    notify: Notify | None = None,
    ignore_label: int = IGNORE,
) -> int:
    """Write corrupted copies of a split to `out/<corruption>/<severity>`; return how many are new.

    What is there already is kept, so that a cut run goes on where it was. Every file is looked at
    first. Each image keeps its size.

    Args:
        name: A set with masks, or a folder; see `load_masks`.
        out: Not inside the set.
        names: Corruptions.
        severities: From 1 to 5.
        split: Such as `val`; None if there is only one.
        root: Of all data.
        path: Where the set is, if not under the root.
        seed: Of the random draws, which depend on the name of the image besides.
        workers: Processes; 1 computes in this one.
        progress: Is told of images.
        notify: Is told when another process works on the same folder.
        ignore_label: See `load_masks`.

    Raises:
        BadInput: A name, severity or split is unknown; files of the set cannot be used; `out` holds
            copies of something else.
    """
    check_request(names, severities)
    if name == "builtin-scenes":
        raise BadInput(
            "wrong_loader",
            f'The data set "{name}" is generated when it is loaded. Corrupt it there: '
            f'load_masks("{name}", corruption=...).',
            name=name,
        )
    data = load_masks(name, split, root, path, size=1, ignore_label=ignore_label)
    out, place = Path(out), data_root(root)
    if not isinstance(data, MaskedImages):
        raise BadInput("wrong_loader", f'The data set "{name}" has no files to copy.', name=name)
    base = find_set(name, place, path)[1]
    if out.resolve().is_relative_to(base.resolve()):
        raise BadInput(
            "inside_input", f"{out} is inside {base}. Pass a folder elsewhere with --out.", path=out
        )
    sizes = {pair: _size_of(pair) for pair in data.pairs}
    data.size = max(size[0] for size in sizes.values()), max(size[1] for size in sizes.values())
    data.verify(progress)  # as large as the largest, so that no pixel is passed over
    make_folder(out)
    n_written = 0
    with hold_lock(out, "generate", notify), open_pool(workers) as pool:
        for corruption in names:
            for severity in severities:
                folder = out / corruption / str(severity)
                shift = Shift(corruption, severity, seed, place)
                _claim(folder, data, shift)
                if (base / CLASSES).is_file():
                    _copy(base / CLASSES, folder / CLASSES)
                for pair in data.pairs:
                    _copy(pair.mask, folder / pair.mask.relative_to(base))
                targets = {pair: _target(folder, base, pair) for pair in data.pairs}
                jobs = [
                    (pair, target, shift, sizes[pair])
                    for pair, target in targets.items()
                    if not target.is_file()
                ]
                for number, _ in enumerate(_run(jobs, pool), start=1):
                    if progress is not None:
                        progress(f"{corruption}, severity {severity}", number, len(jobs))
                n_written += len(jobs)
    return n_written


def _run(jobs: Sequence[_Job], pool: ProcessPoolExecutor | None) -> Iterator[None]:
    """Yield when a copy is written."""
    if pool is None:
        yield from map(_write, jobs)
        return
    for task in as_completed([pool.submit(_write, job) for job in jobs]):
        yield task.result()


def _size_of(pair: Pair) -> Size:
    size = find_size(pair)
    if isinstance(size, str):
        raise BadInput("faulty_data", size, faults=(size,))
    return size


def _target(folder: Path, base: Path, pair: Pair) -> Path:
    return folder / pair.image.relative_to(base).with_suffix(".png")


def _write(job: _Job) -> None:
    pair, target, shift, size = job
    spoiled = corrupt_image(read_image(pair.image, size, squash=True), pair.name, shift)
    target.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    Image.fromarray(spoiled).save(buffer, "PNG")
    write_atomically(target, buffer.getvalue())


def _copy(source: Path, target: Path) -> None:
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _claim(folder: Path, data: MaskedImages, shift: Shift) -> None:
    """Record what the copies are of, or refuse if the folder holds copies of something else."""
    claim = {
        "seed": shift.seed,
        "source": "generated",
        "of": data.description["listing_sha256"],
        "split": data.description["split"],
        "made_from": describe(shift)["made_from"],
    }
    if folder.is_dir() and any(folder.iterdir()):
        held = read_card(folder / CARD, f"Remove {folder}.", *claim)
        differing = [key for key, value in claim.items() if held[key] != value]
        if differing:
            raise BadInput(
                "made_differently",
                f"{folder} contains copies made with a different {', '.join(differing)}. Pass "
                "another folder with --out, or remove that folder.",
                path=folder,
                differences={key: (held[key], claim[key]) for key in differing},
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_card(folder, {**claim, "version": __version__})
