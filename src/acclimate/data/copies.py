"""Corrupted copies of image files, in the layout of ImageNet-C, resumable.

What is there already is kept, so that an interrupted run continues. A manifest in the folder says
what the copies were made from; other copies are refused there.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from acclimate._version import __version__
from acclimate.corruptions import provenance
from acclimate.corruptions.frost import (
    PROCEDURAL,
    frost_from,
    get_frost_root,
    set_frost_root,
    warn_if_procedural,
)
from acclimate.data.arrays import read_card, write_json
from acclimate.data.corruptor import Shift, check_request, corrupt_block, write_png
from acclimate.data.places import Notify, Progress, hold_lock, make_folder
from acclimate.errors import AcclimateWarning, BadInput
from acclimate.streams.images import (
    Size,
    all_unreadable,
    check_resize,
    list_images,
    read_size,
    try_read,
)

#: The manifest of generated copies.
MANIFEST = "generated.json"
#: In it: what `acclimate.corruptions.provenance` returned when they were made.
MADE_FROM = "made_from"

_OF = "of"  # in the manifest: the names and sizes of the files that were copied

#: A source image, the copy, and more arguments of the function that writes it.
Job = tuple[Any, ...]


@dataclass
class FolderCounts:
    """How many corrupted images were written or there already; the reason for each left out."""

    n_written: int = 0
    n_present: int = 0
    unreadable: dict[Path, str] = field(default_factory=dict)


def claim(
    path: Path,
    about: Mapping[str, Any],
    ignored: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Write a manifest into an empty folder, or compare it with the one that is there.

    Args:
        path: The manifest; its folder is made.
        about: What decides the content of the folder.
        ignored: Keys that may differ.
        defaults: What manifests of older versions, which lack a key, are taken to say.
        **more: What the manifest also says.

    Returns:
        The manifest.

    Raises:
        BadInput: The folder was made from something else, or not by acclimate.
    """
    folder = path.parent
    if not path.is_file():
        make_folder(folder)
        foreign = sorted(entry.name for entry in folder.iterdir() if entry.name[0] != ".")
        if foreign:
            raise BadInput(
                "other_content",
                f"{folder} contains {foreign[0]} and was not created by acclimate data corrupt. "
                "Pass another folder with --out to keep the two apart.",
                path=folder,
            )
        return write_json(path, {**about, "version": __version__, **more})
    needed = about.keys() - (defaults or {}).keys()
    held = {**(defaults or {}), **read_card(path, f"Remove {folder}.", *needed)}
    differing = [key for key in about if key not in ignored and held[key] != about[key]]
    if differing:
        sources = f" from {held['source']}, not {about['source']}," if "source" in ignored else ""
        raise BadInput(
            "made_differently",
            f"{folder} contains copies made{sources} with a different {', '.join(differing)}. Pass "
            "another folder with --out, or remove that folder.",
            path=folder,
            differences={key: (held[key], about[key]) for key in differing},
        )
    return held


def check_outside(out: Path, source: Path) -> None:
    """Refuse copies inside the folder that is copied."""
    if out.resolve().is_relative_to(source.resolve()):
        raise BadInput(
            "inside_input",
            f"{out} is inside {source}, so the copies would be copied again. Pass another folder "
            "with --out.",
            path=out,
        )


