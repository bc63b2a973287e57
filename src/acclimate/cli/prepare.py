"""`acclimate prepare`: the one step that sees source data."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.models import load_model
from acclimate.cli.options import (
    DeviceOption,
    HeadOption,
    IgnoreLabelOption,
    LogitsAtOption,
    MeanOption,
    ModelOption,
    NormalizationOption,
    RootOption,
    SizeOption,
    StdOption,
    WeightsOption,
    check_free,
    get_logits_at,
    get_normalization,
    parse_size,
    refuse_same_file,
)
from acclimate.cli.terminal import (
    get_console,
    make_facts,
    printable,
    show_progress,
    show_unreadable,
    show_warnings,
)
from acclimate.errors import BadInput

if TYPE_CHECKING:
    from torch import nn

    from acclimate.artifact import Artifact
    from acclimate.data import Batches
    from acclimate.functional.inputs import Normalization

#: Images of a folder of classes in a batch.


def prepare(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE_DIR",
            help="Labelled images: `SOURCE_DIR/<class>/<image>`. For a model that predicts every "
            "pixel: images and masks, as for training, of which the split `train` is taken; or "
            "camvid, cityscapes, builtin-scenes.",
        ),
    ],
    model: ModelOption,
    out: Annotated[Path, typer.Option(metavar="FILE.acclimate", help="The artifact to write.")],
    weights: WeightsOption = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Prepare what these methods need, such as eata,sar; default: what steady and "
            "swr_nsp need.",
        ),
    ] = None,
    contrast_head: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The head that acclimate train --objective simclr wrote; for ttt_pp.",
        ),
    ] = None,
    size: SizeOption = None,
    ignore_label: IgnoreLabelOption = 255,
    normalization: NormalizationOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    classes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Class names in the order of the logits, one per line; default: folders by name.",
        ),
    ] = None,
    head: HeadOption = None,
    logits_at: LogitsAtOption = None,
    samples: Annotated[int, typer.Option(help="Source images the penalty is measured on.")] = 1024,
    granularity: Annotated[
        str, typer.Option(help="What one penalty is for: tensor, module, channel or parameter.")
    ] = "tensor",
    projector: Annotated[
        str, typer.Option(help="Layers of the projector: 0 to 3, or auto (0 for few classes).")
    ] = "auto",
    epochs: Annotated[int, typer.Option(help="Passes over the source to train a projector.")] = 20,
    batch_size: Annotated[
        int | None, typer.Option(help="Batch size; default: 128, of images with masks 4.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all random draws.")] = 0,
    speed: Annotated[
        str,
        typer.Option(help="exact, or fast: in bfloat16 if the processor has it, else as exact."),
    ] = "exact",
    device: DeviceOption = "auto",
    data_dir: RootOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Compute on source data what a model needs to adapt later without it.

    Runs once, where the source (training) data is; a few thousand labelled images are enough. The
    result is one file, the artifact, which goes with the model.

    Example: `acclimate prepare data/train --model my_models:resnet --weights resnet.pt --size 224
    --normalization imagenet --out resnet.acclimate`
    """
    inputs = {"--weights": weights, "--contrast-head": contrast_head, "--classes": classes}
    refuse_same_file({"--out": out}, inputs)
    check_free(out, force)
    from acclimate.data.masks import has_masks
    from acclimate.introspect import ModelInfo
    from acclimate.parts import Contrast, Penalty, Prototypes
    from acclimate.preparation import choose_parts
    from acclimate.preparation import prepare as prepare_model
    from acclimate.streams.folder import read_classes

    normal = get_normalization(normalization, mean, std)
    depth: Any = int(projector) if projector.isdecimal() else projector
    pace: Any = speed
    options = {
        "penalty": Penalty(n_samples=samples, granularity=granularity),
        "prototypes": Prototypes(depth=depth, epochs=epochs),
        "contrast": Contrast(head=contrast_head),
    }
    methods = None if method is None else [name.strip() for name in method.split(",")]
    given_head = () if contrast_head is None else (options["contrast"],)
    chosen = choose_parts(methods, given_head or None)
    # Accuracy is not asked for by name, so that it is left out where it cannot be prepared.
    parts = [options.get(part.name, part) for part in chosen if part.name != "accuracy"]
    if methods is None and has_masks(str(source)):
        parts = [part for part in parts if part.name != "prototypes"]
    ignored = {} if ignore_label == 255 else {"ignore_label": ignore_label}
    wanted = parse_size(size)
    given = None if classes is None else read_classes(classes)
    began = time.perf_counter()
    with show_warnings(), show_progress() as progress:
        data, names = _open_source(
            source, normal, seed, batch_size, data_dir, size=wanted, classes=given, **ignored
        )
        net = load_model(model, weights, device)
        _check_names(net, data, names, source, get_logits_at(logits_at))
        artifact = prepare_model(
            net,
            data,
            method=methods or (),
            parts=parts,
            info=ModelInfo(head=head, logits_at=get_logits_at(logits_at), normalization=normal),
            classes=names,
            seed=seed,
            speed=pace,
            progress=progress,
        )
    artifact.save(out)
    show_unreadable(data.unreadable)
    console = get_console()
    console.print(make_facts("Prepared", _facts(artifact, out, time.perf_counter() - began)))
    command = ["acclimate", "adapt", "IMAGES_DIR", "--model", model]
    command += ["--weights", str(weights)] if weights is not None else []
    place = "predictions" if artifact.info.is_dense else "predictions.csv"
    command += ["--artifact", str(out), "--out", place]
    console.print("\nNext, where the model is used, with a folder of images:", style="dim")
    console.print(f"  {shlex.join(command)}", soft_wrap=True)


