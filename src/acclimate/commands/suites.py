"""Run suites of jobs and report on them, show the demo, and reproduce the paper."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.commands.base import (
    FILE_WIDTH,
    RUN,
    Device,
    Notify,
    command,
    parse_pairs,
    parse_words,
    select_given,
)
from acclimate.demo.settings import DemoChoices
from acclimate.errors import BadInput, check_at_least, check_name, check_output
from acclimate.options import Values, changed, hp, options, split_names
from acclimate.progress import Progress

if TYPE_CHECKING:
    from acclimate.bench import Outcome, Store
    from acclimate.demo import DemoResult
    from acclimate.paper import Experiment, PaperTable, Reproduction
    from acclimate.report import Summary
    from acclimate.report.table import Document

#: Gives a function that is called with what happens to the jobs, which are given by their folders.
Events = Callable[[Mapping[str, Any]], AbstractContextManager[Any]]

CLUSTER = "Ray"
FORMATS = ("terminal", "md", "csv", "latex", "html")


@options
class EngineOptions(Device):
    """Where jobs are run."""

    engine: str = hp(
        "local",
        panel=RUN,
        help="Where jobs run: local (processes on this machine) or ray (a Ray cluster).",
    )
    workers: int | None = hp(
        None,
        panel=RUN,
        help="Number of processes, which share the cores; 0: run in the process of the command. "
        "Default: one for two cores, or as many as the cluster has room for.",
    )
    address: str | None = hp(
        None,
        metavar="HOST:PORT",
        panel=CLUSTER,
        help="Address of the cluster, or auto for that of this machine; default: RAY_ADDRESS if "
        "it is set, otherwise Ray is started on this machine.",
    )
    cpus: int | None = hp(
        None,
        panel=CLUSTER,
        help="Cores and threads of each job; default: 1, or an equal share of this machine.",
    )
    gpus: float | None = hp(
        None, panel=CLUSTER, help="GPUs of each job, such as 1 or 0.5; default: none."
    )
    storage: str | None = hp(
        None,
        metavar="URL",
        panel=CLUSTER,
        help="Where to copy run folders if not all nodes see the folder of the suite, such as "
        "s3://bucket/suite.",
    )

    def get_engine(self) -> dict[str, Any]:
        """Return the arguments of `acclimate.bench.run_suite` for these options."""
        names = ("engine", "device", "address", "storage")
        given = {name: getattr(self, name) for name in names}
        given |= {"n_workers": self.workers, "n_cpus": self.cpus, "n_gpus": self.gpus}
        return {name: value for name, value in given.items() if value is not None}


# bench --------------------------------------------------------------------------------------------


@options
class BenchRunOptions(EngineOptions):
    suite: Path = hp(argument=True, metavar="SUITE.toml", help="The suite, a TOML file.")
    out: Path | None = hp(
        None, metavar="DIR", help="Folder of the suite; default: `bench-` and its name."
    )
    retries: int = hp(1, help="How often a job is tried again if its process is lost.")
    artifacts: Path | None = hp(
        None, metavar="DIR", help="Folder of prepared artifacts, to share; default: in --out."
    )
    checkpoint_every: int | None = hp(
        None, help="Batches between checkpoints; default: one about every 20 seconds."
    )


@command(BenchRunOptions)
def bench_run(o: BenchRunOptions, *, events: Events | None = None) -> Store:
    """Run the jobs of a suite that are not done yet.

    Run the same command again to resume after an interruption: jobs that are done are skipped,
    others are resumed from their last checkpoint, with the same records.

    A suite has what all jobs share, and rows of what differs. Lists stand for several jobs:

        title = "TENT and ours"

        [job]
        model = "resnet20-cifar10"
        data = "cifar10c"
        seed = [0, 1, 2]

        [[rows]]
        method = "source"

        [[rows]]
        method = ["tent", "swr_nsp"]
        options = { lr = [1e-4, 1e-3] }

    Example: `acclimate bench run suite.toml --out results/suite --workers 2`
    """
    from acclimate.bench.schedule import run_suite
    from acclimate.bench.suite import Store, Suite

    folder = o.out if o.out is not None else Path(f"bench-{o.suite.stem}")
    suite = Suite.load(o.suite)
    jobs = Store(folder, suite).jobs()
    with nullcontext() if events is None else events(jobs) as on_event:
        run_suite(
            suite,
            folder,
            retries=o.retries,
            on_event=on_event,
            artifacts=o.artifacts,
            checkpoint_every=o.checkpoint_every,
            command=o.to_command("bench", "run"),
            **o.get_engine(),
        )
    return Store(folder, suite)


@options
class SuiteFolder(Values):
    """The folder of a suite."""

    folder: Path = hp(argument=True, metavar="DIR", help="The folder of a suite.")


@options
class BenchStatusOptions(SuiteFolder):
    suite: str | None = hp(
        None,
        metavar="TITLE",
        help="Title of one of several suites in the folder; default: the last.",
    )


@command(BenchStatusOptions)
def bench_status(o: BenchStatusOptions) -> Store:
    """Show how far the jobs of a suite are, also while they run.

    Example: `acclimate bench status results/suite`
    """
    from acclimate.bench.suite import Store

    return Store(o.folder, o.suite)


@options
class BenchReportOptions(SuiteFolder):
    format: str = hp("terminal", help="Format: terminal, md, csv, latex or html.")
    out: Path | None = hp(None, help="File to write; default for html: DIR/report.html.")


@dataclass(frozen=True)
class Reported:
    """A report on a suite.

    Attributes:
        summary: What came out.
        format: The format that was asked for.
        text: The report in it.
        path: Where it was written; None if it was not.
    """

    summary: Summary
    format: str
    text: str
    path: Path | None


@command(BenchReportOptions)
def bench_report(o: BenchReportOptions) -> Reported:
    """Report the results of a suite: errors, cost, a ranking with intervals, and the protocol.

    The report covers the jobs that are done, and can be made at any time. Rows that lack seeds, or
    were measured under another protocol, are marked, and not compared with the others.

    **--format html** writes one page with charts that needs nothing else; **csv** has one line for
    each job and domain, with all digits.

    Example: `acclimate bench report results/suite --format html --out suite.html`
    """
    check_name(o.format, FORMATS, "format")
    from acclimate import report
    from acclimate.bench.suite import Store
    from acclimate.report.table import Document
    from acclimate.storage import write_atomically

    path = o.folder / "report.html" if o.format == "html" and o.out is None else o.out
    store = Store(o.folder)
    check_output(path)
    summary = summarize_store(store, _read_done(store))
    if o.format == "html":
        beside = Path(path or o.folder).resolve().parent
        text = report.render_suite(summary, os.path.relpath(o.folder.resolve(), beside))
    elif o.format == "csv":
        text = report.render_csv(summary)
    else:
        makers: dict[str, Callable[[Any], str]]
        makers = {"md": Document.to_markdown, "latex": Document.to_latex, "terminal": _print}
        text = makers[o.format](report.make_document(summary))
    if path is not None:
        write_atomically(path, text.encode())
    return Reported(summary, o.format, text, path)


def _print(document: Document) -> str:
    from rich.console import Console

    file = io.StringIO()
    document.show(Console(file=file, width=FILE_WIDTH, highlight=False, emoji=False))
    return file.getvalue()


def summarize_store(store: Store, outcomes: Any) -> Summary:
    """Return the summary of a suite, with what its file says about it."""
    from acclimate.report import summarize

    suite = store.suite
    about: dict[str, Any] = {"title": suite.title, "selection": suite.selection}
    return summarize(outcomes, **about, notes=suite.notes, entries=suite.entries)


def _read_done(store: Store) -> list[Outcome]:
    outcomes = store.outcomes()
    if not outcomes:
        raise BadInput(
            "no_finished_job",
            f"{store.root} contains no finished job. See: acclimate bench status {store.root}",
        )
    return outcomes


@options
class BenchCompareOptions(Values):
    first: Path = hp(argument=True, metavar="DIR_A", help="The folder of a suite.")
    second: Path = hp(argument=True, metavar="DIR_B", help="The folder of another suite.")


@dataclass(frozen=True)
class Compared:
    """What two suites have in common.

    Attributes:
        comparison: See `acclimate.report.compare_suites`.
        names: The folders.
    """

    comparison: Any
    names: tuple[str, str]


@command(BenchCompareOptions)
def bench_compare(o: BenchCompareOptions) -> Compared:
    """Compare the results of two suites, or of one suite before and after a change.

    For each label that both have: the errors, their difference with a 95 % interval, and whether
    they were measured under the same protocol; then the jobs that only one of them has.

    Example: `acclimate bench compare results/before results/after`
    """
    from acclimate.bench.suite import Store
    from acclimate.report import compare_suites

    found = compare_suites(_read_done(Store(o.first)), _read_done(Store(o.second)))
    return Compared(found, (str(o.first), str(o.second)))


# demo ---------------------------------------------------------------------------------------------


@options
class DemoOptions(DemoChoices):
    all: bool = hp(False, help="All methods that suit a model of the task; takes long.")
    out: Path = hp(Path("report.html"), help="The page to write.")
    json: Path | None = hp(None, help="JSON file to write all numbers to.")


@dataclass(frozen=True)
class Demonstrated:
    """What `demo` measured and wrote.

    Attributes:
        result: The numbers.
        out: The page.
        json: The file of the numbers, if it was asked for.
        left_out: Of all methods, those that suit no model of the task, with the reason.
    """

    result: DemoResult
    out: Path
    json: Path | None
    left_out: Mapping[str, str]


@command(DemoOptions)
def demo(
    o: DemoOptions, *, progress: Progress | None = None, notify: Notify = lambda text: None
) -> Demonstrated:
    """Adapt a model to several shifts and write a report; needs no data.

    A small model for computer-made images comes with the package. Its artifact is prepared if a
    method needs one, then every method adapts to every shift. Takes minutes on two cores.

    With **--data cifar10** the same is done with photographs, and a small model for them.

    With **--all**, a method that needs a model trained in a special way adapts such a model, and
    one that takes an image at a time is measured on fewer images. Their rows are marked, and have
    a source row of their own.

    With **--order sorted** the classes of a shift come one after the other. This is hard for
    methods that expect all classes in each batch.

    Example: `acclimate demo --seeds 3 --json demo.json`
    """
    for path in (o.out, o.json):
        check_output(path)
    from acclimate import demo
    from acclimate.commands.measure import choose_methods
    from acclimate.report import render_demo
    from acclimate.storage import write_atomically

    names = ("all",) if o.all else o.methods
    chosen = choose_methods(names, o.reveal_labels)
    left_out: dict[str, str] = {}
    if names == ("all",):
        _, left_out = demo.assign_models(demo.get_task(o.data), chosen)
        chosen = tuple(name for name in chosen if name not in left_out)
    settings = demo.DemoSettings(**select_given(o, demo.DemoSettings) | {"methods": chosen})
    demo.fetch_data(settings.data, progress, notify)
    result = demo.run_demo(settings, progress)
    write_atomically(o.out, render_demo(result.page()).encode())
    if o.json is not None:
        write_atomically(o.json, result.to_json().encode())
    return Demonstrated(result, o.out, o.json, left_out)


# reproduce ----------------------------------------------------------------------------------------


def _pairs(metavar: str, help: str) -> Any:  # noqa: A002
    return hp(None, metavar=metavar, repeat=True, parse=parse_pairs, help=help)


def _parse_files(value: Any, option: str) -> dict[str, str]:
    found = {}
    for name, text in parse_pairs(value, option).items():
        path = Path(text).expanduser()
        if not path.exists():
            raise BadInput(
                "not_found",
                f"Expected a file or folder for --{option}, found nothing at {path}.",
                path=path,
            )
        found[name] = str(path)
    return found


def _files(metavar: str, help: str) -> Any:  # noqa: A002
    return hp(None, metavar=metavar, repeat=True, parse=_parse_files, help=help)


@options
class ReproduceOptions(EngineOptions):
    name: str | None = hp(
        None, argument=True, metavar="ID", help="A table or figure, such as table-1b; see --list."
    )
    list: bool = hp(False, help="List all tables and figures, and run none.")
    published: bool = hp(False, help="Show the published numbers, and run nothing.")
    scale: str = hp(
        "smoke",
        help="smoke: seconds, on a toy task. small: real images on two cores, with smaller models "
        "and a stated subset. full: the paper's own setting.",
    )
    out: Path | None = hp(
        None,
        metavar="DIR",
        help="Folder of table, figure and records; default: `reproduce-ID-SCALE`.",
    )
    workers: int | None = changed(
        EngineOptions,
        "workers",
        None,
        help="Number of processes, which share the cores; 0: run in the process of the command. "
        "Default: 0 for smoke; otherwise one for two cores, or as many as the cluster has "
        "room for.",
    )
    seeds: int | None = hp(
        None,
        help="Number of seeds; default: 3 on the subset of small and for table-6 in full, "
        "otherwise 1.",
    )
    weights: Mapping[str, str] | None = _files("MODEL=FILE", "Weights of a model; may be repeated.")
    images: int | None = hp(
        None, help="Number of images of each corruption, instead of that of the scale."
    )
    corruptions: tuple[str, ...] | None = hp(
        None,
        parse=split_names,
        help="Corruptions, separated by commas, instead of those of the scale.",
    )
    only: str = hp("", metavar="TEXT", help="Run only the settings with this text in their name.")
    row: tuple[str, ...] = hp(
        (),
        metavar="LABEL",
        repeat=True,
        parse=parse_words,
        help="Run this row of the table only; may be repeated.",
    )
    store: Path | None = hp(
        None,
        metavar="DIR",
        help="Folder of the jobs; default: --out. Experiments with the same folder share the jobs "
        "that they have in common.",
    )
    model: Mapping[str, str] | None = _pairs(
        "SETTING=MODEL", "Another model for a setting; may be repeated."
    )
    data: Mapping[str, str] | None = _files(
        "DATA=DIR", "A folder for data, such as imagenetc=DIR; may be repeated."
    )
    source: Mapping[str, str] | None = _files(
        "DATA=DIR", "Labelled source images for data, such as imagenetc=DIR; may be repeated."
    )
    head: Mapping[str, str] | None = _files(
        "MODEL=FILE", "The projection head of a model, for TTT++; may be repeated."
    )
    trials: int | None = hp(
        None,
        help="Number of draws of the training hyper-parameters (table-6 only); default: 5 for "
        "full, otherwise 1.",
    )
    selection: str = hp(
        "",
        metavar="RULE",
        help="How hyper-parameters of table-6 are chosen: leave-one-domain-out (default), "
        "training-domain or oracle.",
    )


@dataclass(frozen=True)
class Reproduced:
    """One experiment of `reproduce`.

    Attributes:
        experiment: Which one.
        table: Published numbers, and ours where it was run.
        found: What came out; None if it was not run.
        folder: Where it was written.
    """

    experiment: Experiment
    table: PaperTable
    found: Reproduction | None = None
    folder: Path | None = None


@command(ReproduceOptions)
def reproduce(
    o: ReproduceOptions,
    *,
    events: Events | None = None,
    watch: Callable[[], AbstractContextManager[Progress | None]] = nullcontext,
    notify: Notify | None = None,
    finished: Callable[[Reproduced], None] = lambda one: None,
) -> list[Reproduced]:
    """Run a table or figure of the paper, and print our numbers beside the published ones.

    Every row is one or more jobs with a record of every batch. Run the same command again to resume
    after an interruption: jobs that are done are not run again. The result has the published
    numbers, ours and the difference, and states for each claim of the paper whether it holds in
    this run, with its confidence. The folder has table.md, table.tex, table.html, result.json with
    the provenance of every job, and the figure.

    The supplement's tables go by two names: table-s1 is its table 7, fig-s1 its figure 7.

    Example: `acclimate reproduce table-1b --scale small --weights
    resnet20-cifar10=cifar10-resnet20.safetensors --out results/table-1b`
    """
    from acclimate import paper

    if o.list or o.name is None:
        return []
    experiments = paper.find_experiments(o.name)
    done = []
    if o.published:
        done = [Reproduced(each, each.tabulate(())) for each in experiments]
        for one in done:
            finished(one)
        return done
    if o.seeds is not None:
        check_at_least("seeds", o.seeds, 1)
    renamed = {"models": o.model, "sources": o.source, "heads": o.head, "rows": o.row}
    given = {name: value for name, value in renamed.items() if value is not None}
    settings = paper.Settings(**select_given(o, paper.Settings) | given)
    root = o.out if o.out is not None else Path(f"reproduce-{o.name}-{o.scale}")
    engine = o.get_engine()
    if o.workers is None and o.scale == "smoke" and o.engine == "local":
        engine["n_workers"] = 0
    for experiment in experiments:
        folder = root if len(experiments) == 1 else root / experiment.id
        found = paper.reproduce(
            experiment,
            o.scale,
            folder,
            seeds=None if o.seeds is None else range(o.seeds),
            settings=settings,
            store=o.store if o.store is not None else root,
            show=events,
            watch=watch,
            notify=notify,
            command=o.to_command("reproduce"),
            **engine,
        )
        done.append(Reproduced(experiment, found.table, found, folder))
        finished(done[-1])
    return done
