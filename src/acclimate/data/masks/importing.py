"""Putting sets with masks in place: out of an archive or a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from acclimate._version import __version__
from acclimate.data.archives import guard_reading, is_plain, iter_paths
from acclimate.data.arrays import write_card
from acclimate.data.masks.specs import MASK_SETS, MaskSpec
from acclimate.data.masks.tree import compare_counts, list_tree
from acclimate.data.places import Notify, Progress, hold_lock, staged_folder
from acclimate.errors import BadInput
from acclimate.streams.images import SUFFIXES

_STEP = 100  # files between two reports


def get_masks(
    name: str,
    root: Path,
    source: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Path:
    """Return the folder of a set under the root, put there if it was not.

    Args:
        name: A key of `MASK_SETS`.
        root: Of all data.
        source: A tar or zip archive or a folder, with files in the published layout at any depth.
        force: Put it there even if it is.
        progress: Is told of files.
        notify: Is told when another process works on the same set.

    Raises:
        BadInput: It cannot be fetched by a program; or what was given is not that set, whole.
        CorruptFile: The archive is damaged.
    """
    spec, target = MASK_SETS[name], root / name
    layout = _LAYOUTS.get(name)
    if layout is None or (source is None and not target.is_dir()):
        raise BadInput(
            "not_fetchable",
            f'The data set "{name}" cannot be downloaded automatically. '
            f"{spec.placing.replace('{root}', str(root))}",
            name=name,
        )
    with hold_lock(root, name, notify):
        if source is None or (target.is_dir() and not force):
            return target
        with staged_folder(target) as folder:
            for place, content in _files_in(source, spec, layout, root, progress):
                path = folder / place
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.exists():
                    raise BadInput(
                        "duplicate",
                        f"{place} occurs more than once: {source} contains several copies of "
                        f"{name}. Pass one of them.",
                        name=place.as_posix(),
                    )
                path.write_bytes(content)
            tree = list_tree(folder, spec)
            faults = [fault for found in tree.faults.values() for fault in found]
            faults += compare_counts(tree, spec).values()
            if faults:
                raise BadInput(
                    "faulty_data",
                    f'{source} is not the complete data set "{name}": '
                    + "\n  ".join(faults[:5])
                    + (
                        "\nNo file was installed. Pass the published files, or arrange your files "
                        f"by hand: {spec.placing.replace('{root}', str(root))}"
                    ),
                    faults=tuple(faults),
                )
            write_card(
                folder,
                {
                    "name": name,
                    "version": __version__,
                    "source": f"imported from {source.name}",
                    "licence": spec.licence,
                    "pairs": {split: len(pairs) for split, pairs in tree.splits.items()},
                },
            )
    return target


def _files_in(
    source: Path, spec: MaskSpec, depth: dict[str, int], root: Path, progress: Progress | None
) -> Iterator[tuple[Path, bytes]]:
    n = 0
    for path, file in iter_paths(source):
        place = _find_place(path, depth)
        if place is None:
            continue
        n += 1
        if progress is not None and n % _STEP == 0:
            progress("unpacking files", n, 2 * sum(spec.splits.values()))
        with guard_reading(source):
            content = file.read()
        yield place, content
    if n == 0:
        raise BadInput(
            "wrong_archive",
            f"{source} contains no file of {spec.name}: expected files such as "
            f"{next(iter(depth))}/…, at any depth. {spec.placing.replace('{root}', str(root))}",
            path=source,
        )


def _find_place(path: PurePosixPath, depth: dict[str, int]) -> Path | None:
    """Return where a file goes: from a known folder on, if it lies as deep in it as it should."""
    parts = path.parts
    if path.suffix.lower() not in SUFFIXES or "__MACOSX" in parts:
        return None
    for index, part in enumerate(parts):
        inside = parts[index + 1 :]
        if part in depth and len(inside) == depth[part] and all(map(is_plain, inside)):
            return Path(part, *inside)
    return None


# Top folders of the published layouts, and how many names deep their files lie.
_LAYOUTS: dict[str, dict[str, int]] = {
    "camvid": {
        f"{split}{kind}": 1 for split in MASK_SETS["camvid"].splits for kind in ("", "annot")
    },
    "cityscapes": {"leftImg8bit": 3, "gtFine": 3},
}