def _open_source(
    source: Path,
    normalization: Normalization | None,
    seed: int,
    batch_size: int | None,
    root: Path | None,
    **options: Any,
) -> tuple[Batches, Sequence[str]]:
    """Return labelled batches, with masks where the source has them, and the names of classes."""
    from acclimate.data.loading import open_source

    batches = open_source(
        *(str(source), root),
        seed=seed,
        batch_size=batch_size,
        normalization=normalization,
        **options,
    )
    return batches, batches.classes


def _check_names(
    net: nn.Module,
    data: Batches,
    names: Sequence[str],
    source: Path,
    logits_at: str | int | None,
) -> None:
    """Refuse a source that has not as many classes as the model, and say which it has."""
    from acclimate.data.classes import shorten_classes
    from acclimate.forward import get_logits
    from acclimate.introspect import try_forward

    empty = "" if data.has_masks else "; a class without images may be an empty folder"
    x = data.peek()[:2]
    x = x.to(next(net.parameters(), x).device)
    n_logits = get_logits(try_forward(net, x), logits_at).shape[1]
    if n_logits != len(names):
        raise BadInput(
            "count_mismatch",
            f"Expected {n_logits} class names, the number of logits of the model, found in "
            f"{source} {shorten_classes(names)}. All classes of the model are needed{empty}. Or "
            "pass all names in the order of the logits with --classes FILE.",
            expected=n_logits,
            found=len(names),
        )


def _facts(artifact: Artifact, out: Path, seconds: float) -> dict[str, str]:
    from acclimate.data.classes import shorten_classes

    info, parts = artifact.info, artifact.parts
    features, facts = parts["features"], {}
    if "penalty" in parts:
        facts["penalty"] = (
            f"{parts['penalty']['n_units']:,} units, measured on "
            f"{parts['penalty']['n_samples']:,} images"
        )
    if "prototypes" in parts:
        layers = parts["prototypes"]["projector_depth"]
        facts["prototypes"] = "one a class" + (f"; projector of {layers} layers" if layers else "")
    if "fisher" in parts:
        facts["fisher"] = f"measured on {parts['fisher']['n_samples']:,} images"
    if "accuracy" in parts:
        facts["accuracy"] = f"measured on {parts['accuracy']['n_samples']:,} images"
    return {
        "artifact": f"{out} ({out.stat().st_size / 1024:,.0f} KiB)",
        "model": f"{info.n_classes} classes, {info.n_features} features before "
        f'the head "{info.head}"',
        "classes": printable(shorten_classes(artifact.classes or ())),
        "source": f"{features['n_samples']:,} images, of "
        f"{'whose labelled pixels' if info.is_dense else 'which'} the model gets "
        f"{100 * features['error']:.1f} % wrong",
        **facts,
        "time": f"{seconds:.1f} s in {features['precision']}",
    }
