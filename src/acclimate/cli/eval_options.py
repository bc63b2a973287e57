"""The options of `acclimate eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: Headings of the help, and the options under each; those that most runs need come before.
PANELS = {
    "Stream": (
        *("order", "times", "delta", "ratio", "n_batches", "n_classes", "frames", "n_scenes"),
        *("period", "share", "n_samples", "domain_correlation", "class_correlation"),
        *("domain_ratio", "class_ratio", "episodic", "clean_probe", "epochs", "window"),
    ),
    "Methods": ("preset", "speed", "reveal_labels"),
    "Model and images": (
        *("size", "normalization", "mean", "std", "head", "logits_at", "classes"),
        "ignore_label",
    ),
    "Run": (
        *("seed", "one_by_one", "checkpoint_every", "device", "data_dir", "metrics"),
        "tensorboard",
    ),
}

Data = Annotated[
    str,
    typer.Option(
        metavar="NAME|DIR",
        help="cifar10c, cifar100c, cifar10, cifar100, cifar10_1, imagenet, imagenetc, builtin; or "
        "a folder: `DIR/<class>/<image>`, `DIR/<domain>/<class>/<image>` for several shifts, or "
        "what acclimate data corrupt made of one.",
    ),
]
Methods = Annotated[
    str, typer.Option("--method", "--methods", help="Methods, separated by commas; or all.")
]
ArtifactFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="What acclimate prepare wrote for the model.")
]
SourceData = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|DIR",
        help="Or prepare it from these labelled images; default: the training split of the set "
        "that was corrupted.",
    ),
]
SourceImages = Annotated[
    int | None, typer.Option(help="Only so many of them, if it is a named set; default: all.")
]
Severity = Annotated[
    str, typer.Option(help="Of corruptions, from 1 to 5; several are separated by commas.")
]
Corruptions = Annotated[
    str | None,
    typer.Option(help="Separated by commas; default: the 15 of the benchmark, in its order."),
]
Images = Annotated[
    int | None,
    typer.Option(help="Only so many of each domain: the first; of a folder, evenly spread."),
]
Stream = Annotated[
    str,
    typer.Option(
        help="reset_each, continual, gradual, mixed, recurring, label_sorted, dirichlet, "
        "imbalanced, single_images, one_class, video, alternating, foreign or markov."
    ),
]
BatchSize = Annotated[int, typer.Option(help="Batch size; single_images has 1.")]
Order = Annotated[
    str | None,
    typer.Option(
        help="file or shuffled (by the seed); default: file, but shuffled for folders, whose files "
        "come class after class."
    ),
]
Times = Annotated[int | None, typer.Option(help="Rounds of recurring; default: 20.")]
Delta = Annotated[float | None, typer.Option(help="Concentration of dirichlet; default: 0.1.")]
Ratio = Annotated[
    float | None,
    typer.Option(
        help="Imbalance ratio of the dominant class (imbalanced streams only); default: 100."
    ),
]
NBatches = Annotated[
    int | None,
    typer.Option(
        help="Batches of a class in a row, of one_class; default: 100, or the whole class if that "
        "is less. If it is given, the images of a class are recycled."
    ),
]
NClasses = Annotated[
    int | None, typer.Option(help="Classes of each domain, of one_class; default: all.")
]
Frames = Annotated[int | None, typer.Option(help="Frames of a scene, of video; default: 32.")]
NScenes = Annotated[
    int | None, typer.Option(help="Scenes of each domain, of video; default: one of each image.")
]
Period = Annotated[
    int | None,
    typer.Option(help="Batches of one kind before the other, of alternating; default: 1."),
]
Share = Annotated[
    float | None,
    typer.Option(
        help="Share of foreign images in a batch (foreign streams only), which are uniform noise "
        "and do not count; default: 0.1."
    ),
]
NSamples = Annotated[
    int | None, typer.Option(help="Images of markov, recycled; default: as many as there are.")
]
DomainCorrelation = Annotated[
    float | None, typer.Option(help="Probability that the domain stays, of markov; default: 0.85.")
]
ClassCorrelation = Annotated[
    float | None, typer.Option(help="Probability that the class stays, of markov; default: 0.95.")
]
DomainRatio = Annotated[
    float | None,
    typer.Option(
        help="How much more frequent the first domain is than the last one, of markov; default: 1."
    ),
]
ClassRatio = Annotated[
    float | None,
    typer.Option(
        help="How much more frequent the first class is than the last one, of markov; default: 1."
    ),
]
Episodic = Annotated[bool, typer.Option("--episodic", help="Reset before every batch.")]
CleanProbe = Annotated[
    bool, typer.Option("--clean-probe", help="Predict the clean set after each domain.")
]
Epochs = Annotated[int, typer.Option(help="Passes over each domain.")]
Window = Annotated[
    int, typer.Option(help="Single images, predicted in a window of so many; 0 for batches.")
]
RevealLabels = Annotated[
    bool,
    typer.Option("--reveal-labels", help="Let oracles, such as supervised, learn from the labels."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A hyper-parameter of all methods that have it, or METHOD.NAME=VALUE; may be "
        "repeated.",
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Class names in the order of the logits, one per line; default: those of the "
        "artifact, or the folders by name.",
    ),
]
Seed = Annotated[int, typer.Option(help="Of a shuffled order and of all random draws.")]
Seeds = Annotated[int, typer.Option(help="How many, from --seed on; with several, mean ± spread.")]
OneByOne = Annotated[
    bool, typer.Option("--one-by-one", help="One method after the other; takes less memory.")
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Records and result; default: `eval-` and the data's name."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")]
Force = Annotated[bool, typer.Option("--force", help="Throw away what --out holds.")]
CheckpointEvery = Annotated[
    int | None, typer.Option(help="Batches between checkpoints; default: about 20 seconds.")
]
