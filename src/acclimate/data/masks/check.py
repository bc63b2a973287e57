"""Looking at every file of a set with masks: facts, and what is wrong."""

from __future__ import annotations

from pathlib import Path

from acclimate.data.masks.images import MaskedImages
from acclimate.data.masks.loading import find_set
from acclimate.data.masks.pixels import find_size
from acclimate.data.masks.specs import IGNORE, MASK_SETS, make_palette
from acclimate.data.masks.tree import compare_counts, list_tree
from acclimate.data.places import Progress
from acclimate.errors import BadInput
from acclimate.streams.images import show_size


def check_masks(
    name: str,
    root: Path,
    path: str | Path | None = None,
    progress: Progress | None = None,
    ignore_label: int = IGNORE,
) -> tuple[dict[str, str], list[str]]:
    """Return facts about a set with masks on disk, and all that is wrong with it.

    Args:
        name: A key of `MASK_SETS`.
        root: Of all data.
        path: Where the set is, if not under the root.
        progress: Is told of masks.
        ignore_label: See `load_masks`.

    Raises:
        BadInput: Nothing of it is on disk.
    """
    if name == "builtin-scenes":
        return {"source": MASK_SETS[name].placing}, []
    if name == "mask-folder" and path is None:
        raise BadInput(
            "missing_option",
            'The data set "mask-folder" is a local folder. Pass its path with --dir.',
            option="path",
        )
    spec, base = find_set(name, root, path)
    tree = list_tree(base, spec, ignore_label=ignore_label)
    facts = {"folder": str(base), "classes": f"{len(tree.classes)}: {', '.join(tree.classes)}"}
    problems = [*compare_counts(tree, spec).values()]
    for split, pairs in tree.splits.items():
        problems += tree.faults[split]
        sizes = {pair: find_size(pair) for pair in pairs}
        problems += [size for size in sizes.values() if isinstance(size, str)]
        shapes = {size for size in sizes.values() if not isinstance(size, str)}
        facts[split or "pairs"] = f"{len(pairs):,} pairs, " + ", ".join(
            map(show_size, sorted(shapes)[:3])
        )
        sound = [pair for pair, size in sizes.items() if not isinstance(size, str)]
        for shape in sorted(shapes):
            own = [pair for pair in sound if sizes[pair] == shape]
            palette = spec.palette or make_palette(len(tree.classes))
            problems += MaskedImages(tree, split, own, palette).find_faults(progress)
    if not any(tree.splits.values()) and not problems:
        problems.append(f"no image with a mask was found in {base}. {spec.placing}")
    return facts, problems
