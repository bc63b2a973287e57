"""`acclimate prepare`: the one step that sees source data."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.data import RootOption
from acclimate.cli.models import load_model
from acclimate.cli.options import (
    DeviceOption,
    HeadOption,
    IgnoreLabelOption,
    LogitsAtOption,
    MeanOption,
    ModelOption,
    NormalizationOption,
    SizeOption,
    StdOption,
    WeightsOption,
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
    from acclimate.functional.normalization import Normalization

#: Images of a folder of classes in a batch.
BATCH = 128


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
            help="Prepare what these methods need, such as eata,sar; default: what swr_nsp needs.",
        ),
    ] = None,
    contrast_head: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The head that acclimate train --joint simclr wrote; for ttt_pp."
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
            help="Class names in the order of the logits, one a line; default: folders by name.",
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
        int | None, typer.Option(help="Images a batch; default: 128, of images with masks 4.")
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
    _check_place(out, force)
    from acclimate.parts.options import PenaltyOptions, PrototypeOptions
    from acclimate.preparation import prepare as prepare_model
    from acclimate.streams.folder import read_classes

    normal = get_normalization(normalization, mean, std)
    chosen: Any = granularity
    depth: Any = int(projector) if projector.isdecimal() else projector
    pace: Any = speed
    penalty = PenaltyOptions(n_samples=samples, granularity=chosen)
    prototypes = PrototypeOptions(depth=depth, epochs=epochs)
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
            method=None if method is None else [name.strip() for name in method.split(",")],
            normalization=normal,
            head=head,
            logits_at=get_logits_at(logits_at),
            penalty=penalty,
            prototypes=prototypes,
            contrast_head=contrast_head,
            classes=names,
            seed=seed,
            speed=pace,
            progress=progress,
        )
    artifact.save(out)
    show_unreadable(getattr(data, "unreadable", {}))
    console = get_console()
    console.print(make_facts("Prepared", _facts(artifact, out, time.perf_counter() - began)))
    command = ["acclimate", "adapt", "IMAGES_DIR", "--model", model]
    command += ["--weights", str(weights)] if weights is not None else []
    place = "predictions" if artifact.anatomy.is_dense else "predictions.csv"
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
) -> tuple[Iterable[Any], Sequence[str]]:
    """Return labelled batches, with masks where the source has them, and the names of classes."""
    from acclimate.comparison.masks import BATCH as MASK_BATCH
    from acclimate.comparison.masks import has_masks, open_source
    from acclimate.streams.folder import FolderSource

    if batch_size is not None and batch_size < 1:
        raise BadInput(
            "out_of_range",
            f"expected a batch size of at least 1, found {batch_size}.",
            option="batch_size",
            found=batch_size,
        )
    if has_masks(str(source)):
        together = MASK_BATCH if batch_size is None else batch_size
        return open_source(str(source), seed, normalization, root, together, **options)
    if "ignore_label" in options:
        raise BadInput(
            "not_applicable",
            f"--ignore-label is for masks, and {source} has none. Leave it out.",
            option="ignore_label",
        )
    together = BATCH if batch_size is None else batch_size
    folder = FolderSource(
        source, batch_size=together, normalization=normalization, seed=seed, **options
    )
    return folder, folder.classes


def _check_names(
    net: nn.Module,
    data: Iterable[Any],
    names: Sequence[str],
    source: Path,
    logits_at: str | int | None,
) -> None:
    """Refuse a source that has not as many classes as the model, and say which it has."""
    from acclimate.data.classes import shorten_classes
    from acclimate.streams.folder import FolderSource
    from acclimate.taps import get_logits, try_forward

    # Each pass over a folder has an order of its own: this look must not count as one.
    if isinstance(data, FolderSource):
        x, empty = next(data.decode(data.paths)).x, "; one without images may be empty"
    else:
        x, empty = next(iter(data))[0], ""
    x = x[:2].to(next(net.parameters(), x).device)
    n_logits = get_logits(try_forward(net, x), logits_at).shape[1]
    if n_logits != len(names):
        raise BadInput(
            "count_mismatch",
            f"expected the names of {n_logits} classes, as the model has that many logits, found "
            f"in {source} {shorten_classes(names)}. There must be every class of the model{empty}; "
            "or name them all, in the order of the logits, by --classes FILE.",
            expected=n_logits,
            found=len(names),
        )


def _check_place(out: Path, force: bool) -> None:
    if not out.parent.is_dir():
        raise BadInput(
            "not_found",
            f"cannot write {out}: there is no folder {out.parent}. Create it first.",
            path=out.parent,
        )
    if out.exists() and not force:
        raise BadInput(
            "already_exists",
            f"{out} exists already. Give another --out, or overwrite by --force.",
            path=out,
        )


def _facts(artifact: Artifact, out: Path, seconds: float) -> dict[str, str]:
    from acclimate.data.classes import shorten_classes

    anatomy, parts = artifact.anatomy, artifact.parts
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
    return {
        "artifact": f"{out} ({out.stat().st_size / 1024:,.0f} KiB)",
        "model": f"{anatomy.n_classes} classes, {anatomy.n_features} features before "
        f'the head "{anatomy.head}"',
        "classes": printable(shorten_classes(artifact.classes or ())),
        "source": f"{features['n_samples']:,} images, of "
        f"{'whose labelled pixels' if anatomy.is_dense else 'which'} the model gets "
        f"{100 * features['error']:.1f} % wrong",
        **facts,
        "time": f"{seconds:.1f} s in {features['precision']}",
    }
