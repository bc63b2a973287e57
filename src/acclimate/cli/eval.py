"""`acclimate eval`: measure methods on labelled data, side by side."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import acclimate.cli.eval_options as o
from acclimate.cli.adapt import parse_settings
from acclimate.cli.options import (
    DeviceOption,
    GuardOption,
    HeadOption,
    IgnoreLabelOption,
    LogitsAtOption,
    MeanOption,
    MetricsOption,
    ModelOption,
    NormalizationOption,
    PresetOption,
    RootOption,
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
    in_panels,
    parse_size,
    split_names,
    split_numbers,
)
from acclimate.cli.terminal import (
    get_console,
    make_facts,
    printable,
    show_left_out,
    show_progress,
    show_unreadable,
    show_warnings,
)
from acclimate.errors import BadInput

if TYPE_CHECKING:
    from acclimate.artifact import Artifact
    from acclimate.bench.side_by_side import Comparison
    from acclimate.data.request import Data


@in_panels(o.PANELS)
def evaluate(
    context: typer.Context,
    model: ModelOption,
    data: o.Data,
    method: o.Methods = "source,norm,tent,swr_nsp",
    weights: WeightsOption = None,
    artifact: o.ArtifactFile = None,
    source_data: o.SourceData = None,
    source_images: o.SourceImages = None,
    severity: o.Severity = "5",
    corruptions: o.Corruptions = None,
    images: o.Images = None,
    stream: o.Stream = "reset_each",
    batch_size: o.BatchSize = 200,
    order: o.Order = None,
    times: o.Times = None,
    delta: o.Delta = None,
    ratio: o.Ratio = None,
    n_batches: o.NBatches = None,
    n_classes: o.NClasses = None,
    frames: o.Frames = None,
    n_scenes: o.NScenes = None,
    period: o.Period = None,
    share: o.Share = None,
    n_samples: o.NSamples = None,
    domain_correlation: o.DomainCorrelation = None,
    class_correlation: o.ClassCorrelation = None,
    domain_ratio: o.DomainRatio = None,
    class_ratio: o.ClassRatio = None,
    episodic: o.Episodic = False,
    clean_probe: o.CleanProbe = False,
    epochs: o.Epochs = 1,
    window: o.Window = 0,
    settings: o.Settings = None,
    reveal_labels: o.RevealLabels = False,
    preset: PresetOption = None,
    terms: TermsOption = None,
    size: SizeOption = None,
    ignore_label: IgnoreLabelOption = 255,
    normalization: NormalizationOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    head: HeadOption = None,
    logits_at: LogitsAtOption = None,
    classes: o.Classes = None,
    guard: GuardOption = None,
    speed: SpeedOption = "exact",
    seed: o.Seed = 0,
    seeds: o.Seeds = 1,
    one_by_one: o.OneByOne = False,
    checkpoint_every: o.CheckpointEvery = None,
    device: DeviceOption = "auto",
    data_dir: RootOption = None,
    out: o.Out = None,
    resume: o.Resume = False,
    force: o.Force = False,
    metrics: MetricsOption = None,
    tensorboard: TensorboardOption = None,
) -> None:
    """Measure how much each method helps a model, on labelled data.

    All methods meet the same batches; the labels are used to count errors only. Prints a table, and
    keeps a record of every batch, the numbers and the full protocol in a folder.

    Methods such as swr_nsp need an artifact. If none is given, it is prepared from the training
    images where these are known, and kept in the folder.

    The folder is that of a suite: **acclimate bench report** makes tables and charts of it.
    `--method tent,tent+swr` compares a method with and without a term.

    Example: `acclimate eval --model my_models:resnet --weights resnet.pt --artifact
    resnet.acclimate --data photos/labelled --method source,norm,tent,swr_nsp`
    """
    from acclimate.artifact import Artifact
    from acclimate.bench import Preparing
    from acclimate.bench.execute import RunOptions
    from acclimate.bench.job import is_folder
    from acclimate.bench.load import Loader, find_unsuitable
    from acclimate.bench.side_by_side import (
        ALL,
        check_place,
        choose_methods,
        make_comparison,
        run_side_by_side,
    )
    from acclimate.bench.suite import ARTIFACTS
    from acclimate.metrics import MetricsWriter

    # Whatever can be refused is refused before the model is loaded.
    place = out if out is not None else Path(f"eval-{Path(data).resolve().name}")
    check_place(place, resume, force)
    writer = MetricsWriter(metrics, tensorboard)
    methods = choose_methods(split_names(method), reveal_labels)
    if artifact is not None and (source_data is not None or source_images is not None):
        raise BadInput(
            "conflicting_options",
            "Expected either --artifact, or --source-data and --source-images, found both. With "
            "an artifact, none is prepared from source data. Remove one of them.",
            options=("artifact", "source_images" if source_data is None else "source_data"),
        )
    if seeds < 1:
        raise BadInput(
            "out_of_range", f"Expected at least 1 seed, found {seeds}.", option="seeds", found=seeds
        )
    if checkpoint_every is not None and checkpoint_every < 1:
        raise BadInput(
            "out_of_range",
            f"Expected --checkpoint-every to be at least 1 batch, found {checkpoint_every}.",
            option="checkpoint_every",
            found=checkpoint_every,
        )
    prepared = None if artifact is None else Artifact.load(artifact)
    normal, wanted = get_normalization(normalization, mean, std), parse_size(size)
    if prepared is not None:
        normal = normal or prepared.normalization
        wanted = get_size(wanted, prepared) if is_folder(data) else wanted
    protocol = {
        "stream": stream,
        "batch_size": batch_size,
        "order": order,
        "times": times,
        "delta": delta,
        "ratio": ratio,
        "n_batches": n_batches,
        "n_classes": n_classes,
        "frames": frames,
        "n_scenes": n_scenes,
        "period": period,
        "share": share,
        "n_samples": n_samples,
        "domain_correlation": domain_correlation,
        "class_correlation": class_correlation,
        "domain_ratio": domain_ratio,
        "class_ratio": class_ratio,
        "episodic": episodic,
        "clean_probe": clean_probe,
        "epochs": epochs,
        "window": window,
    }
    shared: dict[str, Any] = {
        "model": model,
        "weights": None if weights is None else str(weights),
        "normalization": None if normal is None else normal.to_dict(),
        "head": head,
        "logits_at": get_logits_at(logits_at),
        "data": data,
        "corruptions": None if corruptions is None else split_names(corruptions),
        "severities": split_numbers(severity, "severity"),
        "images": images,
        "size": "x".join(map(str, wanted)) if isinstance(wanted, tuple) else wanted,
        "ignore_label": ignore_label,
        "classes": _get_classes(classes, prepared),
        "protocol": {name: value for name, value in protocol.items() if value is not None},
        "preset": preset,
        "guard": get_guard(guard),
        "speed": speed,
        "reveal_labels": reveal_labels,
        "prepare": Preparing(
            source=source_data,
            images=source_images,
            seed=seed,
            artifact=None if artifact is None else str(artifact),
        ),
    }
    values = parse_settings(settings or [])
    chosen: dict[str, Any] = {
        "terms": () if terms is None else split_names(terms),
        "seeds": range(seed, seed + seeds),
        "title": f"{model} on {data}",
    }
    suite = make_comparison(shared, methods, values, **chosen)
    with show_warnings(), show_progress() as progress:
        loader = Loader(place / ARTIFACTS, device, progress, data_dir)
        if split_names(method) == (ALL,):
            first = suite.entries[0].spec
            found = loader.load_data(first)
            unsuitable = find_unsuitable(
                loader.load_model(first, len(found.classes)),
                {entry.spec.method: entry.spec.get_config() for entry in suite.entries},
                prepared,
                predicts_pixels=bool(found.palette),
            )
            show_left_out(unsuitable)
            left = [name for name in methods if name not in unsuitable]
            suite = make_comparison(shared, left, values, **chosen)
        options = RunOptions(checkpoint_every=checkpoint_every, command=_command(context))
        how: dict[str, Any] = {"resume": resume, "force": force, "one_by_one": one_by_one}
        try:
            with writer:
                result = run_side_by_side(
                    suite,
                    place,
                    loader,
                    options=options,
                    progress=progress,
                    metrics=writer or None,
                    **how,
                )
        except KeyboardInterrupt:
            get_console(stderr=True).print(
                "Interrupted. Run the same command again with --resume to continue."
            )
            raise
    used = loader.load_data(suite.entries[0].spec)
    show_unreadable(used.unreadable)
    _show(result, used, place)


def _get_classes(file: Path | None, artifact: Artifact | None) -> str | tuple[str, ...] | None:
    """Return the file of the class names, or those of the artifact."""
    if file is not None:
        return str(file)
    names = None if artifact is None else artifact.classes
    return None if names is None else tuple(names)


def _show(result: Comparison, data: Data, place: Path) -> None:
    from acclimate.data.classes import shorten_classes
    from acclimate.report import error_table, summarize

    console = get_console()
    facts = result.provenance
    console.print(f"{facts['model']} on {data.title}", style="bold")
    guarded = {
        True: "; every method under guard",
        "watch": "; every method watched by a guard",
    }.get(facts["settings"].get("guard", False), "")
    console.print(facts["protocol_line"] + guarded, style="dim", soft_wrap=True)
    for group in summarize(result.outcomes).groups:
        error_table(group).show(console)
    console.print(
        make_facts(
            "",
            {
                "classes": printable(shorten_classes(data.classes)),
                "records": str(place / "jobs"),
                "numbers": f"{place / 'result.json'}, with the full protocol",
            },
        )
    )


def _command(context: typer.Context) -> str:
    """Return the command line, with what differs from the defaults."""
    words = ["acclimate", "eval"]
    for option in context.command.params:
        value = context.params.get(str(option.name))
        if option.name in ("resume", "force") or value in (None, option.default, [], ()):
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            if item is False:  # the other word of a pair
                words += option.secondary_opts
            else:
                words += [option.opts[0]] if item is True else [option.opts[0], str(item)]
    return shlex.join(words)
