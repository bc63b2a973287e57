"""`acclimate eval`: measure methods on labelled data, side by side."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import acclimate.cli.eval_options as o
from acclimate.cli.adapt import parse_settings
from acclimate.cli.data import RootOption
from acclimate.cli.models import load_model
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
    SizeOption,
    SpeedOption,
    StdOption,
    TensorboardOption,
    WeightsOption,
    get_guard,
    get_logits_at,
    get_normalization,
    get_size,
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
    from acclimate.bench.outcome import Outcome
    from acclimate.comparison import Comparison, Job


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

    Example: `acclimate eval --model my_models:resnet --weights resnet.pt --artifact
    resnet.acclimate --data photos/labelled --method source,norm,tent,swr_nsp`
    """
    from acclimate import comparison as c
    from acclimate.artifact import Artifact
    from acclimate.introspect import ModelInfo
    from acclimate.methods.compute import Speed
    from acclimate.metrics import MetricsWriter
    from acclimate.streams.folder import read_classes
    from acclimate.zoo.named import find_classes

    # Whatever can be refused is refused before the model is loaded.
    place = out if out is not None else Path(f"eval-{Path(data).resolve().name}")
    ledger = c.Ledger(place, resume, force)
    writer = MetricsWriter(metrics, tensorboard)
    level, guarded = Speed.of(speed), get_guard(guard)
    methods = c.choose_methods(split_names(method), reveal_labels)
    configs = c.make_configs(methods, parse_settings(settings or []), preset)
    options: dict[str, Any] = {"stream": stream, "batch_size": batch_size, "times": times}
    options |= {"delta": delta, "ratio": ratio, "episodic": episodic, "clean_probe": clean_probe}
    options |= {"epochs": epochs, "window": window}
    options |= {"n_batches": n_batches, "n_classes": n_classes, "frames": frames}
    options |= {"n_scenes": n_scenes, "period": period, "share": share, "n_samples": n_samples}
    options |= {"domain_correlation": domain_correlation, "class_correlation": class_correlation}
    options |= {"domain_ratio": domain_ratio, "class_ratio": class_ratio}
    asked = c.Protocol(**options, order=order or "file")
    if order is not None and stream in c.OWN_ORDERS:
        raise BadInput(
            "not_applicable",
            f"The stream {stream} defines its own order. Remove --order.",
            option="order",
        )
    normal = get_normalization(normalization, mean, std)
    names, wanted = None if classes is None else read_classes(classes), parse_size(size)
    chosen = None if corruptions is None else split_names(corruptions)
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
    with show_warnings(), show_progress() as progress:
        prepared = None if artifact is None else Artifact.load(artifact)
        if prepared is not None:
            normal, names = normal or prepared.normalization, names or prepared.classes
        request = c.Request(
            corruptions=chosen,
            severities=split_numbers(severity, "severity"),
            n=images,
            size=get_size(wanted, prepared),
            classes=names,
            root=data_dir,
            ignore_label=ignore_label,
            progress=progress,
        )
        found = c.load_data(data, request)
        if asked.needs_clean and found.clean is None:
            raise BadInput(
                "no_clean_images",
                f'The data set "{data}" has no clean images. {asked.without_clean}',
                name=data,
            )
        if size is not None and not found.is_folder:
            raise BadInput(
                "not_applicable",
                f"The option --size applies only to folders of images; the images of {data} have "
                "a fixed size. Remove it.",
                option="size",
            )
        if ignore_label != 255 and not found.palette:
            raise BadInput(
                "not_applicable",
                f"The option --ignore-label applies only to data with masks; {data} has none. "
                "Remove it.",
                option="ignore_label",
            )
        preparation = None
        if prepared is None and c.find_needs(methods, guarded):
            preparation = c.Preparation(
                source=c.check_source(source_data or found.source, methods),
                n=source_images,
                size=wanted,
                ignore_label=ignore_label,
                classes=found.classes,
                root=data_dir,
                seed=seed,
            )
        net = load_model(model, weights, device, len(found.classes))
        if split_names(method) == (c.ALL,):
            unsuitable = c.find_unsuitable(
                net, configs, prepared, predicts_pixels=bool(found.palette)
            )
            show_left_out(unsuitable)
            configs = {name: own for name, own in configs.items() if name not in unsuitable}
        job = c.Job(
            model=net,
            methods=configs,
            data=found,
            protocol=c.Protocol(
                **options, order=order or ("shuffled" if found.is_folder else "file")
            ),
            wrapping=c.Wrapping(
                speed=level,
                artifact=prepared,
                info=ModelInfo(head=head, logits_at=get_logits_at(logits_at), normalization=normal),
                guard=guarded,
            ),
            seeds=tuple(range(seed, seed + seeds)),
            side_by_side=not one_by_one,
            reveal_labels=reveal_labels,
            notes=_notes(context, model, weights),
            preparation=preparation,
            trained_classes=None if weights is None else find_classes(weights),
        )
        job = c.check_job(job)
        try:
            with writer:
                result = c.run_job(job, ledger, progress, writer or None)
        except KeyboardInterrupt:
            get_console(stderr=True).print(
                "Interrupted. Run the same command again with --resume to continue."
            )
            raise
    show_unreadable(found.unreadable)
    _show(result, job, place)


def _show(result: Comparison, job: Job, place: Path) -> None:
    from acclimate.data.classes import shorten_classes
    from acclimate.report import error_table, summarize

    console = get_console()
    facts = result.provenance
    console.print(f"{facts['model']} on {job.data.title}", style="bold")
    guarded = {
        True: "; every method under guard",
        "watch": "; every method watched by a guard",
    }.get(job.wrapping.guard, "")
    console.print(facts["protocol_line"] + guarded, style="dim", soft_wrap=True)
    for group in summarize(_list_outcomes(result, job)).groups:
        error_table(group).show(console)
    console.print(
        make_facts(
            "",
            {
                "classes": printable(shorten_classes(job.data.classes)),
                "records": str(place / "records.jsonl"),
                "numbers": f"{place / 'result.json'}, with the full protocol",
            },
        )
    )


def _list_outcomes(result: Comparison, job: Job) -> list[Outcome]:
    """Return the runs of a comparison as outcomes of jobs, for reports."""
    from acclimate.bench.outcome import Entry, Outcome
    from acclimate.bench.spec import JobSpec
    from acclimate.comparison import OWN_ORDERS

    protocol = job.protocol.to_dict()
    if job.protocol.stream in OWN_ORDERS:
        del protocol["order"]
    return [
        Outcome(
            Entry(
                JobSpec(
                    data=job.data.name,
                    protocol=protocol,
                    method=run.method,
                    options=job.methods[run.method].to_dict(),
                    guard=job.wrapping.guard,
                    reveal_labels=job.reveal_labels,
                    seed=run.seed,
                ),
                run.method,
            ),
            run.result,
            result.provenance,
        )
        for run in result.runs
    ]


def _notes(context: typer.Context, model: str, weights: Path | None) -> dict[str, Any]:
    from acclimate.zoo.readers import sha256_of

    file = None if weights is None else {"file": str(weights), "sha256": sha256_of(weights)}
    return {"command": _command(context), "model": model, "weights": file}


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
