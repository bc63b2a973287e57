"""Data sets by name: fetched from where they are published, kept under one root, checked.

acclimate.data.get("cifar10")                                        # once
test = acclimate.data.load("cifar10")                                # memory-mapped
foggy = acclimate.data.load("cifar10c", corruption="fog", severity=5)
foggy.description["source"]                                          # official or generated
sketches = acclimate.data.load("pacs", domain="sketch", size=224)    # files, read when needed
"""

from __future__ import annotations

from acclimate.data.catalog import SETS
from acclimate.data.datasets import DataSet, Report, check, corrupt, find_state, get, load, register
from acclimate.data.domain_choice import DomainChoice
from acclimate.data.download import RemoteFile, fetch
from acclimate.data.layouts import open_folder
from acclimate.data.places import data_root
from acclimate.data.stores import ArrayStore, Batches, FolderStore, ImageStore
from acclimate.errors import DownloadFailed

__all__ = [
    "SETS",
    "ArrayStore",
    "Batches",
    "DataSet",
    "DomainChoice",
    "DownloadFailed",
    "FolderStore",
    "ImageStore",
    "RemoteFile",
    "Report",
    "check",
    "corrupt",
    "data_root",
    "fetch",
    "find_state",
    "get",
    "load",
    "open_folder",
    "register",
]
