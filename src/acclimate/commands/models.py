"""Look at a model, prepare an artifact, and predict a folder of images."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acclimate.commands.base import (
    RUN,
    ArtifactOption,
    ClassNames,
    DataDir,
    Force,
    IgnoreLabel,
    InputOptions,
    Notify,
    Seed,
    StreamRunOptions,
    command,
    parse_numbers,
    refuse_overwriting,
    select_given,
)
from acclimate.errors import BadInput, check_at_least, check_output
from acclimate.options import changed, hp, options, split_names
from acclimate.progress import Progress

if TYPE_CHECKING:
    from torch import Tensor

    from acclimate.artifact import Artifact
    from acclimate.bench.predictions import Predictions, PredictionSummary
    from acclimate.data import Batches
    from acclimate.doctor import Diagnosis
    from acclimate.methods.method import Method

_CLASSES = "Class names in the order of the logits, one per line; default: {}."


# doctor -------------------------------------------------------------------------------------------


def _parse_shape(value: Any, option: str) -> tuple[int, ...]:
    shape = parse_numbers(value.replace("x", ",") if isinstance(value, str) else value, option)
    if not all(shape):
        raise BadInput(
            "malformed",
            f'Expected --input-shape as C,H,W, such as 3,224,224, found "{value}".',
            option=option,
            found=value,
        )
    return shape


@options
class DoctorOptions(ArtifactOption, InputOptions):
    images: Path | None = hp(
        None,
        metavar="DIR",
        help="Folder of images such as the model will receive, with or without subfolders.",
    )
    input_shape: tuple[int, ...] | None = hp(
        None,
        metavar="C,H,W",
        parse=_parse_shape,
        help="Shape of one input, instead of --images: a random batch is used.",
    )
    artifact: Path | None = changed(ArtifactOption, "artifact", None, help="Artifact to check.")
    batch_size: int = hp(200, help="Batch size to be used.")


@dataclass(frozen=True)
class Examined:
    """What `doctor` found.

    Attributes:
        diagnosis: The findings.
        is_random: Whether the batch was random numbers.
        unreadable: Images that were left out, with the reason.
    """

    diagnosis: Diagnosis
    is_random: bool
    unreadable: Mapping[Path, str]


@command(DoctorOptions)
def doctor(o: DoctorOptions) -> Examined:
    """Check a model and a batch, and report what would happen; nothing is changed.

    Finds the head; checks normalisation layers, dropout, frozen parameters, the range of the
    inputs and the batch size; reports what each method would move, whether an artifact fits, and
    whether it allows a guard. Batches that are too small for BatchNorm statistics are a problem.
    The exit code is 1 if there is a problem.

    Example: `acclimate doctor --model my_models:resnet --weights resnet.pt --images photos
    --size 224 --normalization imagenet`
    """
    from acclimate.doctor import diagnose
    from acclimate.streams.folder import FolderStream

    artifact = o.load_artifact()
    info = o.get_info(artifact)
    unreadable: Mapping[Path, str] = {}
    check_at_least("batch_size", o.batch_size, 1)
    if o.images is not None:
        is_dense = artifact is not None and artifact.info.is_dense
        size = o.get_size(artifact)
        stream = FolderStream(o.images, size, o.batch_size, info.normalization, squash=is_dense)
        x = next(stream.batches()).x
        unreadable = stream.unreadable
    else:
        shape = o.input_shape or (artifact and tuple(artifact.card["input_shape"]))
        if not shape:
            raise BadInput(
                "missing_option",
                "Expected an input for the model, found none. Pass --images DIR, --input-shape "
                "C,H,W or --artifact.",
                option="images",
            )
        x = make_noise(o.batch_size, shape)
        x = x if info.normalization is None else info.normalization.normalize(x)
    diagnosis = diagnose(o.load_model(o.device), x, artifact, info, o.batch_size)
    return Examined(diagnosis, o.images is None, unreadable)


def make_noise(n: int, shape: Sequence[int]) -> Tensor:
    import torch

    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(0))


# prepare ------------------------------------------------------------------------------------------


@options
class PrepareOptions(Force, DataDir, Seed, ClassNames, IgnoreLabel, InputOptions):
    source: Path = hp(
        argument=True,
        metavar="SOURCE_DIR",
        help="Labelled images: `SOURCE_DIR/<class>/<image>`. For a model that predicts every "
        "pixel: images and masks, as for training, of which the split `train` is taken; or "
        "camvid, cityscapes, builtin-scenes.",
    )
    out: Path = hp(help="The artifact to write, such as resnet.acclimate.")
    method: tuple[str, ...] | None = hp(
        None,
        parse=split_names,
        help="Prepare what these methods need, such as eata,sar; default: what steady and swr_nsp "
        "need.",
    )
    contrast_head: Path | None = hp(
        None,
        help="Projection head that `acclimate train --objective simclr` wrote; ttt_pp needs it.",
    )
    accuracy: bool = hp(
        True,
        flags=("--accuracy/--no-accuracy",),
        help="Prepare the part accuracy, which the guard needs and which takes the longest. By "
        "default it is prepared where the extra corruptions is installed.",
    )
    samples: int = hp(1024, help="Number of source images that the penalty is measured on.")
    granularity: str = hp(
        "tensor", help="What each penalty applies to: tensor, module, channel or parameter."
    )
    projector: str | int = hp(
        "auto",
        metavar="N|auto",
        help="Layers of the projector: 0 to 3, or auto (0 for few classes).",
    )
    epochs: int = hp(20, help="Epochs of training a projector.")
    batch_size: int | None = hp(None, help="Batch size; default: 128, or 4 for images with masks.")
    speed: Literal["exact", "fast"] = hp(
        "exact",
        metavar="LEVEL",
        help="exact; or fast: bfloat16 where the processor supports it, otherwise the same as "
        "exact.",
    )
    classes: Path | None = changed(
        ClassNames, "classes", None, help=_CLASSES.format("folders by name")
    )


@dataclass(frozen=True)
class Prepared:
    """What `prepare` made.

    Attributes:
        artifact: The artifact.
        options: What was asked for.
        seconds: Time spent.
        unreadable: Images that were left out, with the reason.
    """

    artifact: Artifact
    options: PrepareOptions
    seconds: float
    unreadable: Mapping[Path, str]


@command(PrepareOptions)
def prepare(o: PrepareOptions, *, progress: Progress | None = None) -> Prepared:
    """Compute on source data what a model needs to adapt later without it.

    Runs once, where the source (training) data is; a few thousand labelled images are enough. The
    result is one file, the artifact, which goes with the model.

    Example: `acclimate prepare data/train --model my_models:resnet --weights resnet.pt --size 224
    --normalization imagenet --out resnet.acclimate`
    """
    refuse_overwriting(o, {"--out": o.out}, "weights", "contrast_head", "classes")
    check_output(o.out, o.force)
    from acclimate.data.loading import open_source
    from acclimate.data.masks import has_masks
    from acclimate.data.request import SourceRequest
    from acclimate.parts import Contrast, Penalty, Prototypes
    from acclimate.preparation import choose_parts
    from acclimate.preparation import prepare as prepare_model

    depth: Any = int(o.projector) if str(o.projector).isdecimal() else o.projector
    contrast = Contrast(head=o.contrast_head)
    given = {
        "penalty": Penalty(n_samples=o.samples, granularity=o.granularity),
        "prototypes": Prototypes(depth=depth, epochs=o.epochs),
        "contrast": contrast,
    }
    chosen = choose_parts(o.method, None if o.contrast_head is None else (contrast,))
    # Accuracy is not asked for by name, so that it is left out where it cannot be prepared.
    parts = [given.get(part.name, part) for part in chosen if part.name != "accuracy"]
    if o.method is None and has_masks(str(o.source)):
        parts = [part for part in parts if part.name != "prototypes"]
    info = o.get_info()
    began = time.perf_counter()
    asked = select_given(o, SourceRequest)
    asked |= {"normalization": info.normalization, "classes": o.read_classes()}
    data = open_source(str(o.source), o.data_dir, **asked)
    model = o.load_model(o.device)
    _check_count(model, data, o)
    artifact = prepare_model(
        model,
        data,
        method=o.method or (),
        parts=parts,
        accuracy=o.accuracy,
        info=info,
        classes=data.classes,
        seed=o.seed,
        speed=o.speed,
        progress=progress,
    )
    artifact.save(o.out)
    return Prepared(artifact, o, time.perf_counter() - began, data.unreadable)


def _check_count(model: Any, data: Batches, o: PrepareOptions) -> None:
    """Refuse a source that has not as many classes as the model, and say which it has."""
    from acclimate.data.classes import shorten_classes
    from acclimate.forward import get_logits
    from acclimate.introspect import try_forward

    x = data.peek()[:2]
    x = x.to(next(model.parameters(), x).device)
    n_logits = get_logits(try_forward(model, x), o.logits_at).shape[1]
    if n_logits != len(data.classes):
        empty = "" if data.has_masks else "; a class without images may be an empty folder"
        raise BadInput(
            "count_mismatch",
            f"Expected {n_logits} class names, the number of logits of the model, found in "
            f"{o.source} {shorten_classes(data.classes)}. All classes of the model are "
            f"needed{empty}. Or pass all names in the order of the logits with --classes FILE.",
            expected=n_logits,
            found=len(data.classes),
        )


# adapt --------------------------------------------------------------------------------------------


@options
class AdaptOptions(ClassNames, StreamRunOptions):
    images: Path = hp(
        argument=True,
        metavar="IMAGES_DIR",
        help="Folder of images without labels, with or without subfolders. Of a folder with "
        "`images` and `masks`, only the images are used.",
    )
    out: Path = hp(
        metavar="FILE|DIR",
        help="File of predictions to write, .csv or .parquet; for a model that predicts every "
        "pixel, a folder of masks.",
    )
    batch_size: int | None = hp(
        None, help="Batch size; default: 200, or 2 for a model that predicts every pixel."
    )
    state: Path | None = hp(None, help="File to keep the adapted state in.")
    classes: Path | None = changed(
        ClassNames, "classes", None, help=_CLASSES.format("those of the artifact")
    )
    save_every: int = hp(1, panel=RUN, help="Batches between two saved states.")


@dataclass(frozen=True)
class Predicted:
    """What `adapt` wrote and learned.

    Attributes:
        summary: Counts of the predictions.
        adapted: The adapted model, as it is at the end.
        file: The output.
        unreadable: Images that were left out, with the reason.
    """

    summary: PredictionSummary
    adapted: Method
    file: Predictions
    unreadable: Mapping[Path, str]


@command(AdaptOptions)
def adapt(
    o: AdaptOptions, *, progress: Progress | None = None, notify: Notify | None = None
) -> Predicted:
    """Predict a folder of images with a model that adapts to them as it goes.

    Images are taken in the order of their paths, and each batch is predicted before the model
    learns from it. Size and normalisation of the inputs come from the artifact. For a model that
    predicts every pixel, a mask of class numbers is written for each image, as large as the image
    file; **--size** then resizes whole images, and crops nothing.

    A crash loses at most the batch in flight: run the same command again with **--resume**, and the
    result is that of an uninterrupted call.

    Example: `acclimate adapt photos --model my_models:resnet --weights resnet.pt --artifact
    resnet.acclimate --out predictions.csv`
    """
    from acclimate.adaptation import adapt as adapt_model
    from acclimate.bench import predictions
    from acclimate.metrics import MetricsWriter
    from acclimate.streams.folder import FolderStream
    from acclimate.zoo.named import find_classes

    # Whatever can be refused is refused before the model is loaded.
    inputs = ("weights", "artifact", "classes")
    refuse_overwriting(o, {"--out": o.out, "--state": o.state}, *inputs)
    refuse_overwriting(o, {"--metrics": o.metrics}, *inputs, "out", "state")
    file = predictions.Predictions(
        o.out, resume=o.resume, force=o.force, state=o.state, images=o.images
    )
    beside = f"The file {file.part.name}, which is written next to --out,"
    refuse_overwriting(o, {beside: file.part}, *inputs)
    writer = MetricsWriter(o.metrics, o.tensorboard)
    folder = _find_images_folder(o.images)
    if folder != o.images and notify is not None:
        notify(f"{o.images} has images and masks: only those in {folder} are predicted.")
    config = o.get_config()
    names = o.read_classes()
    artifact = o.load_artifact()
    info = o.get_info(artifact)
    if artifact is not None:
        _check_names(names, o.classes, artifact.classes, "The artifact was prepared with")
    model = o.load_model(o.device)
    if names is not None and o.weights is not None:
        known = find_classes(o.weights)
        _check_names(names, o.classes, known, "the weights were trained with")
    adapted = adapt_model(
        model,
        o.method,
        artifact,
        config=config,
        terms=list(o.terms or ()),
        info=info,
        seed=o.seed,
        guard=o.get_guard(),
        speed=o.speed,
    )
    # Whoever predicts every pixel takes images of any size, and every pixel is wanted.
    is_dense = file.holds_masks
    n = o.batch_size if o.batch_size is not None else 2 if is_dense else 200
    size = o.size if is_dense else o.get_size(artifact)
    stream = FolderStream(folder, size, n, info.normalization, squash=is_dense)
    with writer:
        summary = predictions.predict_folder(
            adapted,
            stream,
            file,
            classes=names or (None if artifact is None else artifact.classes),
            save_every=o.save_every,
            progress=progress,
            metrics=writer or None,
        )
    return Predicted(summary, adapted, file, stream.unreadable)


def _find_images_folder(folder: Path) -> Path:
    """Return where the images are: beside masks, the folder `images`; else the folder itself."""
    from acclimate.data import SETS
    from acclimate.data.masks import MaskSet, guess_set

    layout = guess_set(folder)
    if layout is None:
        return folder
    images = folder / "images"
    if layout == "mask-folder" and images.is_dir():
        return images
    if layout == "cityscapes" and not (folder / "gtFine").is_dir():
        return folder
    entry = SETS[layout]
    paths = []
    if isinstance(entry, MaskSet):
        splits = entry.layout.list_splits(folder, entry.splits)
        paths = [folder / entry.layout.images.format(split=split) for split in splits]
    named = f": {' or '.join(map(str, paths))}" if paths else " alone"
    raise BadInput(
        "wrong_layout",
        f"Expected a folder with only images; {folder} also contains masks, which would be "
        f"predicted as images. Pass the folder of the images{named}.",
        path=folder,
    )


def _check_names(
    names: Sequence[str] | None, file: Path | None, known: Sequence[str] | None, whose: str
) -> None:
    """Refuse names of classes in another order than is known; others may stand for the same."""
    places = {name: place for place, name in enumerate(known or ())}
    for place, name in enumerate(names or ()):
        if places.get(name, place) != place:
            shown = ", ".join([*(known or ())[:5], *["…"] * (len(places) > 5)])
            raise BadInput(
                "class_mismatch",
                f'{whose} the classes {shown}, where "{name}" has the index {places[name]}; in '
                f"{file} it has the index {place}, so labels would be wrong. Pass the names in the "
                "same order, or remove --classes.",
                found=tuple(names or ()),
                expected=tuple(known or ()),
            )
