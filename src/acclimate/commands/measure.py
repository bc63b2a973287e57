"""Measure methods on labelled data, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.bench.protocol import StreamOptions
from acclimate.commands.base import (
    METHODS,
    RUN,
    ClassNames,
    DataDir,
    IgnoreLabel,
    MethodOptions,
    StreamRunOptions,
    command,
    parse_numbers,
    select_given,
)
from acclimate.errors import (
    BadInput,
    InvalidConfig,
    check_at_least,
    check_each_once,
    check_name,
    check_options,
)
from acclimate.options import Values, changed, hp, options, split_names
from acclimate.progress import Progress

if TYPE_CHECKING:
    from acclimate.artifact import Artifact
    from acclimate.bench.execute import Comparison
    from acclimate.bench.suite import Suite
    from acclimate.data.request import Data

ALL = "all"
#: What is compared unless methods are named; those that cannot adapt the model are left out.
COMPARED = ("source", "norm", "tent", "swr_nsp", "steady")


@options
class DataOptions(Values):
    """What methods are measured on."""

    data: str = hp(
        metavar="NAME|DIR",
        help="A set of `acclimate data list`, such as cifar10c; or a folder: "
        "`DIR/<class>/<image>`, or `DIR/<domain>/<class>/<image>` for several shifts.",
    )
    corruptions: tuple[str, ...] | None = hp(
        None,
        parse=split_names,
        help="Corruptions, separated by commas; default: the 15 of the benchmark.",
    )
    severity: tuple[int, ...] = hp(
        (5,),
        metavar="N,...",
        parse=parse_numbers,
        help="Severity of corruptions, from 1 to 5; or several, such as 1,3,5.",
    )
    images: int | None = hp(None, help="Number of images of each domain; default: all.")


@options
class EvalOptions(StreamOptions, DataOptions, DataDir, ClassNames, IgnoreLabel, StreamRunOptions):
    method: tuple[str, ...] = changed(  # type: ignore[assignment]
        MethodOptions,
        "method",
        COMPARED,
        flags=("--method", "--methods"),
        parse=split_names,
        help="Methods, separated by commas; or all. Of all and of the default, those that cannot "
        "adapt the model are left out.",
    )
    set: Mapping[str, Any] | None = changed(
        MethodOptions,
        "set",
        None,
        help="A hyper-parameter of all methods that have it, or METHOD.NAME=VALUE; may be "
        "repeated.",
    )
    preset: str | None = changed(MethodOptions, "preset", None, panel=METHODS)
    speed: str = changed(StreamRunOptions, "speed", "exact", panel=METHODS)
    order: str | None = changed(StreamOptions, "order", None)  # type: ignore[assignment]
    source_data: str | None = hp(
        None,
        metavar="NAME|DIR",
        panel=METHODS,
        help="Source images to prepare an artifact from, if none is given; default: the training "
        "split of the set.",
    )
    source_images: int | None = hp(
        None, panel=METHODS, help="Number of these source images, of a named set."
    )
    reveal_labels: bool = hp(
        False, panel=METHODS, help="Let oracles, such as supervised, learn from the labels."
    )
    seeds: int = hp(1, help="Number of seeds, from --seed on; tables show mean ± spread.")
    out: Path | None = hp(
        None, metavar="DIR", help="Folder of records and result; default: `eval-DATA`."
    )
    one_by_one: bool = hp(
        False, panel=RUN, help="Run one method after the other, which takes less memory."
    )
    checkpoint_every: int | None = hp(
        None, panel=RUN, help="Batches between checkpoints; default: one about every 20 seconds."
    )


@dataclass(frozen=True)
class Evaluated:
    """What `evaluate` measured.

    Attributes:
        comparison: The outcomes of all methods, and where the numbers come from.
        data: What they were measured on.
        folder: Where the records are: that of a suite.
        left_out: Of all methods, those that cannot adapt the model, with the reason.
    """

    comparison: Comparison
    data: Data
    folder: Path
    left_out: Mapping[str, str]


@command(EvalOptions)
def evaluate(o: EvalOptions, *, progress: Progress | None = None) -> Evaluated:
    """Measure how much each method helps a model, on labelled data.

    All methods receive the same batches; the labels are used to count errors only. Prints a table,
    and keeps a record of every batch, the numbers and the full protocol in a folder, of which
    **acclimate bench report** makes tables and charts.

    Methods such as steady and swr_nsp need an artifact. If none is given, it is prepared from the
    training images where these are known, and kept in the folder. `--method tent,tent+swr` compares
    a method with and without a term.

    Example: `acclimate eval --model my_models:resnet --weights resnet.pt --artifact
    resnet.acclimate --data photos/labelled --method source,tent,steady`
    """
    from acclimate.bench.execute import RunOptions, check_place, run_side_by_side
    from acclimate.bench.load import Loader, find_unsuitable
    from acclimate.bench.suite import ARTIFACTS
    from acclimate.metrics import MetricsWriter

    # Whatever can be refused is refused before the model is loaded.
    folder = o.out if o.out is not None else Path(f"eval-{Path(o.data).resolve().name}")
    check_place(folder, o.resume, o.force)
    writer = MetricsWriter(o.metrics, o.tensorboard)
    methods = choose_methods(o.method, o.reveal_labels)
    if o.artifact is not None and (o.source_data is not None or o.source_images is not None):
        raise BadInput(
            "conflicting_options",
            "Expected either --artifact, or --source-data and --source-images, found both. With "
            "an artifact, none is prepared from source data. Remove one of them.",
            options=("artifact", "source_images" if o.source_data is None else "source_data"),
        )
    check_at_least("seeds", o.seeds, 1)
    if o.checkpoint_every is not None:
        check_at_least("checkpoint_every", o.checkpoint_every, 1)
    artifact = o.load_artifact()
    shared = _make_jobs(o, artifact)
    chosen: dict[str, Any] = {
        "terms": o.terms or (),
        "seeds": range(o.seed, o.seed + o.seeds),
        "title": f"{o.model} on {o.data}",
    }
    suite = make_comparison(shared, methods, o.set, **chosen)
    loader = Loader(folder / ARTIFACTS, o.device, progress, o.data_dir)
    left_out: dict[str, str] = {}
    if o.method in ((ALL,), COMPARED):
        first = suite.entries[0].spec
        found = loader.load_data(first)
        left_out = find_unsuitable(
            loader.load_model(first, len(found.classes)),
            {entry.spec.method: entry.spec.get_config() for entry in suite.entries},
            artifact,
            predicts_pixels=bool(found.palette),
        )
        methods = tuple(name for name in methods if name not in left_out)
        suite = make_comparison(shared, methods, o.set, **chosen)
    line = o.to_command("eval", without=("resume", "force"))
    with writer:
        comparison = run_side_by_side(
            suite,
            folder,
            loader,
            resume=o.resume,
            force=o.force,
            one_by_one=o.one_by_one,
            options=RunOptions(checkpoint_every=o.checkpoint_every, command=line),
            progress=progress,
            metrics=writer or None,
        )
    return Evaluated(comparison, loader.load_data(suite.entries[0].spec), folder, left_out)


def _make_jobs(o: EvalOptions, artifact: Artifact | None) -> dict[str, Any]:
    """Return what all jobs have in common, as fields of a `JobSpec`."""
    from acclimate.bench.job import JobSpec, Preparing, is_folder

    normal = o.get_info(artifact).normalization
    size = o.get_size(artifact) if is_folder(o.data) else o.size
    names = None if artifact is None else artifact.classes
    given = select_given(o, JobSpec)
    for name in ("method", "terms", "seed"):  # of single jobs
        given.pop(name, None)
    return given | {
        "weights": None if o.weights is None else str(o.weights),
        "normalization": None if normal is None else normal.to_dict(),
        "severities": o.severity,
        "size": "x".join(map(str, size)) if isinstance(size, tuple) else size,
        "classes": str(o.classes) if o.classes is not None else names and tuple(names),
        "protocol": select_given(o, StreamOptions),
        "guard": o.get_guard(),
        "prepare": Preparing(
            source=o.source_data,
            images=o.source_images,
            seed=o.seed,
            artifact=None if o.artifact is None else str(o.artifact),
        ),
    }


def choose_methods(names: Sequence[str], reveal_labels: bool = False) -> tuple[str, ...]:
    """Return the methods of these names; `all` stands for every one.

    `tent+swr` is TENT with the term SWR. Oracles, which learn from labels, must be allowed.

    >>> choose_methods(["source", "tent"])
    ('source', 'tent')
    """
    from acclimate.methods import get_method, list_methods

    if list(names) == [ALL]:
        known = list_methods()
        return tuple(name for name in known if reveal_labels or not get_method(name).card.is_oracle)
    oracles = [name for name in names if get_method(name.partition("+")[0]).card.is_oracle]
    if oracles and not reveal_labels:
        raise BadInput(
            "oracle_method",
            f"{', '.join(oracles)} learns from the test labels, which makes it an upper bound and "
            "not a method to deploy. To run it anyway, pass --reveal-labels.",
            methods=tuple(oracles),
        )
    check_each_once("methods", names)
    return tuple(names)


def split_options(methods: Sequence[str], values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the hyper-parameters of each method.

    A name applies to all methods that have it; `method.name` to that method, and wins.

    >>> split_options(["source", "tent"], {"lr": 1e-4, "tent.beta1": 0.8})
    {'source': {}, 'tent': {'lr': 0.0001, 'beta1': 0.8}}
    """
    from acclimate.methods import get_method

    options_of = {
        name: [spec.name for spec in fields(get_method(name).config_class)] for name in methods
    }
    for key in values:
        method, dot, option = key.rpartition(".")
        if dot:
            check_name(method, methods, "method of the comparison", InvalidConfig)
        known = (
            options_of[method] if dot else sorted({n for own in options_of.values() for n in own})
        )
        if option not in known:
            check_options([key], known, method or "This set of methods")
    return {
        name: {key: value for key, value in values.items() if key in known}
        | {
            key.removeprefix(f"{name}."): value
            for key, value in values.items()
            if key.startswith(f"{name}.")
        }
        for name, known in options_of.items()
    }


def make_comparison(
    shared: Mapping[str, Any],
    methods: Sequence[str],
    values: Mapping[str, Any] | None = None,
    *,
    terms: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    title: str = "comparison",
) -> Suite:
    """Return the suite of several methods and seeds on one stream.

    Args:
        shared: Fields of `JobSpec` that all jobs have.
        methods: As `choose_methods` returns them.
        values: Hyper-parameters; see `split_options`.
        terms: Added to all gradient methods among them.
        seeds: Of the jobs.
        title: Of the suite.
    """
    from acclimate.bench.job import JobSpec
    from acclimate.bench.suite import Entry, Suite
    from acclimate.methods import get_method
    from acclimate.methods.gradient import GradientMethod

    plain = list(dict.fromkeys(name.partition("+")[0] for name in methods))
    options = split_options(plain, values or {})
    entries = []
    for name in methods:
        method, *own = name.split("+")
        added = terms if issubclass(get_method(method), GradientMethod) else ()
        for seed in seeds:
            spec = JobSpec(
                **shared,
                method=method,
                options=options[method],
                terms={term: {} for term in (*own, *added)},
                seed=seed,
            )
            entries.append(Entry(spec, spec.label))
    return Suite(title=title, entries=tuple(entries))
