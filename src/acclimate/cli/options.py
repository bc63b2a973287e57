"""Options that several commands share: the model, and how its inputs are made."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from acclimate.errors import BadInput

if TYPE_CHECKING:
    from acclimate.artifact import Artifact
    from acclimate.bench.job import Guarded
    from acclimate.functional.inputs import Normalization
    from acclimate.methods.config import Config

Command = TypeVar("Command", bound=Callable[..., Any])

ModelOption = Annotated[
    str,
    typer.Option(
        metavar="PACKAGE.MODULE:FUNCTION",
        help="A function without arguments that returns the model; the current folder is searched "
        "too. Or a name of `acclimate zoo list`, `timm:NAME`, `torchvision:NAME`, or `builtin`: "
        "the model of the demo.",
    ),
]
GuardOption = Annotated[
    bool | None,
    typer.Option(
        "--guard/--watch",
        help="Estimate accuracy without labels. --guard also answers with the source model where "
        "adaptation does not help; --watch changes nothing. Either needs an artifact with the "
        "part accuracy.",
        show_default=False,
    ),
]
WeightsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Weights to load: .safetensors, or a PyTorch state dict."),
]
ArtifactOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What acclimate prepare wrote."),
]
MethodOption = Annotated[str, typer.Option(help="See acclimate methods.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter; may be repeated."),
]
ClassesOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Class names, one per line; default: those of the artifact."),
]
RootOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Where all data is kept; default: `ACCLIMATE_DATA`, or the user's cache folder.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or mps.")]
EngineOption = Annotated[
    str,
    typer.Option(help="Who runs the jobs: local, processes on this machine, or ray, a cluster."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Of the Ray cluster, or auto for the one of this machine; default: RAY_ADDRESS, else "
        "Ray is started here.",
    ),
]
CpusOption = Annotated[
    int | None,
    typer.Option(help="With ray: cores and threads of each job; default: 1, here a share of all."),
]
GpusOption = Annotated[
    float | None, typer.Option(help="With ray: GPUs of each job, such as 1 or 0.5; default: none.")
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="With ray, if not all nodes see the folder of the suite: where run folders are "
        "copied, such as s3://bucket/suite.",
    ),
]
SizeOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|HxW",
        help="Resize the shorter side to this and crop the centre, a square; or height and width, "
        "such as 48x64. Images with masks, or to be given masks, are brought to it whole.",
    ),
]
IgnoreLabelOption = Annotated[
    int,
    typer.Option(
        metavar="NUMBER", help="The value of pixels without a label, in masks of a folder of yours."
    ),
]
NormalizationOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="How inputs are normalised, by name: imagenet, cifar10, cifar100."
    ),
]
MeanOption = Annotated[
    str | None, typer.Option(metavar="R,G,B", help="Or by numbers: the mean of each channel …")
]
StdOption = Annotated[
    str | None, typer.Option(metavar="R,G,B", help="… and the standard deviation of each.")
]
HeadOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The module that makes the logits, if it is not found."),
]
LogitsAtOption = Annotated[
    str | None,
    typer.Option(
        metavar="KEY", help="Where the logits are in the output: a key, attribute or position."
    ),
]

PresetOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Hyper-parameters as published for cifar10, cifar100, imagenet or cityscapes; "
        "--set still wins.",
    ),
]
MetricsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the metrics of every batch as JSON lines."),
]
TensorboardOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write them for TensorBoard, too, if it is installed."),
]
SpeedOption = Annotated[
    str,
    typer.Option(
        metavar="LEVEL",
        help="exact: the paper's arithmetic; fast: the same within noise; fastest: trade-offs.",
    ),
]
TermsOption = Annotated[
    str | None,
    typer.Option(
        metavar="swr,nsp",
        help="Terms to add to a gradient method: swr, nsp, fisher. The artifact must contain what "
        "they need.",
    ),
]


def in_panels(panels: Mapping[str, Sequence[str]]) -> Callable[[Command], Command]:
    """Show options of a command under headings of its help; the others come first.

    Args:
        panels: Names of parameters, by heading.
    """

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        for heading, names in panels.items():
            for name in names:
                base, option = get_args(hints[name])
                option = copy.copy(option)  # other commands show it without the heading
                option.rich_help_panel = heading
                command.__annotations__[name] = Annotated[base, option]
        return command

    return decorate


def refuse_same_file(written: Mapping[str, Path], read: Mapping[str, Path | None]) -> None:
    """Refuse to write over a file that is read, also through links.

    Args:
        written: What is written, by what it is, such as the option.
        read: What is read, by the option; None if it was not given.

    Raises:
        BadInput: A file is both.
    """
    for what, out in written.items():
        for option, given in read.items():
            if given is not None and _is_same_file(out, given):
                raise BadInput(
                    "overwrites_input",
                    f"{what} would overwrite {given}, which is read by {option}. Pass another "
                    "output file.",
                    path=out,
                    option=option.removeprefix("--").replace("-", "_"),
                )


def check_free(path: Path, force: bool) -> None:
    """Refuse an output whose folder does not exist, or that exists, unless `force` is given."""
    if not path.parent.is_dir():
        raise BadInput(
            "not_found",
            f"Cannot write {path}: the folder {path.parent} does not exist. Create it first.",
            path=path.parent,
        )
    if path.exists() and not force:
        raise BadInput(
            "already_exists",
            f"{path} already exists. Pass another --out, or --force to overwrite it.",
            path=path,
        )


def check_file(path: Path | None) -> None:
    """Refuse a file that cannot be written before minutes are spent on its content."""
    if path is None:
        return
    folder = path.resolve().parent
    if not folder.is_dir():
        raise BadInput(
            "not_found",
            f"Cannot write {path}: the folder {folder} does not exist. Create it first.",
            path=folder,
        )
    if path.is_dir():
        raise BadInput(
            "not_a_file",
            f"Cannot write {path}: it is a folder. Pass the name of a file in it.",
            path=path,
        )
    if not os.access(folder, os.W_OK):
        raise BadInput(
            "not_writable",
            f"Cannot write {path}: no permission to write to {folder}. Choose another folder.",
            path=path,
        )


def _is_same_file(first: Path, second: Path) -> bool:
    if first.exists() and second.exists():
        return first.samefile(second)
    return first.resolve() == second.resolve()


def get_cluster(
    address: str | None, cpus: int | None, gpus: float | None, storage: str | None
) -> dict[str, Any]:
    """Return those options of the Ray engine that are given."""
    options = {"address": address, "n_cpus": cpus, "n_gpus": gpus, "storage": storage}
    return {name: value for name, value in options.items() if value is not None}


def get_logits_at(text: str | None) -> str | int | None:
    """Return a place in a model's output; digits are a position."""
    return int(text) if text is not None and text.lstrip("-").isdecimal() else text


