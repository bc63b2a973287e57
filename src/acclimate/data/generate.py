"""Corrupted sets made here, in the layout of CIFAR-10-C, resumable.

`fog.npy` holds five blocks, one a severity, each as long as the clean set. Only blocks that were
asked for are filled; `generated.json` lists those that are, each recorded when it is complete. A
file is named `fog.npy.part` until the severities of its first run are there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from acclimate._version import __version__
from acclimate.corruptions import apply, provenance
from acclimate.corruptions.frost import PROCEDURAL, warn_if_procedural
from acclimate.corruptions.parallel import run_jobs
from acclimate.data.arrays import array_sha256, open_array, read_card, write_array, write_json
from acclimate.data.corruptor import (
    MADE_FROM,
    MANIFEST,
    SEVERITIES,
    CopyRequest,
    find_recipe,
)
from acclimate.data.places import hold_lock, make_folder
from acclimate.data.stores import ImageStore
from acclimate.errors import BadInput, CorruptFile
from acclimate.storage import guard_writing

_BLOCK = 500  # images a task: enough to outweigh sending them to another process


def generate(clean: ImageStore, folder: Path, asked: CopyRequest) -> None:
    """Make corrupted copies of a set, as far as they are not there yet."""
    make_folder(folder)
    with asked.frost(), hold_lock(folder, "generate", asked.feedback.note):
        manifest = _open_manifest(clean, folder, asked.seed)
        if not (folder / "labels.npy").exists():
            # One byte each, as published, while the numbers fit.
            kind = np.uint8 if len(clean.classes) <= 256 else np.int64
            part = folder / "labels.npy.part"
            write_array(part, np.tile(np.asarray(clean.labels, kind), len(SEVERITIES)))
            part.replace(folder / "labels.npy")
        with asked.open_pool() as pool:
            for name, severities in asked.blocks():
                stale = find_stale(folder, name, severities)
                for severity in stale:
                    del manifest["blocks"][name][str(severity)]
                if stale:
                    pictures = ", or from other pictures" if name == "frost" else ""
                    what = f"version of the corruption{pictures}"
                    asked.feedback.note(f"{name} was made by another {what}: made anew.")
                _make(clean, folder, name, severities, manifest, pool, asked)


def _open_manifest(clean: ImageStore, folder: Path, seed: int) -> dict[str, Any]:
    source = {key: clean.description.get(key) for key in ("name", "split", "source", "sha256")}
    source["sha256"] = source["sha256"] or array_sha256(clean[:])
    manifest = read_manifest(folder)
    if manifest is None:
        if foreign := sorted(path.name for path in folder.glob("*.npy")):
            text = (
                f"{folder} contains {foreign[0]} and possibly other arrays that were not generated "
                "by acclimate. Pass another folder with --out to keep the two apart."
            )
            raise BadInput("other_content", text, path=folder)
        shape = list(clean[:1].shape[1:])
        return {"source": source, "seed": seed, "n": len(clean), "shape": shape, "blocks": {}}
    for key, what, found, wanted in (
        ("seed", "seed", manifest["seed"], seed),
        ("sha256", "pixels of SHA-256", manifest["source"]["sha256"], source["sha256"]),
    ):
        if found != wanted:
            text = (
                f"{folder} was generated from {what} {found}; {wanted} was requested. Pass another "
                "folder with --out, or remove that one."
            )
            differences = {key: (found, wanted)}
            raise BadInput("made_differently", text, path=folder, differences=differences)
    return manifest


def _make(
    clean: ImageStore,
    folder: Path,
    name: str,
    severities: Sequence[int],
    manifest: dict[str, Any],
    pool: Executor | None,
    asked: CopyRequest,
) -> None:
    final, part = folder / f"{name}.npy", folder / f"{name}.npy.part"
    shape = (len(SEVERITIES) * len(clean), *clean[:1].shape[1:])
    path = final if final.exists() else part
    if not _fits(path, shape):
        manifest["blocks"].pop(name, None)
        write_json(folder / MANIFEST, manifest)
        path.unlink(missing_ok=True)
        path = part
        # The file is as long as its header says, but takes no room where nothing was written.
        with guard_writing(path):
            np.lib.format.open_memmap(path, "w+", np.uint8, shape).flush()
    made = manifest["blocks"].setdefault(name, {})
    for severity in severities:
        if str(severity) in made:
            continue
        warn_if_procedural(name)
        # First, so that a block that is being made is not listed.
        write_json(folder / MANIFEST, manifest)
        first = (severity - 1) * len(clean)
        with guard_writing(path):
            _fill(path, first, clean, name, severity, pool, asked)
        block = np.load(path, mmap_mode="r", allow_pickle=False)[first : first + len(clean)]
        made[str(severity)] = {
            "version": __version__,
            "recipe": find_recipe(name, severity, shape[1:]),
            "sha256": array_sha256(block),
            MADE_FROM: provenance(name),
        }
        write_json(folder / MANIFEST, manifest)
    if path == part:
        part.replace(final)


def _fits(path: Path, shape: tuple[int, ...]) -> bool:
    try:
        array = open_array(path, "")
    except CorruptFile:
        return False
    return bool(array.shape == shape and array.dtype == np.uint8)


def _fill(
    path: Path,
    first: int,
    images: ImageStore,
    name: str,
    severity: int,
    pool: Executor | None,
    asked: CopyRequest,
) -> None:
    """Write corrupted images to an array on disk, from the position `first` on."""
    header = np.load(path, mmap_mode="r", allow_pickle=False).offset
    jobs = (
        (
            start,
            (np.asarray(images[start : start + _BLOCK]), name, severity, asked.seed, start),
        )
        for start in range(0, len(images), _BLOCK)
    )
    done = 0
    # Not written through memory: a full disk would end the process.
    with path.open("r+b") as file:
        for start, spoiled in run_jobs(apply, jobs, pool):
            file.seek(header + (first + start) * spoiled[0].nbytes)
            file.write(np.ascontiguousarray(spoiled).tobytes())
            done += len(spoiled)
            asked.feedback.progress(f"{name}, severity {severity}", done, len(images))
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return what was generated into a folder, or None if nothing was."""
    if not (folder / MANIFEST).is_file():
        return None
    remedy = f"Remove {folder} and generate the data set again with acclimate data corrupt."
    return read_card(
        folder / MANIFEST, remedy, source=dict, seed=int, n=int, shape=list, blocks=dict
    )


