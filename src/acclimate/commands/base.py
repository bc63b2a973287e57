"""What commands have in common: options that several of them have, and how these are parsed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from acclimate.errors import BadInput, InvalidConfig
from acclimate.options import Values, hp, options, split_names

if TYPE_CHECKING:
    from torch import nn

    from acclimate.artifact import Artifact
    from acclimate.bench.job import Guarded
    from acclimate.functional.inputs import Normalization
    from acclimate.introspect import ModelInfo
    from acclimate.methods.config import Config

Result = TypeVar("Result")
Size = int | tuple[int, int]

#: Reports what a command does, in a sentence.
Notify = Callable[[str], None]

#: Width of what is written to a file, or through a pipe.
FILE_WIDTH = 120

#: Headings of the help.
METHODS, MODEL, RUN = "Methods", "Model and images", "Run"


class Command(Generic[Result]):
    """A function that is called with the fields of a class of options as keywords.

    Attributes:
        options: The class of options. The command line is made from it.
        callbacks: Names of further keywords, which report what happens during the call.
    """

    def __init__(self, kind: type[Values], function: Callable[..., Result]) -> None:
        functools.update_wrapper(self, function)
        self.options, self._function = kind, function
        own = list(inspect.signature(function).parameters.values())[1:]
        self.callbacks = tuple(parameter.name for parameter in own)
        given = [
            inspect.Parameter(
                spec.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=spec.type,
                default=inspect.Parameter.empty if spec.default is MISSING else spec.default,
            )
            for spec in fields(kind)
        ]
        self.__signature__ = inspect.Signature([*given, *own])

    def __call__(self, **values: Any) -> Result:
        callbacks = {name: values.pop(name) for name in self.callbacks if name in values}
        return self._function(self.options.from_dict(values), **callbacks)


def command(kind: type[Values]) -> Callable[[Callable[..., Result]], Command[Result]]:
    """Make a command of a function whose first argument is an object of this class of options."""
    return functools.partial(Command, kind)


def select_given(o: Values, kind: Any) -> dict[str, Any]:
    """Return those arguments of a class or a function that options of the same name give."""
    names = [name for name in inspect.signature(kind).parameters if hasattr(o, name)]
    return {name: getattr(o, name) for name in names if getattr(o, name) is not None}


# Values -------------------------------------------------------------------------------------------


def parse_size(value: Any, option: str) -> Size:
    """Return a size: one number, or height and width, also as text such as `48x64`."""
    from acclimate.streams import images

    return (
        (value[0], value[1]) if isinstance(value, tuple | list) else images.parse_size(str(value))
    )


def parse_words(value: str | Iterable[str], option: str) -> tuple[str, ...]:
    """Return texts that may contain commas."""
    return (value,) if isinstance(value, str) else tuple(value)


def parse_numbers(value: Any, option: str) -> tuple[int, ...]:
    """Return whole numbers, also as text such as `1,3,5`."""
    parts = split_names(str(value) if isinstance(value, int) else value)
    if not all(str(part).isdecimal() for part in parts):
        raise BadInput(
            "malformed",
            f'Expected numbers such as 5 or 1,3,5, found "{value}".',
            option=option,
            found=value,
        )
    return tuple(map(int, parts))


def parse_place(value: Any, option: str) -> str | int:
    """Return a place in a model's output; digits are a position."""
    return int(value) if str(value).lstrip("-").isdecimal() else str(value)


def parse_pairs(value: Mapping[str, Any] | Iterable[str], option: str) -> dict[str, Any]:
    """Return what is given as texts such as `NAME=VALUE`."""
    if isinstance(value, Mapping):
        return dict(value)
    pairs = {}
    for text in value:
        name, sign, part = (word.strip() for word in text.partition("="))
        if not (name and sign and part):
            raise InvalidConfig(
                "malformed",
                f'Expected --{option.replace("_", "-")} NAME=VALUE, found "{text}".',
                option=option,
                found=text,
            )
        pairs[name] = part
    return pairs


def parse_settings(value: Mapping[str, Any] | Iterable[str], option: str = "set") -> dict[str, Any]:
    """Return hyper-parameters given as NAME=VALUE, with numbers and true or false understood.

    >>> parse_settings(["lr=1e-4", "nesterov=true"])
    {'lr': 0.0001, 'nesterov': True}
    """
    if isinstance(value, Mapping):
        return dict(value)
    return {name: _parse(text) for name, text in parse_pairs(value, option).items()}


