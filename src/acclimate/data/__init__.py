"""Data sets by name: fetched from where they are published, kept under one root, checked.

acclimate.data.get("cifar10")                                        # once
test = acclimate.data.load("cifar10")                                # memory-mapped
foggy = acclimate.data.load("cifar10c", corruption="fog", severity=5)
foggy.description["source"]                                          # official or generated
"""

from __future__ import annotations

from acclimate.data.arrays import LabelledImages
from acclimate.data.catalog import SETS, DataSet
from acclimate.data.download import RemoteFile, fetch
from acclimate.data.places import data_root
from acclimate.data.sets import corrupt, find_state, get, load, load_folder
from acclimate.errors import DownloadFailed

__all__ = [
    "SETS",
    "DataSet",
    "DownloadFailed",
    "LabelledImages",
    "RemoteFile",
    "corrupt",
    "data_root",
    "fetch",
    "find_state",
    "get",
    "load",
    "load_folder",
]
