"""Sets of images and masks by their names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from acclimate.builtin.scenes import SCENE_CLASSES, SCENE_PALETTE, SCENE_SPLITS, render_scenes
from acclimate.data.arrays import array_sha256
from acclimate.data.corruptor import check_request
from acclimate.data.masks.arrays import ArrayPixels
from acclimate.data.masks.images import LabelledPixels, MaskedImages, refuse
from acclimate.data.masks.shift import Shift
from acclimate.data.masks.specs import IGNORE, MASK_SETS, MaskSpec, make_palette
from acclimate.data.masks.tree import (
    CLASSES,
    MaskTree,
    compare_counts,
    find_base,
    guess_set,
    list_tree,
)
from acclimate.data.places import data_root
from acclimate.errors import AcclimateWarning, BadInput, did_you_mean
from acclimate.streams.images import Size, as_size

#: Images of each split that are made of the built-in scenes, which have no end.
N_SCENES = 100


def load_masks(
    name: str,
    split: str | None = None,
    root: str | Path | None = None,
    path: str | Path | None = None,
    size: int | Size | None = None,
    n: int | None = None,
    corruption: str | None = None,
    severity: int = 5,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    ignore_label: int = IGNORE,
) -> LabelledPixels:
    """Return a split of a set; its files are read when they are asked for.

    Args:
        name: `camvid`, `cityscapes` or `builtin-scenes`; or a folder that is laid out as one of
            them, or as `DIR/images` with `DIR/masks`, or with such folders in `DIR/<split>`, which
            may also be given as `mask-folder` and `path`.
        split: Such as `train` or `val`; None if there is only one.
        root: Of all data; see `acclimate.data.data_root`.
        path: Where the set is, if not under the root.
        size: Height and width all are brought to; None if they have one size.
        n: How many images, spread evenly over the sorted listing; None is all.
        corruption: What the images are spoiled with; masks stay as they are.
        severity: Of the corruption, 1 to 5.
        seed: Of its random draws, which depend on the name of the image besides.
        classes: Of a folder of one's own, if it has no `classes.txt`.
        ignore_label: The value in mask files of a folder of one's own that stands for no label;
            what is returned has 255 there.

    Raises:
        BadInput: There is no such set, split or corruption; an image has no mask, or a mask no
            image; sizes differ; headers cannot be read.
    """
    if corruption is not None:
        check_request([corruption], [severity])
    shift = None if corruption is None else Shift(corruption, severity, seed, data_root(root))
    if name == "builtin-scenes":
        if ignore_label != IGNORE:
            raise BadInput(
                "not_applicable",
                "The ignore label of builtin-scenes cannot be changed. Remove --ignore-label.",
                option="ignore_label",
            )
        return _make_scenes(split or "test", n or N_SCENES, size, shift)
    spec, base = find_set(name, data_root(root), path)
    tree = list_tree(base, spec, classes, ignore_label)
    chosen = _choose_split(tree, spec, split)
    refuse(tree.faults[chosen])
    differing = compare_counts(tree, spec)
    if chosen in differing:
        counts = (spec.splits[chosen], len(tree.splits[chosen]))
        warnings.warn(
            AcclimateWarning("set_differs", differing[chosen], differences={chosen: counts}),
            stacklevel=2,
        )
    pairs = tree.splits[chosen]
    kept = [pairs[index] for index in _spread(len(pairs), n, chosen or base.name)]
    images = MaskedImages(
        tree,
        chosen,
        kept,
        spec.palette or make_palette(len(tree.classes)),
        None if size is None else as_size(size),
        shift,
    )
    images.description = {"name": spec.name if spec.splits else base.name, **images.description}
    if ignore_label != IGNORE:
        images.description["ignore_label"] = ignore_label
    return images


def _make_scenes(split: str, n: int, size: int | Size | None, shift: Shift | None) -> ArrayPixels:
    if size is not None:
        raise BadInput(
            "not_applicable",
            "The images of builtin-scenes have a fixed size of 48×64. Remove --size.",
            option="size",
        )
    if split not in SCENE_SPLITS:
        raise BadInput(
            "unknown_name",
            f'The data set "builtin-scenes" has no split "{split}". '
            f"{did_you_mean(split, SCENE_SPLITS)}",
            kind="split",
            name=split,
            known=tuple(SCENE_SPLITS),
        )
    images, labels = render_scenes(n, SCENE_SPLITS[split])
    about = {"name": "builtin-scenes", "split": split, "source": "made by code"}
    about["sha256"] = array_sha256(images)
    return ArrayPixels(images, labels, SCENE_CLASSES, SCENE_PALETTE, about, shift)


def find_set(name: str, root: Path, path: str | Path | None = None) -> tuple[MaskSpec, Path]:
    """Return what is known of a set, and its folder.

    Raises:
        BadInput: There is neither such a set nor such a folder.
    """
    if name not in MASK_SETS and path is None and Path(name).is_dir():
        path, name = name, guess_set(Path(name)) or "mask-folder"
    if name not in MASK_SETS:
        raise BadInput(
            "unknown_name",
            f'"{name}" is neither a data set with masks nor a folder. '
            f"{did_you_mean(name, MASK_SETS)} A folder has images/, masks/ and classes.txt, or "
            "these subfolders for each split.",
            kind="data set",
            name=name,
            known=tuple(MASK_SETS),
        )
    return MASK_SETS[name], find_base(MASK_SETS[name], root, path)


def _choose_split(tree: MaskTree, spec: MaskSpec, split: str | None) -> str:
    if split is None and len(tree.splits) == 1:
        split = next(iter(tree.splits))
    if not tree.splits:
        raise BadInput(
            "wrong_layout",
            f"Expected a folder {tree.base / 'images'}, or a folder images in each split of "
            f"{tree.base}, found neither. Arrange images and masks as images/ and masks/, with "
            "the same file names.",
            path=tree.base,
        )
    if split is None:
        there = ", ".join(tree.splits)
        first = tree.base / next(iter(tree.splits))
        instead = f", or pass one of them as the folder, such as {first}, with its own {CLASSES}"
        raise BadInput(
            "missing_option",
            f"{tree.base} has several splits, {there}, and none was selected. Splits named test "
            "or val are used for evaluation, train for preparation: rename them "
            f"accordingly{'' if spec.splits else instead}. In Python, pass split=; with acclimate "
            "data corrupt, pass --split.",
            option="split",
        )
    if split not in tree.splits:
        near = did_you_mean(split, tree.splits)
        raise BadInput(
            "unknown_name",
            f'The data set "{spec.name}" has no labelled split "{split}". {near}',
            kind="split",
            name=split,
            known=tuple(tree.splits),
        )
    return split


def _spread(total: int, n: int | None, where: str) -> list[int]:
    if n is not None and not 1 <= n <= total:
        raise BadInput(
            "out_of_range",
            f"Expected 1 to {total} images, the number of images in {where}, found {n}. Pass "
            "another --images (--source-images for a source; n= in Python), or omit it to use all.",
            option="images",
            found=n,
        )
    return list(range(total)) if n is None else [index * total // n for index in range(n)]
