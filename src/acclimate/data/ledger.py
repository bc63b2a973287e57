"""`generated.json`: which blocks of a corrupted set were made here, by what, and from what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from acclimate.corruptions import provenance
from acclimate.corruptions.frost import PROCEDURAL
from acclimate.data.arrays import read_card
from acclimate.data.corruptor import find_recipe

LEDGER = "generated.json"

#: Of a block: what `acclimate.corruptions.provenance` said when it was made.
MADE_FROM = "made_from"


def read_ledger(folder: Path) -> dict[str, Any] | None:
    """Return what was generated into a folder, or None if nothing was."""
    path = folder / LEDGER
    if not path.is_file():
        return None
    remedy = f"Remove {folder} and generate the data set again with acclimate data corrupt."
    return read_card(path, remedy, "source", "seed", "n", "shape", "blocks")


def write_ledger(folder: Path, ledger: Mapping[str, Any]) -> None:
    """Write what was generated into a folder."""
    from acclimate.storage import write_atomically

    write_atomically(folder / LEDGER, (json.dumps(ledger, indent=2) + "\n").encode())


def find_stale(folder: Path, name: str, severities: Iterable[int]) -> list[int]:
    """Return the severities whose blocks were made by another version of the corruption.

    Frost that may be of photographs is not called stale where there are none: it could only be
    replaced by something worse.
    """
    ledger = read_ledger(folder) or {"blocks": {}}
    blocks = ledger["blocks"].get(name, {})
    here = provenance(name)
    return [
        severity
        for severity in sorted(set(severities))
        if str(severity) in blocks
        and (here != PROCEDURAL or blocks[str(severity)].get(MADE_FROM) == PROCEDURAL)
        and not _is_same(ledger, name, severity)
    ]


def find_origin(ledger: Mapping[str, Any], name: str, severity: int) -> str:
    """Return what a block was made from, as `acclimate.corruptions.provenance` says it.

    Blocks of older versions do not say it. One that equals what is made here was made from the
    same.
    """
    recorded = ledger["blocks"][name][str(severity)].get(MADE_FROM)
    if recorded is not None:
        return str(recorded)
    return provenance(name) if _is_same(ledger, name, severity) else f"{name}: not recorded"


def has_procedural_frost(ledger: Mapping[str, Any]) -> bool:
    """Return whether any block is recorded to have been made without photographs of frost."""
    blocks = ledger["blocks"].get("frost", {}).values()
    return any(block.get(MADE_FROM) == PROCEDURAL for block in blocks)


def _is_same(ledger: Mapping[str, Any], name: str, severity: int) -> bool:
    recipe = ledger["blocks"][name][str(severity)]["recipe"]
    return bool(recipe == find_recipe(name, severity, tuple(ledger["shape"])))
