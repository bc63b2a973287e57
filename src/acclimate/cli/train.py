"""`acclimate train`: train a source model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.options import DeviceOption
from acclimate.cli.terminal import get_console, make_facts
from acclimate.cli.train_common import Call, get_side, run_training
from acclimate.cli.train_domains import (
    AlgorithmOption,
    CheckEveryOption,
    DropoutOption,
    FirstWeightsOption,
    GammaOption,
    HparamsSeedOption,
    PretrainedOption,
    StepsOption,
    TestDomainOption,
    TrialSeedOption,
    refuse_options,
    train_on_domains,
)
from acclimate.cli.train_segmentation import (
    CropHeightOption,
    CropWidthOption,
    IgnoreLabelOption,
    IswClustersOption,
    IswOption,
    IswWarmupOption,
    IswWeightOption,
    JitterOption,
    LargestScaleOption,
    PowerOption,
    SmallestScaleOption,
    TaskOption,
    refuse_dense_options,
    train_dense,
)


def train(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="An architecture: a name of `acclimate zoo list`, `timm:NAME`, "
            "`torchvision:NAME`, or a function `package.module:function`. With --algorithm also "
            "resnet50, that of DomainBed, and builtin. With --task segmentation: "
            "deeplabv3plus-efficientnet-lite0, deeplabv3plus-resnet50, builtin-scenes or a "
            "function.",
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="SET_OR_DIR",
            help="cifar10, cifar100 or builtin; or a folder, one sub-folder of images a class, or "
            "with such folders in its `train` and `test`. With --algorithm: pacs, vlcs, "
            "office_home, terra_incognita, builtin-domains; or a folder "
            "`DIR/<domain>/<class>/<image>`. With --task segmentation: camvid, cityscapes, "
            "builtin-scenes; or a folder with `train` and `val`, each with `images` and `masks`.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Weights to write: a name in .safetensors.")
    ],
    task: TaskOption = "classification",
    algorithm: AlgorithmOption = None,
    test_domain: TestDomainOption = None,
    pretrained: PretrainedOption = False,
    weights: FirstWeightsOption = None,
    steps: StepsOption = 5000,
    check_every: CheckEveryOption = 300,
    hparams_seed: HparamsSeedOption = 0,
    trial_seed: TrialSeedOption = 0,
    gamma: GammaOption = 1.0,
    dropout: DropoutOption = 0.0,
    isw: IswOption = False,
    isw_weight: IswWeightOption = 0.6,
    isw_clusters: IswClustersOption = 3,
    isw_warmup_epochs: IswWarmupOption = 5,
    power: PowerOption = 0.9,
    crop_height: CropHeightOption = None,
    crop_width: CropWidthOption = None,
    smallest_scale: SmallestScaleOption = 0.75,
    largest_scale: LargestScaleOption = 1.5,
    jitter: JitterOption = 0.4,
    ignore_label: IgnoreLabelOption = 255,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 100,
    batch_size: Annotated[int, typer.Option(help="Images a step, on all devices.")] = 128,
    lr: Annotated[float, typer.Option(help="The largest learning rate.")] = 0.1,
    momentum: Annotated[float, typer.Option(help="Of SGD, in Nesterov's form.")] = 0.9,
    weight_decay: Annotated[float, typer.Option(help="Pull of the weights to zero.")] = 5e-4,
    warmup_epochs: Annotated[
        float, typer.Option(help="Passes in which the rate grows, before it follows a cosine.")
    ] = 0.0,
    label_smoothing: Annotated[
        float, typer.Option(help="Part of the target spread over all classes.")
    ] = 0.0,
    augmentation: Annotated[
        str, typer.Option(help="standard (shifts and flips), augmix or none.")
    ] = "standard",
    joint: Annotated[
        str,
        typer.Option(
            help="A second task to train with: simclr (contrastive, for `ttt_pp` and `tfa`) or "
            "none. Its head is written beside the weights: NAME.head.safetensors."
        ),
    ] = "none",
    joint_weight: Annotated[float, typer.Option(help="Weight of the second task.")] = 1.0,
    precision: Annotated[str, typer.Option(help="32-true, bf16-mixed or 16-mixed.")] = "32-true",
    images: Annotated[
        int | None, typer.Option(help="Train on this many images; default: all.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="N|HxW",
            help="Bring image files to this shorter side and crop the centre, a square; with "
            "--task segmentation bring images and masks to it whole, also to HxW such as 48x64.",
        ),
    ] = None,
    devices: Annotated[int, typer.Option(help="How many devices train together.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the first weights and all random draws.")] = 0,
    device: DeviceOption = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an interrupted call stopped.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite, or start anew.")] = False,
    save_every: Annotated[int, typer.Option(help="Steps between two checkpoints.")] = 200,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Where all data is kept; default: `ACCLIMATE_DATA`, or the user's cache folder.",
        ),
    ] = None,
) -> None:
    """Train a source model: a classifier, from fresh weights, by SGD with a cosine schedule.

    With **--algorithm erm** or **coral**, train on several domains instead, as DomainBed does:
    Adam, balanced minibatches, frozen BatchNorm statistics, the domain of **--test-domain** held
    out, the checkpoint chosen on 20 % of the others. Hyper-parameters are then DomainBed's: lr
    5e-5, 32 images of each domain, no weight decay; or draw number K of its random search:
    **--hparams-seed K**.

    With **--task segmentation**, train a model that gives a class to every pixel: AdamW with a
    polynomial schedule, random crops, flips, scales and colours; with **--isw** as RobustNet, by
    instance selective whitening. Defaults are then 50 epochs, batches of 8, lr 1e-3.

    The error on the test split is measured once, at the end. Weights, settings and figures are in
    one file, which goes where weights are asked for: `--model NAME --weights FILE`.

    A crash loses the steps since the last checkpoint: say the same again with **--resume**, and
    the weights are those of an uninterrupted call, to the last bit.

    Example: `acclimate train --model resnet20-cifar10 --data cifar10 --epochs 100
    --out resnet20.safetensors`

    Example: `acclimate train --algorithm coral --model resnet50 --pretrained --data pacs
    --test-domain sketch --out coral-sketch.safetensors`

    Example: `acclimate train --task segmentation --model deeplabv3plus-efficientnet-lite0
    --pretrained --data camvid --isw --out camvid-isw.safetensors`
    """
    refuse_dense_options(context, task)
    call = Call(
        out=out, resume=resume, force=force, device=device, save_every=save_every, root=data_dir
    )
    if task == "segmentation":
        train_dense(context, call)
        return
    refuse_options(context, algorithm)
    if algorithm is not None:
        train_on_domains(context, call)
        return
    from acclimate.training import TrainSettings
    from acclimate.training import train as train_model
    from acclimate.training.simclr import head_path

    settings = TrainSettings(
        model=model,
        data=data,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        warmup_epochs=warmup_epochs,
        label_smoothing=label_smoothing,
        augmentation=augmentation,
        joint=joint,
        joint_weight=joint_weight,
        precision=precision,
        images=images,
        size=get_side(size),
        devices=devices,
        seed=seed,
    )
    result = run_training(train_model, settings, call)
    facts = {
        "weights": str(result.path),
        "head": "" if joint == "none" else str(head_path(result.path)),
        "": "this run had ended before; nothing was done" if result.was_done else "",
        "training loss": f"{result.losses[0]:.3f} → {result.losses[-1]:.3f}",
        "test error": "no test split" if result.error is None else f"{result.error:.2f} %",
        "time": f"{result.minutes:.1f} min",
        "again": settings.command,
    }
    table = make_facts("Trained", {name: value for name, value in facts.items() if value})
    get_console().print(table)
