"""Export what a model has learned, and show what is in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.commands.base import ArtifactOption, Force, ModelOptions, command, refuse_overwriting
from acclimate.commands.models import make_noise
from acclimate.errors import ArtifactMismatch, BadInput, check_output
from acclimate.options import Values, changed, hp, options, split_names

if TYPE_CHECKING:
    from torch import Tensor

    from acclimate.methods.method import Method


@options
class ExportOptions(Force, ArtifactOption, ModelOptions):
    state: Path = hp(help="State that `acclimate adapt --state` wrote.")
    out: Path = hp(metavar="PATH", help="Path of the files without their endings.")
    artifact: Path | None = changed(
        ArtifactOption, "artifact", None, help="The artifact that adapt was called with."
    )
    format: tuple[str, ...] = hp(
        ("safetensors", "torchscript", "pt2", "onnx"),
        parse=split_names,
        help="Formats, separated by commas: safetensors, torchscript, pt2 and onnx.",
    )
    images: Path | None = hp(
        None,
        metavar="DIR",
        help="Recent images of the stream. Statistics of batches are taken from them, and the "
        "differences from the live predictions are measured on them.",
    )
    n_images: int = hp(512, help="Largest number of these images.")
    batch_size: int = hp(128, help="Batch size of these images.")


@dataclass(frozen=True)
class ExportedFiles:
    """What `export` wrote.

    Attributes:
        files: By format.
        card_file: The card.
        card: Its content; see `acclimate.export.Exported`.
        unreadable: Images that were left out, with the reason.
    """

    files: Mapping[str, Path]
    card_file: Path
    card: Mapping[str, Any]
    unreadable: Mapping[Path, str]


@command(ExportOptions)
def export(o: ExportOptions) -> ExportedFiles:
    """Write an adapted model as plain files: safetensors, TorchScript, torch.export and ONNX.

    Each file is read again and its logits are compared with the model's. A card, `PATH.json`,
    records where the model comes from, which statistics it normalises with, and how far its
    predictions are from those of the live model.

    Example: `acclimate export --model my_models:resnet --weights resnet.pt --state resnet.state
    --images photos --out resnet-adapted`
    """
    from acclimate.export import FORMATS, check_format, export_model, write_format
    from acclimate.storage import write_atomically

    for kind in o.format:
        check_format(kind)
    files = {kind: o.out.with_name(o.out.name + FORMATS[kind].suffix) for kind in o.format}
    card_file = o.out.with_name(f"{o.out.name}.json")
    written = (*files.values(), card_file)
    for path in written:
        check_output(path, o.force)
    refuse_overwriting(o, {str(path): path for path in written}, "weights", "artifact", "state")
    adapted = _load_adapted(o)
    probe, unreadable = _read_images(adapted, o)
    exported = export_model(adapted, probe)
    if probe and len(probe[0]) > 1:
        x = probe[0][:8]
    elif adapted.input_shape is not None:
        x = make_noise(4, adapted.input_shape).to(next(adapted.model.parameters()))
    else:
        raise BadInput(
            "missing_option",
            "The state is from before the first batch, so the shape of inputs is not known. Pass "
            "images of the stream with --images.",
            option="images",
        )
    card: dict[str, Any] = {**exported.card, "input_shape": list(x.shape[1:]), "files": {}}
    for kind, path in files.items():
        found = write_format(exported.module, x, kind, path, adapted.logits_at)
        card["files"][path.name] = {"format": kind, "max_abs_logit": found}
    write_atomically(card_file, (json.dumps(card, indent=1, allow_nan=False) + "\n").encode())
    return ExportedFiles(files, card_file, card, unreadable)


def _load_adapted(o: ExportOptions) -> Method:
    """Return the adapted model of a saved state, with the method and options of its card."""
    from acclimate.adaptation import adapt
    from acclimate.methods import get_method
    from acclimate.methods.compute import Speed
    from acclimate.storage import read_file

    _, card = read_file(o.state, "state")
    name, guard = card["method"], card["guard"]
    adapted = adapt(
        o.load_model("cpu"),
        name,
        o.load_artifact(),
        config=get_method(name).config_class.from_dict(card["config"]),
        terms=list(card.get("terms", {})),
        info=o.get_info(),
        guard=False if guard is None else True if guard["answers"] else "watch",
        speed=Speed(**card["speed"]),
    )
    return adapted.load(o.state)


def _read_images(adapted: Method, o: ExportOptions) -> tuple[list[Tensor], Mapping[Path, str]]:
    from acclimate.streams.folder import FolderStream

    if o.images is None:
        return [], {}
    shape = adapted.input_shape
    size = None if shape is None else (shape[1], shape[2])
    stream = FolderStream(o.images, size, o.batch_size, adapted.normalization)
    batches: list[Tensor] = []
    left = o.n_images
    for batch in stream.batches(0):
        batches.append(batch.x[:left])
        left -= len(batches[-1])
        if left <= 0:
            break
    return batches, stream.unreadable


# inspect ------------------------------------------------------------------------------------------


@options
class InspectOptions(Values):
    file: Path = hp(argument=True, help="An artifact or a saved state.")
    all: bool = hp(False, help="Show one bar per parameter tensor, even if there are many.")


@dataclass(frozen=True)
class Inspected:
    """The content of a file.

    Attributes:
        file: The file.
        kind: `"artifact"` or `"state"`.
        card: What it is, as JSON types.
        tensors: By name.
        all: Whether all parameters are to be shown.
    """

    file: Path
    kind: str
    card: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    all: bool


@command(InspectOptions)
def inspect(o: InspectOptions) -> Inspected:
    """Show what is in an artifact or a saved state.

    For an artifact, this is the model it belongs to, what was prepared and how, and the penalty of
    every layer: with a penalty near 1 the layer hardly moves, near 0 it moves freely.

    Example: `acclimate inspect resnet.acclimate`
    """
    from acclimate.storage import read_file

    try:
        tensors, card = read_file(o.file, "artifact")
    except ArtifactMismatch:  # of ours, but of the other kind
        tensors, card = read_file(o.file, "state")
        return Inspected(o.file, "state", card, tensors, o.all)
    return Inspected(o.file, "artifact", card, tensors, o.all)
