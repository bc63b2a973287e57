"""`acclimate adapt`: predict a folder of images, and learn from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.adapt_inputs import check_names, find_images_folder, list_beside
from acclimate.cli.models import load_model
from acclimate.cli.options import (
    ArtifactOption,
    ClassesOption,
    DeviceOption,
    GuardOption,
    HeadOption,
    LogitsAtOption,
    MeanOption,
    MethodOption,
    MetricsOption,
    ModelOption,
    NormalizationOption,
    PresetOption,
    SettingsOption,
    SizeOption,
    SpeedOption,
    StdOption,
    TensorboardOption,
    TermsOption,
    WeightsOption,
    get_guard,
    get_logits_at,
    get_normalization,
    get_size,
    make_config,
    parse_size,
    refuse_same_file,
)
from acclimate.cli.terminal import (
    get_console,
    make_facts,
    show_progress,
    show_unreadable,
    show_warnings,
)
from acclimate.errors import InvalidConfig

if TYPE_CHECKING:
    from acclimate.bench.predictions import PredictionSummary
    from acclimate.methods.method import Counts

_SHOWN_LABELS = 8


def adapt(
    images: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGES_DIR",
            help="Images without labels, any nesting; of a folder with `images` and `masks`, the "
            "images.",
        ),
    ],
    model: ModelOption,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE|DIR",
            help="Predictions to write: .csv or .parquet; a folder, for the masks of a model that "
            "predicts every pixel.",
        ),
    ],
    weights: WeightsOption = None,
    artifact: ArtifactOption = None,
    method: MethodOption = "steady",
    settings: SettingsOption = None,
    preset: PresetOption = None,
    terms: TermsOption = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Batch size; default: 200, for masks 2.")
    ] = None,
    size: SizeOption = None,
    normalization: NormalizationOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    head: HeadOption = None,
    logits_at: LogitsAtOption = None,
    classes: ClassesOption = None,
    guard: GuardOption = None,
    speed: SpeedOption = "exact",
    seed: Annotated[int, typer.Option(help="Of all random draws.")] = 0,
    device: DeviceOption = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite, or start anew.")] = False,
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep what was learned in this file.")
    ] = None,
    save_every: Annotated[int, typer.Option(help="Batches between two saved states.")] = 1,
    metrics: MetricsOption = None,
    tensorboard: TensorboardOption = None,
) -> None:
    """Predict a folder of images with a model that adapts to them as it goes.

    Images are taken in the order of their paths, and each batch is predicted before the model
    learns from it. Size and normalisation of the inputs come from the artifact. Of a model that
    predicts every pixel, a mask of class numbers is written for each image, as large as the image
    file; **--size** then brings images to the model whole, and crops nothing.

    A crash loses at most the batch in flight: run the same command again with **--resume**, and the
    result is that of an uninterrupted call.

    Example: `acclimate adapt photos --model my_models:resnet --weights resnet.pt --artifact
    resnet.acclimate --out predictions.csv`
    """
    from acclimate.adaptation import adapt as adapt_model
    from acclimate.artifact import Artifact
    from acclimate.bench.predictions import open_predictions, predict_folder
    from acclimate.functional.inputs import Normalization
    from acclimate.introspect import ModelInfo
    from acclimate.methods import get_method
    from acclimate.metrics import MetricsWriter
    from acclimate.streams.folder import FolderStream, read_classes
    from acclimate.zoo.named import find_classes

    # Whatever can be refused is refused before the model is loaded.
    inputs = {"--weights": weights, "--artifact": artifact, "--classes": classes}
    refuse_same_file({"--out": out, **({} if state is None else {"--state": state})}, inputs)
    file = open_predictions(out, resume=resume, force=force, state=state, images=images)
    refuse_same_file(list_beside(file), inputs)
    writes = {} if metrics is None else {"--metrics": metrics}
    refuse_same_file(writes, {**inputs, "--out": out, "--state": state})
    writer = MetricsWriter(metrics, tensorboard)
    folder = find_images_folder(images)
    config = make_config(get_method(method).config_class, preset, parse_settings(settings or []))
    names, wanted = None if classes is None else read_classes(classes), parse_size(size)
    normal: Normalization | None = get_normalization(normalization, mean, std)
    with show_warnings(), show_progress() as progress:
        prepared = None if artifact is None else Artifact.load(artifact)
        if prepared is not None:
            normal = normal or prepared.normalization
            if names is not None and classes is not None:
                whose = "The artifact was prepared with"
                check_names(names, classes, prepared.classes, whose)
            names = names or prepared.classes
        net = load_model(model, weights, device)
        if names is not None and classes is not None and weights is not None:
            check_names(names, classes, find_classes(weights), "the weights were trained with")
        adapted = adapt_model(
            net,
            method,
            prepared,
            config=config,
            terms=[] if terms is None else [name.strip() for name in terms.split(",")],
            info=ModelInfo(head=head, logits_at=get_logits_at(logits_at), normalization=normal),
            seed=seed,
            guard=get_guard(guard),
            speed=speed,
        )
        # Whoever predicts every pixel takes images of any size, and every pixel is wanted.
        shape = wanted if file.holds_masks else get_size(wanted, prepared)
        n = batch_size if batch_size is not None else 2 if file.holds_masks else 200
        stream = FolderStream(folder, shape, n, normal, squash=file.holds_masks)
        try:
            with writer:
                summary = predict_folder(
                    adapted,
                    stream,
                    file,
                    classes=names,
                    save_every=save_every,
                    progress=progress,
                    metrics=writer or None,
                )
        except KeyboardInterrupt:
            get_console(stderr=True).print(
                "Interrupted. Run the same command again with --resume to continue."
            )
            raise
    show_unreadable(stream.unreadable)
    console = get_console()
    console.print(make_facts("Predicted", _facts(summary, adapted.counts, out, state)))
    if adapted.guard is not None:
        console.print("\nGuard", style="bold")
        console.print(str(adapted.report()), soft_wrap=True)


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """Return hyper-parameters given as NAME=VALUE, with numbers and true or false understood."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InvalidConfig(
                "malformed",
                f'Expected --set NAME=VALUE, such as lr=1e-4, found "{text}".',
                option="settings",
                found=text,
            )
        values[name.strip()] = _parse(value.strip())
    return values


def _parse(value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _facts(
    summary: PredictionSummary, counts: Counts, out: Path, state: Path | None
) -> dict[str, str]:
    skipped = ", ".join(f"{n} {reason}" for reason, n in counts.skipped.items())
    taken = f", {summary.n_resumed} of them taken over" if summary.n_resumed else ""
    top = list(summary.labels.items())[:_SHOWN_LABELS]
    labels = ", ".join(f"{label}: {100 * n / summary.n_images:.0f} %" for label, n in top)
    shown = "labels" if out.suffix and not out.is_dir() else "most pixels"
    rest = len(summary.labels) - len(top)
    facts = {
        "predictions": str(out),
        "images": f"{summary.n_images:,} in {summary.n_batches:,} batches{taken}",
        "speed": f"{summary.images_per_second:,.0f} images/s",
        "updates": f"{counts.updates:,}" + (f"; skipped: {skipped}" if skipped else ""),
        "restored": f"{counts.restored} times, by the guard or the method"
        if counts.restored
        else "",
        shown: labels + (f", {rest} more" if rest else ""),
        "state": "" if state is None else str(state),
    }
    return {name: value for name, value in facts.items() if value}
