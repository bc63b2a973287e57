"""`acclimate train`: train a source model. Its options are made from the settings of all tasks."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from acclimate.cli.options import DeviceOption, parse_size, refuse_same_file
from acclimate.cli.terminal import get_console, make_facts, show_progress, show_warnings
from acclimate.errors import BadInput, check_name
from acclimate.training.settings import (
    ALGORITHMS,
    TASKS,
    DomainResult,
    DomainSettings,
    SegmentationResult,
    Settings,
)

_PANELS = {
    "classification": "Classification (the default task)",
    "domains": "Several domains (with --task domains)",
    "segmentation": "Segmentation (with --task segmentation)",
}
_SHARED = "Training (defaults depend on the task)"
# Options whose help says more than what one task knows of them.
_HELP = {
    "model": "Architecture: a name of `acclimate zoo list`, `timm:NAME`, `torchvision:NAME`, or a "
    "function `package.module:function`. For domains also resnet50, that of DomainBed, and "
    "builtin. For segmentation: deeplabv3plus-efficientnet-lite0, deeplabv3plus-resnet50, "
    "builtin-scenes or a function.",
    "data": "cifar10, cifar100 or builtin; or a folder, one subfolder of images per class, or with "
    "such folders in its `train` and `test`. For domains: pacs, vlcs, office_home, "
    "terra_incognita, builtin-domains; or a folder `DIR/<domain>/<class>/<image>`. For "
    "segmentation: camvid, cityscapes, builtin-scenes; or a folder with `train` and `val`, each "
    "with `images` and `masks`.",
    "objective": "What is minimised. Classification: cross_entropy, augmix, simclr (a contrastive "
    "task besides, for TTT++) or augmix+simclr. Domains: erm (cross entropy) or coral (and a "
    "penalty on features that differ). Segmentation: cross_entropy or isw (instance selective "
    "whitening, as RobustNet).",
    "size": "Height and width that images are resized to; for segmentation also HxW: 48x64.",
    "lr": "Learning rate: the largest one (classification), the first one (segmentation), or that "
    "of Adam (domains).",
    "check_every": "Steps (domains) or passes (segmentation) between two measurements on held-out "
    "images.",
    "images": "Number of training images, of each domain if there are several; default: all.",
}
# `--algorithm` is how the commands in results/ name the objective of several domains.
_SPELLINGS = {"objective": ("--objective", "--algorithm")}
_METAVARS = {
    "data": "SET_OR_DIR", "size": "N|HxW", "weights": "FILE", "test_domain": "DOMAIN",
}  # fmt: skip


def train(context: typer.Context, **given: Any) -> None:
    """Train a source model: a classifier, from fresh weights, by SGD with a cosine schedule.

    With **--task domains**, train on several domains as DomainBed does: Adam, balanced minibatches,
    frozen BatchNorm statistics, the domain of **--test-domain** held out, the checkpoint chosen on
    20 % of the others. Hyper-parameters are DomainBed's defaults, or draw number K of its random
    search: **--hparams-seed K**.

    With **--task segmentation**, train a model that gives a class to every pixel: AdamW with a
    polynomial schedule, random crops, flips, scales and colours.

    The error on the test split is measured once, at the end. Weights, settings and figures are in
    one file, which can be passed wherever weights are expected: `--model NAME --weights FILE`.

    A crash loses the steps since the last checkpoint. Run the same command again with **--resume**:
    the weights are those of an uninterrupted run, to the last bit.

    Example: `acclimate train --model resnet20-cifar10 --data cifar10 --epochs 100
    --out resnet20.safetensors`

    Example: `acclimate train --task domains --objective coral --model resnet50 --pretrained
    --data pacs --test-domain sketch --out coral-sketch.safetensors`

    Example: `acclimate train --task segmentation --model deeplabv3plus-efficientnet-lite0
    --pretrained --data camvid --objective isw --out camvid-isw.safetensors`
    """
    task = given.pop("task")
    call = {name: given.pop(name) for name in _CALL}
    call["root"] = call.pop("data_dir")
    values = {name: given[name] for name in given if _is_given(context, name)}
    settings = _make_settings(task, values)
    out = call.pop("out")
    if isinstance(settings, DomainSettings):
        _keep_first_weights(settings, out)

    from acclimate import training

    here = str(Path.cwd())
    if here not in sys.path:  # for package.module:function
        sys.path.insert(0, here)
    with show_warnings(), show_progress() as progress:
        try:
            result = training.train(settings, out, **call, progress=progress)
        except KeyboardInterrupt:
            get_console(stderr=True).print(
                "Interrupted. Run the same command again with --resume to continue."
            )
            raise
    facts = {name: text for name, text in _list_facts(result, settings).items() if text}
    get_console().print(make_facts("Trained", facts))


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _make_settings(task: str | None, values: dict[str, Any]) -> Settings[Any]:
    """Return the settings of a task; refuse options that have no effect in it."""
    if task is None:
        is_domains = values.get("objective") in ALGORITHMS
        task = "domains" if is_domains else "classification"
    check_name(task, TASKS, "task")
    kind = TASKS[task]
    fields = {spec.name: spec for spec in dataclasses.fields(kind)}
    for name in values:
        if name not in fields:
            able = [other for other in TASKS if name in TASKS[other].__dataclass_fields__]
            raise BadInput(
                "not_applicable",
                f"The option --{name.replace('_', '-')} does not apply to the task {task}. Remove "
                f"it, or use --task {' or '.join(able)}.",
                option=name,
            )
    for name, spec in fields.items():
        if spec.default is dataclasses.MISSING and name not in values:
            raise BadInput(
                "missing_option",
                f"The task {task} needs the option --{name.replace('_', '-')}: "
                f"{spec.metadata['help']}.",
                option=name,
            )
    if "size" in values:
        values["size"] = size = parse_size(values["size"])
        if isinstance(size, tuple) and task != "segmentation":
            raise BadInput(
                "malformed",
                "Expected --size to be one number, because images are resized to a square, found "
                f"{size[0]}x{size[1]}.",
                option="size",
                found=f"{size[0]}x{size[1]}",
            )
    return kind(**values)


def _keep_first_weights(settings: DomainSettings, out: Path) -> None:
    """Refuse to overwrite the weights that the run begins with."""
    from acclimate.training.checkpoint import last_path

    last = last_path(out)
    written = {"--out": out, f"The file {last.name}, which is written next to --out,": last}
    weights = None if settings.weights is None else Path(settings.weights)
    refuse_same_file(written, {"--weights": weights})


def _list_facts(result: Any, settings: Any) -> dict[str, str]:
    facts = {"weights": str(result.path)}
    done = "this run had ended before; nothing was done" if result.was_done else ""
    if isinstance(result, DomainResult):
        first, last = result.checks[0], result.checks[-1]
        facts |= {"": done, "held out": ", ".join(settings.held_out)}
        facts["BatchNorm"] = "statistics of the first weights, frozen"
        facts["training loss"] = f"{first['loss']:.3f} → {last['loss']:.3f}"
        facts["best step"] = f"{result.step} of {settings.steps}"
        for name, accuracy in result.validation.items():
            facts[f"accuracy, {name}"] = f"{accuracy:.2f} % (20 % held out)"
        facts["mean"] = f"{result.mean:.2f} %"
        n = len(result.unreadable)
        facts["unreadable"] = f"{n:,} image(s), left out" if n else ""
    else:
        losses = f"{result.losses[0]:.3f} → {result.losses[-1]:.3f}"
        if isinstance(result, SegmentationResult):
            facts |= {"SHA-256": result.sha256, "": done, "training loss": losses}
            for name, iou in result.ious.items():
                facts[f"IoU, {name}"] = "in no image" if iou is None else f"{iou:.2f} %"
            facts["mean IoU"] = f"{result.miou:.2f} %"
        else:
            head = result.path.with_name(f"{result.path.stem}.head.safetensors")
            facts["head"] = str(head) if "simclr" in settings.objective else ""
            facts |= {"": done, "training loss": losses}
            no_split = result.error is None
            facts["test error"] = "no test split" if no_split else f"{result.error:.2f} %"
    return {**facts, "time": f"{result.minutes:.1f} min", "again": settings.command}


_TASK = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="classification, domains or segmentation: a class per pixel."
    ),
]
_CALL: dict[str, tuple[Any, Any]] = {
    "out": (
        Annotated[
            Path, typer.Option(metavar="FILE", help="Weights to write: a name in .safetensors.")
        ],
        inspect.Parameter.empty,
    ),
    "device": (DeviceOption, "auto"),
    "resume": (
        Annotated[
            bool, typer.Option("--resume", help="Continue where an interrupted run stopped.")
        ],
        False,
    ),
    "force": (
        Annotated[bool, typer.Option("--force", help="Overwrite, or start again.")],
        False,
    ),
    "save_every": (Annotated[int, typer.Option(help="Steps between two checkpoints.")], 200),
    "data_dir": (
        Annotated[
            Path | None,
            typer.Option(
                metavar="DIR",
                help="Where all data is kept; default: `ACCLIMATE_DATA`, or the user's cache "
                "folder.",
            ),
        ],
        None,
    ),
}


def _make_option(name: str) -> tuple[Any, Any]:
    """Return the annotation and the default of the option for a setting."""
    owners = {task: kind for task, kind in TASKS.items() if name in kind.__dataclass_fields__}
    specs = {task: kind.__dataclass_fields__[name] for task, kind in owners.items()}
    kind, spec = next(iter(owners.values())), next(iter(specs.values()))
    hint = get_type_hints(kind)[name]
    base = next(part for part in (*get_args(hint), hint) if part in (bool, int, float, str))
    text = _HELP.get(name, spec.metadata["help"][0].upper() + spec.metadata["help"][1:] + ".")
    if len(specs) < len(TASKS):
        panel: str | None = _PANELS[next(iter(specs))] if len(specs) == 1 else _SHARED
    else:
        panel = None if name in ("model", "data", "objective") else _SHARED
    defaults = {task: own.default for task, own in specs.items()}
    known = {task: d for task, d in defaults.items() if d not in (None, dataclasses.MISSING, False)}
    if known and len(set(defaults.values())) > 1:
        text += " Default: " + ", ".join(f"{d} ({task})" for task, d in known.items()) + "."
    elif known:
        text += f" Default: {spec.default}."
    flags = _SPELLINGS.get(name, (f"--{name.replace('_', '-')}",))
    shown: dict[str, Any] = {"metavar": _METAVARS.get(name), "help": text, "rich_help_panel": panel}
    if name in ("model", "data"):
        return Annotated[str, typer.Option(*flags, **shown)], inspect.Parameter.empty
    if name == "test_domain":
        return Annotated[list[str] | None, typer.Option(*flags, **shown)], None
    if base is bool:
        return Annotated[bool, typer.Option(*flags, **shown)], False
    kind_of = str if name == "size" else base
    return Annotated[kind_of | None, typer.Option(*flags, **shown)], None


def _give_signature() -> None:
    """Let `train` have one option for each setting of each task."""
    names = dict.fromkeys(spec.name for kind in TASKS.values() for spec in dataclasses.fields(kind))
    options = {name: _make_option(name) for name in ("model", "data")}
    options |= {"out": _CALL["out"], "task": (_TASK, None)}
    options |= {name: _make_option(name) for name in ("objective", *names)} | _CALL
    annotations = {name: annotation for name, (annotation, _) in options.items()}
    train.__annotations__ = {"context": typer.Context, **annotations, "return": None}
    only = inspect.Parameter.KEYWORD_ONLY
    train.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("context", only, annotation=typer.Context)]
        + [
            inspect.Parameter(name, only, default=default, annotation=annotation)
            for name, (annotation, default) in options.items()
        ]
    )


_give_signature()
