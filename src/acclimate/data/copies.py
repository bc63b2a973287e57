"""Corrupted copies of image files, in the layout of ImageNet-C, resumable.

What is there already is kept, so that an interrupted run continues. A manifest in the folder says
what the copies were made from; other copies are refused there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate._version import __version__
from acclimate.corruptions import apply, provenance
from acclimate.corruptions.frost import PROCEDURAL, warn_if_procedural
from acclimate.corruptions.parallel import run_jobs
from acclimate.data.arrays import read_card, text_sha256, write_json
from acclimate.data.corruptor import MADE_FROM, MANIFEST, CopyRequest, Shift, write_png
from acclimate.data.places import hold_lock, make_folder
from acclimate.errors import BadInput
from acclimate.streams.images import (
    all_unreadable,
    check_resize,
    count_bytes,
    list_images,
    read_size,
    try_read,
)

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

    `about` decides the content of the folder; of it, `ignored` keys may differ. `defaults` are what
    manifests of older versions are taken to say, and `more` is what the manifest also says.
    """
    folder = path.parent
    if not path.is_file():
        make_folder(folder)
        foreign = sorted(entry.name for entry in folder.iterdir() if entry.name[0] != ".")
        if foreign:
            text = (
                f"{folder} contains {foreign[0]} and was not created by acclimate data corrupt. "
                "Pass another folder with --out to keep the two apart."
            )
            raise BadInput("other_content", text, path=folder)
        return write_json(path, {**about, "version": __version__, **more})
    needed = dict.fromkeys(about.keys() - (defaults or {}).keys(), object)
    held = {**(defaults or {}), **read_card(path, f"Remove {folder}.", **needed)}
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
        text = (
            f"{out} is inside {source}, so the copies would be copied again. Pass another folder "
            "with --out."
        )
        raise BadInput("inside_input", text, path=out)


def copy_files(
    write: Callable[..., str | None],
    prepare: Callable[[Path, Shift], Sequence[Job]],
    out: Path,
    asked: CopyRequest,
) -> FolderCounts:
    """Write the copies that are missing in `out/<corruption>/<severity>`.

    `prepare` returns the jobs for a folder, in the order of the images; `write` writes one copy, or
    returns the reason why the image cannot be read.
    """
    counts = FolderCounts()
    make_folder(out)
    with asked.frost(), hold_lock(out, "generate", asked.feedback.note), asked.open_pool() as pool:
        for name, severity in ((name, s) for name, own in asked.blocks() for s in own):
            jobs = prepare(
                out / name / str(severity), Shift(name, severity, asked.seed, asked.root)
            )
            left = [job for job in jobs if not job[1].exists()]
            if left:
                warn_if_procedural(name)
            n_done = len(jobs) - len(left)
            counts.n_present += n_done
            for path, reason in run_jobs(write, ((job[0], job) for job in left), pool):
                n_done += 1
                if reason is None:
                    counts.n_written += 1
                else:
                    counts.unreadable[path] = reason
                asked.feedback.progress(f"{name}, severity {severity}", n_done, len(jobs))
    if counts.unreadable and not counts.n_written + counts.n_present:
        path, reason = next(iter(counts.unreadable.items()))
        raise all_unreadable(len(counts.unreadable), path, reason)
    return counts


def corrupt_folder(
    source: Path,
    out: Path,
    asked: CopyRequest,
    size: int | None = None,
    resize: int | None = None,
) -> FolderCounts:
    """Write corrupted copies of all images of a folder to `out/<corruption>/<severity>/…`, as PNG.

    The copies keep any nesting. The draws of an image depend on its place in the sorted listing. A
    square of side `size` is cut out of the centre, after the shorter side was resized to `resize`;
    None keeps images as they are.
    """
    check_resize(resize, size)
    paths = list_images(source)
    check_outside(out, source)
    inner = [path.relative_to(source) for path in paths]
    targets = [path.with_suffix(".png") for path in inner]
    if twice := len(targets) - len(set(targets)):
        text = (
            f"{twice} images in {source} differ only in their file extensions. Their copies, all "
            ".png, would overwrite each other. Rename them."
        )
        raise BadInput("duplicate", text, name=Counter(targets).most_common(1)[0][0].as_posix())
    sizes = map(count_bytes, paths)
    about = {
        "source": str(source.resolve()),
        "listing_sha256": text_sha256(path.as_posix() for path in targets),
        _OF: text_sha256(f"{path.as_posix()}\t{n}" for path, n in zip(inner, sizes, strict=True)),
        "seed": asked.seed,
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

    return copy_files(corrupt_file, prepare, out, asked)


def corrupt_file(
    source: Path, target: Path, shift: Shift, start: int, size: int | None, resize: int | None
) -> str | None:
    """Write a corrupted copy of an image file as PNG; return the reason if it cannot be read."""
    shape = read_size(source) if size is None else (size, size)
    if shape is None:
        return "its header is damaged"
    pixels = try_read(source, shape, None if resize is None else (resize, resize))
    if isinstance(pixels, str):
        return pixels
    spoiled = apply(pixels[None], shift.corruption, shift.severity, shift.seed, start)
    write_png(target, spoiled[0])
    return None


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