def copy_files(
    write: Callable[..., str | None],
    prepare: Callable[[Path, Shift], Sequence[Job]],
    root: Path | None,
    out: Path,
    names: Sequence[str],
    severities: Sequence[int],
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> FolderCounts:
    """Write the copies that are missing in `out/<corruption>/<severity>`.

    Args:
        write: Writes one copy, or returns the reason why the image cannot be read.
        prepare: Returns the jobs for a folder, in the order of the images.
        root: Of all data, where photographs of frost are looked for.
        out: The folder.
        names: Corruptions.
        severities: From 1 to 5.
        seed: Of the random draws.
        workers: Number of processes; 1 computes in this one.
        progress: Called with the number of images.
        notify: Called when another process works on the same folder.
    """
    counts = FolderCounts()
    make_folder(out)
    photographs = frost_from(root or get_frost_root())
    with photographs, hold_lock(out, "generate", notify), open_pool(workers) as pool:
        for name in dict.fromkeys(names):
            for severity in sorted(set(severities)):
                shift = Shift(name, severity, seed, root)
                jobs = prepare(out / name / str(severity), shift)
                left = [job for job in jobs if not job[1].exists()]
                if left and name == "frost":
                    warn_if_procedural()
                n_done = len(jobs) - len(left)
                counts.n_present += n_done
                for path, reason in _run(write, left, pool):
                    n_done += 1
                    if reason is None:
                        counts.n_written += 1
                    else:
                        counts.unreadable[path] = reason
                    if progress is not None:
                        progress(f"{name}, severity {severity}", n_done, len(jobs))
    if counts.unreadable and not counts.n_written + counts.n_present:
        path, reason = next(iter(counts.unreadable.items()))
        raise all_unreadable(len(counts.unreadable), path, reason)
    return counts


def corrupt_folder(
    source: Path,
    out: Path,
    names: Sequence[str],
    severities: Sequence[int],
    seed: int = 0,
    size: int | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    notify: Notify | None = None,
    resize: int | None = None,
    root: Path | None = None,
) -> FolderCounts:
    """Write corrupted copies of all images of a folder to `out/<corruption>/<severity>/…`, as PNG.

    Args:
        source: Any nesting, which the copies keep.
        out: Not inside `source`.
        names: Corruptions.
        severities: From 1 to 5.
        seed: Of the random draws; those of an image depend on its place in the sorted listing.
        size: Side of the square to cut out of the centre; None keeps images as they are.
        workers: Number of processes; 1 computes in this one.
        progress: Called with the number of images.
        notify: Called when another process works on the same folder.
        resize: What the shorter side is resized to before; None for `size` itself.
        root: Of all data, where photographs of frost are looked for.

    Raises:
        BadInput: A name or severity is unknown; `out` has copies of something else; none of the
            images can be read.
    """
    check_request(names, severities)
    check_resize(resize, size)
    paths = list_images(source)
    check_outside(out, source)
    inner = [path.relative_to(source) for path in paths]
    targets = [path.with_suffix(".png") for path in inner]
    twice = len(targets) - len(set(targets))
    if twice:
        raise BadInput(
            "duplicate",
            f"{twice} images in {source} differ only in their file extensions. Their copies, all "
            ".png, would overwrite each other. Rename them.",
            name=Counter(targets).most_common(1)[0][0].as_posix(),
        )
    sizes = [path.stat().st_size for path in paths]
    about = {
        "source": str(source.resolve()),
        "listing_sha256": _digest(path.as_posix() for path in targets),
        _OF: _digest(f"{path.as_posix()}\t{n}" for path, n in zip(inner, sizes, strict=True)),
        "seed": seed,
        "size": size,
        "resize": resize,
    }

    def prepare(folder: Path, shift: Shift) -> list[Job]:
        # Manifests of older versions do not have all keys.
        older = {"resize": None, _OF: about[_OF]}
        claim(out / MANIFEST, about, ("source",), older, **{MADE_FROM: {}})
        _record_origin(out, shift.corruption)
        return [
            (path, folder / target, shift, place, size, resize)
            for place, (path, target) in enumerate(zip(paths, targets, strict=True))
        ]

    return copy_files(
        corrupt_file, prepare, root, out, names, severities, seed, workers, progress, notify
    )


def corrupt_file(
    source: Path, target: Path, shift: Shift, start: int, size: int | None, resize: int | None
) -> str | None:
    """Write a corrupted copy of an image file as PNG; return the reason if it cannot be read.

    Args:
        source: Any image file.
        target: Ends in .png; its folder is made.
        shift: The corruption.
        start: Place of the image in its set.
        size: Side of the square to cut out of the centre; None keeps the image as it is.
        resize: What its shorter side is resized to before; None for `size` itself.
    """
    shape: Size | None = read_size(source) if size is None else (size, size)
    if shape is None:
        return "its header is damaged"
    pixels = try_read(source, shape, None if resize is None else (resize, resize))
    if isinstance(pixels, str):
        return pixels
    spoiled = corrupt_block(pixels[None], shift.corruption, shift.severity, shift.seed, start)
    write_png(target, spoiled[0])
    return None


def _run(
    write: Callable[..., str | None], jobs: Sequence[Job], pool: ProcessPoolExecutor | None
) -> Iterator[tuple[Path, str | None]]:
    """Yield the image of each job, with the reason if it cannot be read, as they are finished."""
    if pool is None:
        for job in jobs:
            yield job[0], write(*job)
        return
    tasks = {pool.submit(write, *job): job[0] for job in jobs}
    for task in as_completed(tasks):
        yield tasks[task], task.result()


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _record_origin(out: Path, name: str) -> None:
    """Record what a corruption is made from, or refuse to mix two kinds of frost."""
    manifest = read_card(out / MANIFEST, f"Remove {out}.")
    origins, here = manifest.setdefault(MADE_FROM, {}), provenance(name)
    if not (out / name).is_dir():
        origins[name] = here
        write_json(out / MANIFEST, manifest)
        return
    there = origins.get(name, here)
    if (there == PROCEDURAL) != (here == PROCEDURAL):
        raise BadInput(
            "made_differently",
            f"{out / name} was generated with {there}, but the current setup would use {here}. "
            "Remove that folder, or pass another one with --out, to keep the two apart.",
            path=out / name,
            differences={MADE_FROM: (there, here)},
        )


@contextmanager
def open_pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Give a pool of processes, or None for one worker: this process does the work itself.

    The processes look for photographs of frost where this one does, and leave warnings to it.
    """
    if workers < 1:
        raise BadInput(
            "out_of_range",
            f"Expected at least 1 worker, found {workers}.",
            option="workers",
            found=workers,
        )
    if workers == 1:
        yield None
        return
    # Not forked: the caller may have threads, whose locks would be copied in any state.
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_start_worker, initargs=(get_frost_root(),)
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(root: Path | None) -> None:
    set_frost_root(root)
    warnings.simplefilter("ignore", AcclimateWarning)
