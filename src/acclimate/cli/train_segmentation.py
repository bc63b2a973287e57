"""`acclimate train --task segmentation`: train a model that gives a class to every pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.options import parse_size
from acclimate.cli.terminal import get_console, make_facts
from acclimate.cli.train_common import Call, find_given, run_training, to_flag
from acclimate.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from acclimate.training.segmentation import SegmentationResult, SegmentationSettings

_PANEL = "Segmentation (with --task segmentation)"
_TASKS = ("classification", "segmentation")

TaskOption = Annotated[
    str, typer.Option(metavar="NAME", help="classification, or segmentation: a class a pixel.")
]
IswOption = Annotated[
    bool,
    typer.Option(
        "--isw",
        help="Train as RobustNet: instance whitening in the first stages, and a loss on the "
        "covariances of features that change with the colours.",
        rich_help_panel=_PANEL,
    ),
]
IswWeightOption = Annotated[
    float, typer.Option(help="Weight of that loss.", rich_help_panel=_PANEL)
]
IswClustersOption = Annotated[
    int,
    typer.Option(
        help="Clusters of covariances by how much they change; all but the lowest are whitened.",
        rich_help_panel=_PANEL,
    ),
]
IswWarmupOption = Annotated[
    int, typer.Option(help="Passes before that loss begins.", rich_help_panel=_PANEL)
]
PowerOption = Annotated[
    float, typer.Option(help="The rate falls as (1 − t) to this power.", rich_help_panel=_PANEL)
]
CropHeightOption = Annotated[
    int | None,
    typer.Option(
        help="Height of the parts trained on; default: that of the images.", rich_help_panel=_PANEL
    ),
]
CropWidthOption = Annotated[int | None, typer.Option(help="Their width.", rich_help_panel=_PANEL)]
SmallestScaleOption = Annotated[
    float, typer.Option(help="Images are enlarged at least so much.", rich_help_panel=_PANEL)
]
LargestScaleOption = Annotated[float, typer.Option(help="At most so much.", rich_help_panel=_PANEL)]
JitterOption = Annotated[
    float, typer.Option(help="How much colours change at random.", rich_help_panel=_PANEL)
]
IgnoreLabelOption = Annotated[
    int,
    typer.Option(
        metavar="NUMBER",
        help="The value of pixels without a label, in masks of a folder of yours.",
        rich_help_panel=_PANEL,
    ),
]

_ONLY_DENSE = (
    *("isw", "isw_weight", "isw_clusters", "isw_warmup_epochs", "power", "crop_height"),
    *("crop_width", "smallest_scale", "largest_scale", "jitter", "ignore_label"),
)
_NOT_DENSE = {
    "algorithm": "it is only for classification",
    "test_domain": "remove it",
    "weights": "use --pretrained to start from ImageNet weights",
    "steps": "use --epochs",
    "hparams_seed": "remove it",
    "trial_seed": "remove it",
    "gamma": "remove it",
    "dropout": "it is defined by the model",
    "momentum": "AdamW defines its own",
    "warmup_epochs": "the learning rate decreases from the beginning",
    "label_smoothing": "remove it",
    "augmentation": "crops, flips, scaling and colour jitter are used",
    "joint": "remove it",
    "joint_weight": "remove it",
}


def refuse_dense_options(context: typer.Context, task: str) -> None:
    """Refuse a task that does not exist, and options that would have no effect.

    Raises:
        BadInput: There is such an option, or no such task.
    """
    if task not in _TASKS:
        raise BadInput(
            "unknown_name",
            f'Unknown task "{task}". {did_you_mean(task, _TASKS)}',
            kind="task",
            name=task,
            known=tuple(_TASKS),
        )
    given = find_given(context)
    if task != "segmentation":
        for name in _ONLY_DENSE:
            if name in given:
                raise BadInput(
                    "not_applicable",
                    f"The option {to_flag(name)} applies only to segmentation. Add --task "
                    "segmentation.",
                    option=name,
                )
        return
    for name, hint in _NOT_DENSE.items():
        if name in given:
            raise BadInput(
                "conflicting_options",
                f"The option {to_flag(name)} cannot be combined with --task segmentation: {hint}.",
                options=("task", name),
            )


def train_dense(context: typer.Context, call: Call) -> None:
    """Train, and say what came out.

    Args:
        context: Of the command; what was given on the command line becomes the settings.
        call: What else was said.
    """
    from acclimate.training.segmentation import train_segmentation

    settings = _make_settings(find_given(context))
    result = run_training(train_segmentation, settings, call)
    get_console().print(make_facts("Trained", _list_facts(result, settings)))


def _make_settings(given: dict[str, Any]) -> SegmentationSettings:
    from dataclasses import fields

    from acclimate.training.segmentation import SegmentationSettings

    known = {option.name for option in fields(SegmentationSettings)}
    values = {name: given[name] for name in known & given.keys()}
    return SegmentationSettings(**values | {"size": parse_size(given.get("size"))})


def _list_facts(result: SegmentationResult, settings: SegmentationSettings) -> dict[str, str]:
    facts = {
        "weights": str(result.path),
        "SHA-256": result.sha256,
        "": "this run had ended before; nothing was done" if result.was_done else "",
        "training loss": f"{result.losses[0]:.3f} → {result.losses[-1]:.3f}",
    }
    for name, iou in result.ious.items():
        facts[f"IoU, {name}"] = "in no image" if iou is None else f"{iou:.2f} %"
    facts |= {"mean IoU": f"{result.miou:.2f} %", "time": f"{result.minutes:.1f} min"}
    return {name: value for name, value in {**facts, "again": settings.command}.items() if value}
