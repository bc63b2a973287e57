"""Small sets of domains to train on, as files and as settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from acclimate.data import ArrayStore, ImageStore
from acclimate.data.arrays import array_sha256
from acclimate.data.domains import DomainSet
from tests.cli_models import CLASSES
from tests.images import write_images

DOMAINS = ("city", "farm", "shore")


def make_tree(
    root: Path,
    domains: Mapping[str, int] | None = None,
    classes: tuple[str, ...] = CLASSES,
    size: int = 8,
) -> Path:
    """Write noise images `root/<domain>/<class>/000.png`, that many a domain; return root.

    The class is a brightness, and every domain has noise of its own.
    """
    wanted = dict.fromkeys(DOMAINS, 20) if domains is None else domains
    for seed, (domain, n) in enumerate(wanted.items()):
        counts = {name: len(range(label, n, len(classes))) for label, name in enumerate(classes)}
        write_images(root / domain, counts, size, seed)
    return root


def names_and_numbers(sentence: str) -> list[str]:
    """Return what a sentence is about: the names in quotation marks, then the numbers."""
    return re.findall(r'"([^"]*)"', sentence) + re.findall(r"(?<!\S)\d[\d,]*(?=[\s:])", sentence)


def make_set(n: int = 20, domains: tuple[str, ...] = DOMAINS) -> DomainSet:
    """Return the like of `make_tree` in memory."""
    draws = np.random.default_rng(7)
    made: dict[str, ImageStore] = {}
    for place, name in enumerate(domains):
        labels = np.arange(n, dtype=np.int64) % len(CLASSES)
        images = draws.integers(0, 60, (n, 8, 8, 3)) + 50 * labels[:, None, None, None]
        images[..., place % 3] += 40
        pixels = images.clip(0, 255).astype(np.uint8)
        about = {"sha256": array_sha256(pixels), "n": n}
        made[name] = ArrayStore(pixels, labels, CLASSES, about)
    told = {name: domain.description for name, domain in made.items()}
    return DomainSet("sample", CLASSES, made, {"name": "sample", "domains": told})
