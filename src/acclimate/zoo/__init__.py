"""Source models: published architectures and their weights, under one name each.

All take images in [0, 1] and normalise inside.

>>> from acclimate import zoo
>>> zoo.get_spec("resnet20-cifar10").accuracy
91.73
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn

from acclimate.data.places import Notify, Progress, data_root, make_folder
from acclimate.errors import (
    AcclimateWarning,
    ArtifactMismatch,
    BadInput,
    DownloadFailed,
    list_lines,
)
from acclimate.storage import file_digest, read_file, write_file
from acclimate.zoo.catalog import CATALOG, ModelSpec, get_spec
from acclimate.zoo.external import build_external, unwrap
from acclimate.zoo.readers import content_digest, fit, read_tensors

__all__ = [
    "ModelSpec",
    "build",
    "download",
    "fit",
    "get_spec",
    "import_checkpoint",
    "is_ours",
    "list_models",
    "load",
    "read_tensors",
    "weights_path",
]

_KIND = "zoo"


def list_models() -> list[str]:
    """Return the names in the zoo, sorted."""
    return sorted(CATALOG)


def load(
    name: str,
    weights: str | Path | None = None,
    n_classes: int | None = None,
    *,
    check_hash: bool = True,
    root: str | Path | None = None,
) -> nn.Module:
    """Return a model with its weights, in evaluation mode, for images in [0, 1].

    Args:
        name: a name in the zoo, `timm:NAME`, `torchvision:NAME` or `package.module:function`. An
            architecture alone, such as `resnet20`, stands for the name with that many classes, or
            else for that of CIFAR-10; see `get_spec`.
        weights: a safetensors file or a PyTorch checkpoint with the published names or ours; None
            takes what `import_checkpoint` imported, or what the library or function comes with.
            With an architecture alone, any weights that fit are taken, such as those of your own.
        n_classes: number of logits, if not that of the published weights.
        check_hash: whether the weights of a full name of the zoo must be the published ones, where
            their SHA-256 is known. Others that were imported on purpose are taken with a warning.
        root: folder of all data; the default is that of `acclimate.data`.

    Raises:
        ArtifactMismatch: when the weights are of another architecture or not the published ones.
        CorruptFile: when the file is damaged, or could execute code.
    """
    path = None if weights is None else Path(weights)
    if ":" in name:
        if path is not None and n_classes is None:
            n_classes = _find_n_classes(name, path)
        model = build_external(name, n_classes, pretrained=path is None)
        if path is not None:
            fit(unwrap(model), read_tensors(path), None, path)
        return model.eval()
    spec = get_spec(name, n_classes)
    path = weights_path(spec.name, root) if path is None else path
    if weights is None and not path.is_file():
        raise _no_weights(spec, path)
    tensors, sha256, card = _read(spec, path)
    model = spec.build(card.get("n_classes") if n_classes is None else n_classes)
    fit(model, tensors, spec.layout, path)
    is_own = weights is not None and (name != spec.name or "training" in card)
    fault = _find_fault(spec, path, sha256, model) if check_hash and not is_own else ""
    if fault and card:  # whoever imported it decided to take it
        warnings.warn(AcclimateWarning("weights_differ", fault, name=spec.name), stacklevel=2)
    elif fault:
        raise ArtifactMismatch("weights_differ", fault, name=spec.name)
    return model.eval()


def build(name: str, n_classes: int | None = None) -> nn.Module:
    """Return a model with fresh weights, in training mode. Arguments as for `load`."""
    if ":" in name:
        return build_external(name, n_classes, pretrained=False)
    return get_spec(name, n_classes).build(n_classes)


def weights_path(name: str, root: str | Path | None = None) -> Path:
    """Return where the weights of a model lie, or would lie: imported, else in the package."""
    spec = get_spec(name)
    imported = _imported_path(spec, root)
    if spec.packaged and not imported.is_file():
        return Path(__file__).parent / "weights" / spec.packaged
    return imported


def _imported_path(spec: ModelSpec, root: str | Path | None) -> Path:
    return data_root(root) / "zoo" / f"{spec.name}.safetensors"


def import_checkpoint(
    name: str, file: str | Path, *, check_hash: bool = True, root: str | Path | None = None
) -> Path:
    """Read a published checkpoint into the zoo, so that `load(name)` finds it; return where.

    What is written depends on the file alone: our names for its tensors, and a card with its
    SHA-256 and what it held besides the model. Arguments and errors as for `load`.
    """
    spec, file = get_spec(name), Path(file)
    tensors, sha256, _ = _read(spec, file)
    model = spec.build()
    left_out = fit(model, tensors, spec.layout, file)
    fault = _find_fault(spec, file, sha256, model) if check_hash else ""
    if fault:
        raise ArtifactMismatch("weights_differ", fault, name=spec.name)
    card = {
        "name": spec.name,
        "architecture": spec.architecture,
        "n_classes": spec.n_classes,
        "source_sha256": sha256,
        "address": spec.address,
        "licence": spec.licence,
        "left_out": left_out,
    }
    target = _imported_path(spec, root)
    make_folder(target.parent)
    write_file(target, _KIND, model.state_dict(), card)
    return target


def download(
    name: str,
    *,
    check_hash: bool = True,
    root: str | Path | None = None,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Path:
    """Fetch the published weights of a model and import them; return where they are then.

    They are looked for at their address, and if that is of Google Drive, at its other one.
    `progress` is called with the number of megabytes, `notify` with what went wrong.
    """
    from acclimate.data.download import RemoteFile, fetch

    spec = get_spec(name)
    if spec.packaged:
        return weights_path(spec.name, root)
    if not spec.address:
        raise _no_weights(spec, weights_path(spec.name, root))
    whole = len(spec.sha256) == 64
    checksum = f"sha256:{spec.sha256}" if check_hash and whole else None
    remote = RemoteFile(f"{spec.name}.pt", _list_addresses(spec), checksum=checksum)
    try:
        fetched = fetch(remote, data_root(root) / ".downloads", progress, notify)
    except DownloadFailed as failure:
        hint = f"save {spec.address} with a browser, then run: acclimate zoo get {spec.name}"
        text = f"{failure}\n  Or {hint} --from FILE"
        raise DownloadFailed(failure.code, text, **failure.data) from failure
    path = import_checkpoint(name, fetched, check_hash=check_hash, root=root)
    fetched.unlink()  # all of it that matters is in the zoo now
    return path


def _list_addresses(spec: ModelSpec) -> tuple[str, ...]:
    host, _, file = spec.address.partition("/uc?export=download&confirm=t&id=")
    if host != "https://drive.google.com":
        return (spec.address,)
    other = f"https://drive.usercontent.google.com/download?id={file}&export=download&confirm=t"
    return spec.address, other


def _find_n_classes(name: str, path: Path) -> int | None:
    """Return how many classes a model of a library was trained with, if the file says so."""
    if not name.startswith(("timm:", "torchvision:")) or not is_ours(path):
        return None
    n_classes: int = read_file(path, _KIND)[1]["n_classes"]
    return n_classes


def _read(spec: ModelSpec, path: Path) -> tuple[dict[str, Tensor], str, dict[str, Any]]:
    """Return tensors, the SHA-256 of the published file, and the card if it is a file of ours."""
    if not is_ours(path):
        return read_tensors(path), file_digest(path), {}
    tensors, card = read_file(path, _KIND)
    if card["name"] != spec.name:
        raise ArtifactMismatch(
            "other_weights",
            f"Expected the weights of {spec.name} in {path}, found those of {card['name']}. Pass "
            f"another file, or load {card['name']}.",
            differences={"name": (card["name"], spec.name)},
        )
    return tensors, card["source_sha256"], card


def is_ours(path: Path) -> bool:
    """Return whether `import_checkpoint`, `acclimate train` or another part of ours wrote it."""
    if path.suffix != ".safetensors" or not path.is_file():
        return False
    try:
        with safe_open(path, framework="pt") as file:
            return "acclimate" in (file.metadata() or {})
    except Exception:  # noqa: BLE001 - a damaged file can make the reader fail in any way
        return False  # the reader says what is wrong with it


def _find_fault(spec: ModelSpec, path: Path, sha256: str, model: nn.Module) -> str:
    """Return what is wrong with weights that are not the known ones, or nothing."""
    if not (spec.sha256 or spec.content_sha256) or (spec.sha256 and sha256.startswith(spec.sha256)):
        return ""
    content = content_digest(model)
    if content == spec.content_sha256:
        return ""
    pairs = {
        "the file": (spec.sha256, sha256),
        "the weights in it": (spec.content_sha256, content),
    }
    lines = [
        f"SHA-256 of {what}: expected {expected}, found {found}"
        for what, (expected, found) in pairs.items()
        if expected
    ]
    return (
        f"{path} does not contain the published weights of {spec.name}:{list_lines(lines)}\n"
        "Pass the published file. For your own weights of the same architecture, pass "
        "check_hash=False (--no-check-hash on the command line)."
    )


def _no_weights(spec: ModelSpec, path: Path) -> BadInput:
    if not spec.address:
        return BadInput(
            "no_weights",
            f"No weights of {spec.name} are published. Pass your own file, or build the model "
            f'with zoo.build("{spec.name}") and train it.',
            name=spec.name,
        )
    return BadInput(
        "not_found",
        f"The weights of {spec.name} were not found at {path}. Run: acclimate zoo get {spec.name} "
        f"(with --from FILE if you have downloaded {spec.address} already).",
        path=path,
    )