def _parse(value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


# Options that several commands have ---------------------------------------------------------------


@options
class DataDir(Values):
    """Where data and weights are kept."""

    data_dir: Path | None = hp(
        None,
        metavar="DIR",
        panel=RUN,
        help="Folder of data and weights; default: `ACCLIMATE_DATA`, or the user's cache.",
    )


@options
class Device(Values):
    """Where to compute."""

    device: str = hp("auto", panel=RUN, help="Device: auto, cpu, cuda or mps.")


@options
class Seed(Values):
    """The seed."""

    seed: int = hp(0, panel=RUN, help="Seed of all random numbers.")


@options
class Force(Values):
    """Whether to overwrite."""

    force: bool = hp(False, panel=RUN, help="Overwrite existing files.")


@options
class Resume(Values):
    """How a run begins that can be interrupted."""

    resume: bool = hp(False, panel=RUN, help="Resume an interrupted run.")
    force: bool = hp(False, panel=RUN, help="Overwrite what exists, or start the run again.")


@options
class IgnoreLabel(Values):
    """The value of unlabelled pixels."""

    ignore_label: int = hp(
        255, panel=MODEL, help="Value of unlabelled pixels in the masks of a folder."
    )


@options
class ClassNames(Values):
    """The names of the classes."""

    classes: Path | None = hp(
        None, panel=MODEL, help="Class names in the order of the logits, one per line."
    )

    def read_classes(self) -> list[str] | None:
        """Return the names in the file, if one was given."""
        from acclimate.streams.folder import read_classes

        return None if self.classes is None else read_classes(self.classes)


@options
class ModelOptions(Values):
    """The model, and what it cannot tell by itself."""

    model: str = hp(
        help="A name of `acclimate zoo list`; `timm:NAME`; `torchvision:NAME`; a function that "
        "returns a model, `package.module:function`; or `builtin`, the model of the demo."
    )
    weights: Path | None = hp(None, help="Weights to load: .safetensors, or a PyTorch state dict.")
    normalization: str | None = hp(
        None, panel=MODEL, help="How inputs are normalised: imagenet, cifar10 or cifar100."
    )
    mean: tuple[float, ...] | None = hp(
        None,
        metavar="R,G,B",
        panel=MODEL,
        parse=split_names,
        help="Mean of each channel, instead of --normalization.",
    )
    std: tuple[float, ...] | None = hp(
        None,
        metavar="R,G,B",
        panel=MODEL,
        parse=split_names,
        help="Standard deviation of each channel, with --mean.",
    )
    head: str | None = hp(
        None,
        panel=MODEL,
        help="Module that returns the logits; default: it is found automatically.",
    )
    logits_at: str | int | None = hp(
        None,
        metavar="KEY",
        panel=MODEL,
        parse=parse_place,
        help="Where the logits are in the output: a key, attribute or position.",
    )

    def load_model(self, device: str) -> nn.Module:
        """Return the model with its weights, on the device of that name."""
        from acclimate.zoo.named import get_device, load_named

        place = get_device(device)
        return load_named(self.model, self.weights).to(place)

    def get_normalization(self) -> Normalization | None:
        """Return the normalisation given by name or by numbers, or None."""
        from acclimate.functional.inputs import Normalization

        if self.normalization is not None and (self.mean is not None or self.std is not None):
            raise BadInput(
                "conflicting_options",
                "Expected either --normalization, or --mean and --std, found both. Remove one of "
                "them.",
                options=("normalization", "std" if self.mean is None else "mean"),
            )
        if (self.mean is None) != (self.std is None):
            raise BadInput(
                "missing_option",
                "Expected both --mean and --std, found only one of them. Pass both.",
                option="mean" if self.mean is None else "std",
            )
        if self.mean is None:
            return Normalization.of(self.normalization)
        return Normalization.of((self.mean, self.std))

    def get_info(self, artifact: Artifact | None = None) -> ModelInfo:
        """Return what was stated about the model; the normalisation also from the artifact."""
        from acclimate.introspect import ModelInfo

        normal = self.get_normalization()
        if normal is None and artifact is not None:
            normal = artifact.normalization
        return ModelInfo(head=self.head, logits_at=self.logits_at, normalization=normal)


@options
class ArtifactOption(Values):
    """The artifact."""

    artifact: Path | None = hp(None, help="Artifact that `acclimate prepare` wrote.")

    def load_artifact(self) -> Artifact | None:
        """Return the artifact, if a file was given."""
        from acclimate.artifact import Artifact

        return None if self.artifact is None else Artifact.load(self.artifact)


@options
class InputOptions(Device, ModelOptions):
    """The model, with the size of its images, and where it computes."""

    size: Size | None = hp(
        None,
        metavar="N|HxW",
        panel=MODEL,
        parse=parse_size,
        join="x",
        help="Resize the shorter side to N pixels and crop the centre; or resize to height and "
        "width, such as 48x64. Images with masks are not cropped.",
    )

    def get_size(self, artifact: Artifact | None) -> Size | None:
        """Return the size of images: as asked for, or as the artifact was prepared with."""
        if self.size is not None or artifact is None:
            return self.size
        shape = artifact.card["input_shape"]
        if len(shape) != 3 or shape[0] != 3:
            raise BadInput(
                "wrong_shape",
                f"The artifact was prepared for inputs of shape {tuple(shape)}, but image files "
                "have the shape (3, height, width). For other inputs, use acclimate.adapt() in "
                "Python.",
                found=tuple(shape),
            )
        return shape[1], shape[2]


@options
class MethodOptions(Seed, ArtifactOption, InputOptions):
    """The model, and the method that adapts it."""

    method: str = hp("steady", help="Name of a method; `acclimate methods` lists them.")
    set: Mapping[str, Any] | None = hp(
        None,
        metavar="NAME=VALUE",
        repeat=True,
        parse=parse_settings,
        help="A hyper-parameter; may be repeated.",
    )
    preset: str | None = hp(
        None,
        help="Hyper-parameters as published for cifar10, cifar100, imagenet or cityscapes; --set "
        "overrides them.",
    )
    guard: bool | None = hp(
        None,
        flags=("--guard/--watch",),
        help="Estimate accuracy without labels, from the artifact's part accuracy; --guard also "
        "answers with the source model where adapting does not help.",
    )

    def get_config(self) -> Config:
        """Return the hyper-parameters: a preset's or the defaults, and single values."""
        from acclimate.methods import get_method

        kind = get_method(self.method).config_class
        if self.preset is None:
            return kind.from_dict(self.set or {})
        return kind.from_preset(self.preset, self.set)

    def get_guard(self) -> Guarded:
        """Return what --guard, --watch or neither ask for."""
        return "watch" if self.guard is False else bool(self.guard)


@options
class StreamRunOptions(Resume, MethodOptions):
    """A method that is run on a stream: how, and what is written besides the result."""

    terms: tuple[str, ...] | None = hp(
        None,
        metavar="swr,nsp",
        parse=split_names,
        help="Terms to add to gradient methods (need an artifact): swr, nsp, fisher.",
    )
    speed: str = hp(
        "exact",
        metavar="LEVEL",
        help="exact: the paper's arithmetic; fast and fastest: less time for slightly higher "
        "errors.",
    )
    metrics: Path | None = hp(None, panel=RUN, help="Write metrics of every batch as JSON lines.")
    tensorboard: Path | None = hp(
        None, metavar="DIR", panel=RUN, help="Write these metrics for TensorBoard, too."
    )


# Files --------------------------------------------------------------------------------------------


def refuse_overwriting(o: Values, written: Mapping[str, Path | None], *read: str) -> None:
    """Refuse to write over a file that is read, also through links.

    Args:
        o: The options.
        written: What is written, by what it is, such as the option; None if nothing is.
        *read: The options that name files that are read.
    """
    for what, out in written.items():
        for option in read:
            given = getattr(o, option)
            if out is not None and given is not None and _is_same_file(out, Path(given)):
                raise BadInput(
                    "overwrites_input",
                    f"{what} would overwrite {given}, which is read by "
                    f"--{option.replace('_', '-')}. Pass another output file.",
                    path=out,
                    option=option,
                )


def _is_same_file(first: Path, second: Path) -> bool:
    if first.exists() and second.exists():
        return first.samefile(second)
    return first.resolve() == second.resolve()