def find_stale(folder: Path, name: str, severities: Iterable[int]) -> list[int]:
    """Return the severities whose blocks were made by another version of the corruption.

    Frost that may be of photographs is not called stale where there are none: it could only be
    replaced by something worse.
    """
    manifest = read_manifest(folder) or {"blocks": {}}
    blocks = manifest["blocks"].get(name, {})
    here = provenance(name)
    return [
        severity
        for severity in sorted(set(severities))
        if str(severity) in blocks
        and (here != PROCEDURAL or blocks[str(severity)].get(MADE_FROM) == PROCEDURAL)
        and not _is_same(manifest, name, severity)
    ]


def find_origin(manifest: Mapping[str, Any], name: str, severity: int) -> str:
    """Return what a block was made from, as `acclimate.corruptions.provenance` says it.

    Blocks of older versions do not say it. One that equals what is made here was made from the
    same.
    """
    recorded = manifest["blocks"][name][str(severity)].get(MADE_FROM)
    if recorded is not None:
        return str(recorded)
    return provenance(name) if _is_same(manifest, name, severity) else f"{name}: not recorded"


def has_procedural_frost(manifest: Mapping[str, Any]) -> bool:
    """Return whether any block is recorded to have been made without photographs of frost."""
    blocks = manifest["blocks"].get("frost", {}).values()
    return any(block.get(MADE_FROM) == PROCEDURAL for block in blocks)


def _is_same(manifest: Mapping[str, Any], name: str, severity: int) -> bool:
    recipe = manifest["blocks"][name][str(severity)]["recipe"]
    return bool(recipe == find_recipe(name, severity, tuple(manifest["shape"])))