def make_config(kind: type[Config], preset: str | None, values: dict[str, Any]) -> Config:
    """Return the hyper-parameters of a method: a preset's or the defaults, and single values."""
    return kind.from_dict(values) if preset is None else kind.from_preset(preset, values)


def get_guard(is_guarded: bool | None) -> Guarded:
    """Return what --guard, --watch or neither ask for."""
    return "watch" if is_guarded is False else bool(is_guarded)


def get_normalization(name: str | None, mean: str | None, std: str | None) -> Normalization | None:
    """Return the normalisation given by name or by numbers, or None."""
    from acclimate.functional.inputs import Normalization

    if name is not None and (mean is not None or std is not None):
        raise BadInput(
            "conflicting_options",
            "Expected either --normalization, or --mean and --std, found both. Remove one of them.",
            options=("normalization", "std" if mean is None else "mean"),
        )
    if (mean is None) != (std is None):
        raise BadInput(
            "missing_option",
            "Expected both --mean and --std, found only one of them. Pass both.",
            option="mean" if mean is None else "std",
        )
    if mean is None or std is None:
        return Normalization.of(name)
    return Normalization.of((mean.split(","), std.split(",")))


def parse_size(text: str | None) -> int | tuple[int, int] | None:
    """Return what `--size` stands for: one number, or height and width; None for nothing."""
    from acclimate.streams import images

    return None if text is None else images.parse_size(text)


def get_size(
    size: int | tuple[int, int] | None, artifact: Artifact | None
) -> int | tuple[int, int] | None:
    """Return the size to bring images to: as asked for, or as the artifact was prepared with."""
    if size is not None or artifact is None:
        return size
    shape = artifact.card["input_shape"]
    if len(shape) != 3 or shape[0] != 3:
        raise BadInput(
            "wrong_shape",
            f"The artifact was prepared for inputs of shape {tuple(shape)}, but image files have "
            "the shape (3, height, width). For other inputs, use acclimate.adapt() in Python.",
            found=tuple(shape),
        )
    return shape[1], shape[2]


def split_names(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def split_numbers(text: str, option: str) -> tuple[int, ...]:
    """Return whole numbers that are separated by commas, the value of an option."""
    parts = split_names(text)
    if not all(part.isdecimal() for part in parts):
        raise BadInput(
            "malformed",
            f'Expected numbers such as 5 or 1,3,5, found "{text}".',
            option=option,
            found=text,
        )
    return tuple(int(part) for part in parts)
