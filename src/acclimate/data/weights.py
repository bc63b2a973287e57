"""Weights of published source models: fetched once, with a card that says what came."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from acclimate.data.arrays import read_card
from acclimate.data.catalog import WEIGHTS
from acclimate.data.download import DownloadFailed, fetch, file_digest
from acclimate.data.places import Notify, Progress, data_root, hold_lock, make_folder
from acclimate.errors import BadInput, CorruptFile, did_you_mean


def weights_folder(root: Path) -> Path:
    """Return where weights are kept."""
    return root / "weights"


def get_weights(
    name: str,
    root: str | Path | None = None,
    source: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Path:
    """Return the file of published weights, fetched if it was not there.

    It is a PyTorch checkpoint, to be read with `torch.load(path, weights_only=True)`.

    Args:
        name: A key of `WEIGHTS`.
        root: Of all data; see `data_root`.
        source: The file, if it was saved by other means.
        force: Fetch it even if it is there.
        progress: Is told of megabytes.
        notify: Is told of each mirror that failed.

    Raises:
        BadInput: No weights of that name.
        DownloadFailed: No mirror gave the file.
        CorruptFile: The file given is no checkpoint.
    """
    if name not in WEIGHTS:
        raise BadInput(f'no weights "{name}". {did_you_mean(name, WEIGHTS)}')
    file, place = WEIGHTS[name], data_root(root)
    target = make_folder(weights_folder(place)) / file.name
    card = target.with_suffix(".json")
    with hold_lock(place, name, notify):
        if target.is_file() and card.is_file() and not force:
            read_card(card, f"Run: acclimate data get {name} --force", "sha256")
            return target
        card.unlink(missing_ok=True)
        if source is not None:
            _copy(source, target)
        else:
            target.unlink(missing_ok=True)
            try:
                fetch(file, target.parent, progress, notify)
            except DownloadFailed as failure:
                hint = f"Or save it with a browser, then: acclimate data get {name} --from FILE"
                raise DownloadFailed(f"{failure}\n  {hint}") from failure
        said = {
            "name": name,
            "source": file.addresses[0] if source is None else source.name,
            "sha256": file_digest(target, "sha256"),
        }
        from acclimate.storage import write_atomically

        write_atomically(card, (json.dumps(said, indent=2) + "\n").encode())
    return target


def _copy(source: Path, target: Path) -> None:
    if not source.is_file():
        raise BadInput(f"{source} is not a file. Check the path.")
    with source.open("rb") as file:
        head = file.read(16)
    # A PyTorch checkpoint is a zip archive or, as older versions wrote it, a pickle.
    if not head.startswith((b"PK", b"\x80")):
        raise CorruptFile(f"{source} is not a PyTorch checkpoint. Save the file itself, no page.")
    part = target.with_name(f"{target.name}.part")
    try:
        shutil.copyfile(source, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
