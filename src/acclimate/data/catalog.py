"""The data sets that are known, as `catalog.toml` describes them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from acclimate.data.cifar import ArraySet, NpySet, Split
from acclimate.data.cifar_c import CorruptedArraySet
from acclimate.data.datasets import SETS, DataSet, get_set, register
from acclimate.data.domains import CameraTraps, DomainFolders
from acclimate.data.download import RemoteFile
from acclimate.data.folders import CorruptedFolderSet, FolderSet
from acclimate.data.frost import Ingredient
from acclimate.data.generated import BuiltinDomains, BuiltinScenes, BuiltinSet
from acclimate.data.layouts import MaskLayout
from acclimate.data.mask_files import IGNORE
from acclimate.data.masks import MaskSet

__all__ = ["SETS", "DataSet", "Split", "get_set"]

_KINDS: dict[str, type[DataSet]] = {
    "arrays": ArraySet,
    "npy": NpySet,
    "corrupted arrays": CorruptedArraySet,
    "folder": FolderSet,
    "corrupted folder": CorruptedFolderSet,
    "ingredient": Ingredient,
    "domains": DomainFolders,
    "camera traps": CameraTraps,
    "masks": MaskSet,
    "builtin": BuiltinSet,
    "builtin domains": BuiltinDomains,
    "builtin scenes": BuiltinScenes,
}
_OWN = "It is a local folder: pass its path."
_GENERATED = "It is generated when it is loaded; there is nothing to download."
_BY_HAND = (
    "The authors permit {terms} and publish no stable address. Download the archive that DomainBed "
    "uses (https://github.com/facebookresearch/DomainBed; the address is in "
    "domainbed/scripts/download.py), then run: acclimate data get {name} --from FILE. Or arrange "
    "the files as {{root}}/{name}/<domain>/<class>/*.jpg, such as {{root}}/{name}/{example}."
)


def _make(name: str, described: Mapping[str, Any]) -> DataSet:
    about = dict(described)
    kind = _KINDS[about.pop("kind")]
    if kind.is_generated or about.get("is_own"):
        about.setdefault("placing", _GENERATED if kind.is_generated else _OWN)
    if "by_hand" in about:
        about["placing"] = _BY_HAND.format(name=name, **about.pop("by_hand"))
    if "files" in about:
        about["files"] = tuple(map(_make_file, about["files"]))
    if issubclass(kind, ArraySet):
        splits = about.get("splits", {})
        about["splits"] = {split: Split(**own) for split, own in splits.items()}
    if "rows" in about:
        about |= _read_rows(about.pop("rows"), about.pop("n_ids"), about["layout"])
    classes = about.get("classes", ())
    about["classes"] = SETS[classes].classes if isinstance(classes, str) else tuple(classes)
    return kind(name=name, **about)


def _make_file(about: Mapping[str, Any]) -> RemoteFile:
    addresses = tuple(address.format(**about) for address in about["addresses"])
    return RemoteFile(**{**about, "addresses": addresses})


def _read_rows(text: str, n_ids: int, layout: Mapping[str, Any]) -> dict[str, Any]:
    """Return classes, colours and the layout of a set with masks.

    Each line is the name of a class, its colour and its id.
    """
    rows = [line.rsplit(maxsplit=4) for line in text.splitlines()]
    places = {place: place for place in range(len(rows))} | {IGNORE: IGNORE}
    ids = dict.fromkeys(range(n_ids), IGNORE) | {int(r[4]): place for place, r in enumerate(rows)}
    tables = {"ids": ids, "places": places}
    named = {ending: tables[table] for ending, table in layout["ids"].items()}
    return {
        "classes": tuple(row[0] for row in rows),
        "palette": tuple((int(red), int(green), int(blue)) for _, red, green, blue, _ in rows),
        "layout": MaskLayout(**{**layout, "ids": named}),
    }


_DECLARED = tomllib.loads((files("acclimate.data") / "catalog.toml").read_text(encoding="utf-8"))
for _name, _described in _DECLARED.items():
    register(_make(_name, _described))
