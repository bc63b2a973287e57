"""Corrupted copies of image folders, in the layout of ImageNet-C, resumable."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from acclimate._version import __version__
from acclimate.corruptions import provenance
from acclimate.corruptions.frost import PROCEDURAL, warn_if_procedural
from acclimate.data.arrays import read_card
from acclimate.data.corruptor import check_request, corrupt_file
from acclimate.data.generate import open_pool
from acclimate.data.ledger import LEDGER, MADE_FROM, write_ledger
from acclimate.data.places import Notify, Progress, hold_lock, make_folder
from acclimate.errors import BadInput
from acclimate.streams.images import all_unreadable, check_resize, list_images

_OF = "of"  # in the ledger: the names and sizes of the files that were copied
_Job = tuple[Path, Path, str, int, int, int, int | None, int | None]


@dataclass
class FolderCounts:
    """How many corrupted images were written or there already; the reason for each left out."""

    n_written: int = 0
    n_present: int = 0
    unreadable: dict[Path, str] = field(default_factory=dict)


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
) -> FolderCounts:
    """Write corrupted copies of all images of a folder to `out/<corruption>/<severity>/…`, as PNG.

    An image that is there already is kept, so that a cut run goes on where it was.

    Args:
        source: Any nesting, which the copies keep.
        out: Not inside `source`.
        names: Corruptions.
        severities: From 1 to 5.
        seed: Of the random draws; those of an image depend on its place in the sorted listing.
        size: Side of the square to cut out of the centre; None keeps images as they are.
        workers: Processes; 1 computes in this one.
        progress: Is told of images.
        notify: Is told when another process works on the same folder.
        resize: What the shorter side is brought to before; None for `size` itself.

    Raises:
        BadInput: A name or severity is unknown; `out` holds copies of something else; none of the
            images can be read.
    """
    check_request(names, severities)
    check_resize(resize, size)
    paths = list_images(source)
    if out.resolve().is_relative_to(source.resolve()):
        raise BadInput(
            "inside_input",
            f"{out} is inside {source}, so the copies would be copied again. Pass another folder "
            "with --out.",
            path=out,
        )
    targets = [path.relative_to(source).with_suffix(".png") for path in paths]
    twice = len(targets) - len(set(targets))
    if twice:
        raise BadInput(
            "duplicate",
            f"{twice} images in {source} differ only in their file extensions. Their copies, all "
            ".png, would overwrite each other. Rename them.",
            name=Counter(targets).most_common(1)[0][0].as_posix(),
        )
    counts = FolderCounts()
    make_folder(out)
    with hold_lock(out, "generate", notify), open_pool(workers) as pool:
        _claim(out, source, paths, seed, size, resize)
        for name in dict.fromkeys(names):
            _record_origin(out, name)
            for severity in sorted(set(severities)):
                folder = out / name / str(severity)
                jobs: list[_Job] = [
                    (path, folder / target, name, severity, seed, place, size, resize)
                    for place, (path, target) in enumerate(zip(paths, targets, strict=True))
                ]
                left = [job for job in jobs if not job[1].exists()]
                if left and name == "frost":
                    warn_if_procedural()
                counts.n_present += len(jobs) - len(left)
                for n_done, (path, reason) in enumerate(
                    _run(left, pool), len(jobs) - len(left) + 1
                ):
                    if reason is None:
                        counts.n_written += 1
                    else:
                        counts.unreadable[path] = reason
                    if progress is not None:
                        progress(f"{name}, severity {severity}", n_done, len(jobs))
    if not counts.n_written + counts.n_present:
        raise all_unreadable(len(paths), paths[0], counts.unreadable[paths[0]])
    return counts


def _run(
    jobs: Sequence[_Job], pool: ProcessPoolExecutor | None
) -> Iterator[tuple[Path, str | None]]:
    """Yield the image of each job, with the reason if it cannot be read, as they are finished."""
    if pool is None:
        for job in jobs:
            yield job[0], corrupt_file(*job)
        return
    tasks = {pool.submit(corrupt_file, *job): job[0] for job in jobs}
    for task in as_completed(tasks):
        yield tasks[task], task.result()


def _claim(
    out: Path,
    source: Path,
    paths: Sequence[Path],
    seed: int,
    size: int | None,
    resize: int | None,
) -> None:
    """Record what the copies are of, or refuse if the folder holds copies of something else."""
    names = [path.relative_to(source) for path in paths]
    sizes = [path.stat().st_size for path in paths]
    claim = {
        "source": str(source.resolve()),
        "listing_sha256": _digest(name.with_suffix(".png").as_posix() for name in names),
        _OF: _digest(f"{name.as_posix()}\t{n}" for name, n in zip(names, sizes, strict=True)),
        "seed": seed,
        "size": size,
        "resize": resize,
    }
    path = out / LEDGER
    if path.is_file():
        # Older ledgers say neither what images were resized to, nor how large the files were.
        needed = claim.keys() - {"resize", _OF}
        held = {"resize": None, _OF: claim[_OF], **read_card(path, f"Remove {out}.", *needed)}
        differing = [key for key, value in claim.items() if key != "source" and held[key] != value]
        differences = {key: (held[key], claim[key]) for key in differing}
        if {_OF, "listing_sha256"} & set(differing):
            raise BadInput(
                "made_differently",
                f"{out} contains copies of images other than those in {source}: those of "
                f"{held['source']}, with different file names or sizes. Pass another folder with "
                "--out, or remove that folder.",
                path=out,
                differences=differences,
            )
        if differing:
            raise BadInput(
                "made_differently",
                f"{out} contains copies made with a different {', '.join(differing)}. Pass "
                "another folder with --out, or remove that folder.",
                path=out,
                differences=differences,
            )
        return
    foreign = sorted(entry.name for entry in out.iterdir() if not entry.name.startswith("."))
    if foreign:
        raise BadInput(
            "other_content",
            f"{out} contains {foreign[0]} and was not created by acclimate data corrupt. Pass "
            "another folder with --out to keep the two apart.",
            path=out,
        )
    write_ledger(out, {**claim, "version": __version__, MADE_FROM: {}})


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _record_origin(out: Path, name: str) -> None:
    """Record what a corruption is made from, or refuse to mix two kinds of frost."""
    ledger = read_card(out / LEDGER, f"Remove {out}.")
    origins, here = ledger.setdefault(MADE_FROM, {}), provenance(name)
    if not (out / name).is_dir():
        origins[name] = here
        write_ledger(out, ledger)
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
