"""`acclimate export`: write an adapted model as files that need no acclimate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.models import load_model
from acclimate.cli.options import (
    HeadOption,
    LogitsAtOption,
    MeanOption,
    ModelOption,
    NormalizationOption,
    StdOption,
    WeightsOption,
    check_free,
    get_logits_at,
    get_normalization,
    refuse_same_file,
    split_names,
)
from acclimate.cli.terminal import get_console, make_facts, show_unreadable, show_warnings
from acclimate.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from acclimate.introspect import ModelInfo
    from acclimate.methods.method import Method


def export(
    model: ModelOption,
    state: Annotated[
        Path, typer.Option(metavar="FILE", help="What acclimate adapt --state wrote.")
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="PATH", help="Path of the files without their endings."),
    ],
    weights: WeightsOption = None,
    artifact: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The artifact that adapt was called with.")
    ] = None,
    formats: Annotated[
        str,
        typer.Option(
            "--format", help="Separated by commas: safetensors, torchscript, pt2 and onnx."
        ),
    ] = "safetensors,torchscript,pt2,onnx",
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Recent images of the stream. Statistics of batches are taken from them, and the "
            "differences from the live predictions are measured on them.",
        ),
    ] = None,
    n_images: Annotated[int, typer.Option(help="So many of these images at most.")] = 512,
    batch_size: Annotated[int, typer.Option(help="Batch size of these images.")] = 128,
    normalization: NormalizationOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    head: HeadOption = None,
    logits_at: LogitsAtOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write an adapted model as plain files: safetensors, TorchScript, torch.export and ONNX.

    Each file is read again and its logits are compared with the model's. A card, `PATH.json`,
    records where the model comes from, which statistics it normalises with, and how far its
    predictions are from those of the live model.

    Example: `acclimate export --model my_models:resnet --weights resnet.pt --state resnet.state
    --images photos --out resnet-adapted`
    """
    from acclimate.export import export_model
    from acclimate.export_formats import SUFFIXES, TOLERANCES, check_format, write_format
    from acclimate.introspect import ModelInfo
    from acclimate.storage import write_atomically

    kinds = split_names(formats)
    for kind in kinds:
        if kind not in TOLERANCES:
            raise BadInput(
                "unknown_name",
                f"Expected formats among {', '.join(TOLERANCES)}, found {kind!r}. "
                f"{did_you_mean(kind, TOLERANCES)}",
                kind="format",
                name=kind,
                known=tuple(TOLERANCES),
            )
        check_format(kind)
    files = {kind: out.with_name(out.name + SUFFIXES[kind]) for kind in kinds}
    card_file = out.with_name(f"{out.name}.json")
    for path in (*files.values(), card_file):
        check_free(path, force)
    inputs = {"--weights": weights, "--artifact": artifact, "--state": state}
    refuse_same_file({str(path): path for path in (*files.values(), card_file)}, inputs)
    normal = get_normalization(normalization, mean, std)
    with show_warnings():
        info = ModelInfo(head=head, logits_at=get_logits_at(logits_at), normalization=normal)
        adapted = _load_adapted(model, weights, artifact, state, info)
        probe: list[Any] = []
        unreadable: dict[Path, str] = {}
        if images is not None:
            probe, unreadable = _read_images(adapted, images, n_images, batch_size)
        exported = export_model(adapted, probe)
        x = probe[0][:8] if probe and len(probe[0]) > 1 else _make_sample(adapted)
        card: dict[str, Any] = {**exported.card, "input_shape": list(x.shape[1:]), "files": {}}
        for kind, path in files.items():
            found = write_format(exported.module, x, kind, path, adapted.logits_at)
            card["files"][path.name] = {"format": kind, "max_abs_logit": found}
        write_atomically(card_file, (json.dumps(card, indent=1, allow_nan=False) + "\n").encode())
    show_unreadable(unreadable)
    get_console().print(make_facts("Exported", _facts(card, files, card_file)))


def _load_adapted(
    model: str, weights: Path | None, artifact: Path | None, state: Path, info: ModelInfo
) -> Method:
    """Return the adapted model of a saved state, with the method and options of its card."""
    from acclimate.adaptation import adapt
    from acclimate.artifact import Artifact
    from acclimate.methods import get_method
    from acclimate.methods.compute import Speed
    from acclimate.storage import read_file

    _, card = read_file(state, "state")
    name, guard = card["method"], card["guard"]
    adapted = adapt(
        load_model(model, weights, "cpu"),
        name,
        None if artifact is None else Artifact.load(artifact),
        config=get_method(name).config_class.from_dict(card["config"]),
        terms=list(card.get("terms", {})),
        info=info,
        guard=False if guard is None else True if guard["answers"] else "watch",
        speed=Speed(**card["speed"]),
    )
    return adapted.load(state)


def _read_images(
    adapted: Method, folder: Path, n_images: int, batch_size: int
) -> tuple[list[Any], dict[Path, str]]:
    from acclimate.streams.folder import FolderStream

    shape = adapted.input_shape
    size = None if shape is None else (shape[1], shape[2])
    stream = FolderStream(folder, size, batch_size, adapted.normalization)
    batches: list[Any] = []
    for batch in stream.batches(0):
        batches.append(batch.x)
        if sum(map(len, batches)) >= n_images:
            break
    n_over = max(0, sum(map(len, batches)) - n_images)
    batches[-1] = batches[-1][: len(batches[-1]) - n_over]
    return batches, dict(stream.unreadable)


def _make_sample(adapted: Method) -> Any:
    """Return noise of the shape of the stream, for the comparison of files."""
    import torch

    if adapted.input_shape is None:
        raise BadInput(
            "missing_option",
            "The state is from before the first batch, so the shape of inputs is not known. Pass "
            "images of the stream with --images.",
            option="images",
        )
    generator = torch.Generator().manual_seed(0)
    like = next(adapted.model.parameters())
    return torch.rand(4, *adapted.input_shape, generator=generator).to(like)


def _facts(card: dict[str, Any], files: dict[str, Path], card_file: Path) -> dict[str, str]:
    facts = {
        "method": f"{card['method']}, after {card['counts']['batches']:,} batches",
        "statistics": f"{card['statistics']['kind']}. {card['statistics']['origin']}",
    }
    if (found := card["differences"]) is not None:
        facts["live model"] = (
            f"logits differ by up to {found['max_abs_logit']:.3g}, the class agrees on "
            f"{100 * found['class_agreement']:.2f} % of {found['n_samples']:,} images"
        )
    for kind, path in files.items():
        differ = card["files"][path.name]["max_abs_logit"]
        facts[kind] = f"{path} (logits differ by up to {differ:.2g})"
    return {**facts, "card": str(card_file)}
