"""An experiment of the paper: its jobs at every scale, its table and claims, and how it is run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acclimate import zoo
from acclimate.bench.job import JobSpec
from acclimate.bench.schedule import OnEvent, run_suite
from acclimate.bench.selection import get_rule
from acclimate.bench.suite import ARTIFACTS, Entry, Outcome, Store, Suite
from acclimate.data.places import Notify, Progress
from acclimate.errors import BadInput, check_name
from acclimate.methods import get_method
from acclimate.paper.claims import (
    AVERAGE,
    ENOUGH,
    MEAN,
    RESAMPLES,
    Claim,
    Kind,
    Measured,
    Verdict,
    judge,
    read_grids,
)
from acclimate.paper.published import Published, load_published
from acclimate.paper.settings import Settings, Setup, find_setups
from acclimate.paper.tables import PaperTable, make_document, tabulate
from acclimate.report.pages import render_document
from acclimate.storage import make_folder, versions, write_atomically
from acclimate.zoo.named import how_to_train
from acclimate.zoo.segmentation import is_dense_name

#: Gives a function that is called with what happens to the jobs of a suite, by their folders.
Show = Callable[[Mapping[str, Entry]], AbstractContextManager[OnEvent]]

TOY = "A trial on a toy task: these numbers mean nothing."


@dataclass(frozen=True)
class Variant:
    """One method configuration of an experiment, at its place in the table.

    Attributes:
        row: Label of its row, as in `published.toml` if the paper has it.
        job: Fields of a `JobSpec` that differ from the setup's; `parts` are options of the
            artifact's parts, which are laid over the setup's, and `contrast_head` is its file.
        column: Its column.
        axes: What varies and what it is here, for plots.
        mark: What a reader must know, such as "oracle".
    """

    row: str
    job: Mapping[str, Any]
    column: str = "error"
    axes: Mapping[str, Any] = field(default_factory=dict)
    mark: str = ""


@dataclass(frozen=True)
class FigureContext:
    """What a figure is drawn from: `artifacts` and `store` are the folders of the run."""

    table: PaperTable
    outcomes: Sequence[Outcome]
    artifacts: Path
    store: Path = Path()

    def first_seed(self, setup: str | None = None) -> list[Outcome]:
        """Return the jobs with the lowest seed, of one setup or of all."""
        own = [o for o in self.outcomes if setup in (None, o.entry.group)]
        seed = min((outcome.entry.spec.seed for outcome in own), default=0)
        return [outcome for outcome in own if outcome.entry.spec.seed == seed]


@dataclass(frozen=True)
class Drawing:
    """What a figure consists of.

    `files` are contents by file name. `table` replaces the table of the jobs, if the figure has
    measured more; `verdicts` and `notes` are added to those of the experiment.
    """

    files: Mapping[str, str | bytes] = field(default_factory=dict)
    table: PaperTable | None = None
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanContext:
    """What a plan works with.

    `folder` is that of the jobs; `run` runs a suite in a folder, resuming it if it was interrupted;
    `watch` gives a function that is called with the stages of training.
    """

    folder: Path
    run: Callable[[Suite, Path], list[Outcome]]
    device: str = "auto"
    watch: Callable[[], AbstractContextManager[Progress | None]] = nullcontext
    notify: Notify | None = None


#: Makes the jobs of an experiment from scale, seeds if they are given, and settings; returns them
#: with a record of what was trained, tried and chosen, as JSON types.
Planner = Callable[
    [str, Sequence[int] | None, Settings, PlanContext], tuple[Suite, Mapping[str, Any]]
]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper that can be run again, as `experiments.toml` describes it.

    Attributes:
        settings: Settings of the paper that it runs in.
        variants: Returns the method configurations for a scale and a setup.
        figure: Draws it, if it is a figure.
        check: Raises what would make the figure fail, before anything is run.
        plan: Makes the jobs, where they depend on what is trained and tried before.
    """

    id: str
    shows: str
    settings: tuple[str, ...] = ()
    variants: Callable[[str, Setup], Sequence[Variant]] = lambda scale, setup: ()
    kind: Kind = "jobs"
    measured: Measured = "error"
    claims: tuple[Claim, ...] = ()
    whole: bool = False
    notes: tuple[str, ...] = ()
    figure: Callable[[FigureContext], Drawing] | None = None
    check: Callable[[], None] | None = None
    plan: Planner | None = None

    @property
    def published(self) -> Published:
        """What the paper has."""
        return load_published()[self.id]

    def default_seeds(self, scale: str) -> tuple[int, ...]:
        """Return the seeds to run by default: three on the small subset, else one."""
        return (0, 1, 2) if scale == "small" and not self.whole else (0,)

    def setups(self, scale: str, settings: Settings | None = None) -> tuple[Setup, ...]:
        """Return the models and data of a scale.

        Raises:
            BadInput: The experiment cannot be run in this way.
        """
        return find_setups(self.settings, scale, settings or Settings(), self.whole)

    def suite(
        self, scale: str, seeds: Sequence[int] | None = None, settings: Settings | None = None
    ) -> Suite:
        """Return the jobs of a scale; `seeds` are `default_seeds` if None.

        Raises:
            BadInput: The experiment cannot be run in this way; or its jobs depend on models that
                are trained first.
        """
        asked = settings or Settings()
        if self.plan is not None:
            raise BadInput(
                "models_not_trained",
                f"The jobs of {self.id} depend on models that are trained first. Use reproduce(), "
                "which does both.",
                name=self.id,
            )
        for name in ("trials", "selection"):
            if getattr(asked, name):
                raise BadInput(
                    "not_applicable",
                    f"The option --{name} applies only to experiments with several domains "
                    f"(table-6); {self.id} has none. Remove it.",
                    option=name,
                )
        entries = []
        for setup in self.setups(scale, asked):
            found = self.variants(scale, setup)
            for row in asked.rows:
                check_name(row, dict.fromkeys(variant.row for variant in found), "row")
            entries += [
                self._make_entry(setup, variant, seed)
                for variant in found
                if not asked.rows or variant.row in asked.rows
                for seed in (self.default_seeds(scale) if seeds is None else seeds)
            ]
        return Suite(
            title=f"{self.id}, {scale}: {self.published.title}",
            entries=tuple(entries),
            notes="\n".join(self.describe(scale, asked)),
            selection="paper",
        )

    def describe(self, scale: str, settings: Settings | None = None) -> tuple[str, ...]:
        """Return what a reader of a run at a scale must know."""
        rows = settings.rows if settings is not None else ()
        return (
            *([TOY] if scale == "smoke" else []),
            *(setup.describe() for setup in self.setups(scale, settings)),
            *([f"Only these rows were run: {', '.join(rows)}."] if rows else []),
            *self.notes,
        )

    def _make_entry(self, setup: Setup, variant: Variant, seed: int) -> Entry:
        spec = make_spec(setup, variant, seed)
        card = get_method(spec.method).card
        kinds = ["oracle"] * card.is_oracle + ["reconstruction"] * bool(card.reconstruction)
        column = MEAN if self.kind == "corruptions" else variant.column
        described = ", ".join(f"{name} {value}" for name, value in variant.axes.items())
        is_named = bool(described) and column not in ("error", MEAN)
        return Entry(
            spec,
            f"{variant.row}, {described}" if is_named else variant.row,
            setup.name,
            {
                **variant.axes,
                "setting": setup.paper,
                "row": variant.row,
                "column": column,
                "mark": variant.mark or ", ".join(kinds),
            },
        )

    def tabulate(self, outcomes: Sequence[Outcome], notes: Sequence[str] = ()) -> PaperTable:
        """Return published numbers, ours and their differences."""
        axes = [outcome.entry.axes for outcome in outcomes]
        marks = {str(own["row"]): str(own["mark"]) for own in axes if own.get("mark")}
        grids = read_grids(outcomes, self.kind, self.measured)
        return tabulate(self.published, grids, self.kind, marks, notes or self.notes, self.measured)

    def judge(
        self, outcomes: Sequence[Outcome], entries: Sequence[Entry] = ()
    ) -> tuple[Verdict, ...]:
        """Return what became of the paper's claims, setup by setup.

        A claim on a row that neither the paper has in a setting nor we were to run is not made
        there. `entries` are all jobs of the suite, so that claims on those that failed are not
        lost.
        """
        found = []
        for grid in read_grids(outcomes, self.kind, self.measured):
            own = [entry.axes for entry in entries if entry.group == grid.name]
            rows = {*grid.rows, *(str(axes["row"]) for axes in own)}
            rows.update(self.published.rows.get(grid.paper, ()))
            columns = {str(axes["column"]) for axes in own} | {column for _, column in grid.cells}
            if not set(self.published.columns) <= columns:
                columns.discard(AVERAGE)  # over fewer sets of domains than the paper's
            found += [
                judge(claim, grid, self.published.errors(grid.paper))
                for claim in self.claims
                if grid.paper.startswith(claim.where)
                and {row for row, _ in claim.cells} <= rows
                # Of several sets of domains, claims are made on those that were to be run.
                and (self.kind != "domains" or {name for _, name in claim.cells} <= columns)
            ]
        return tuple(found)


def make_spec(setup: Setup, variant: Variant, seed: int = 0) -> JobSpec:
    """Return the job of a method configuration in a setup."""
    job = {**setup.job, **variant.job}
    job["protocol"] = {**setup.job.get("protocol", {}), **variant.job.get("protocol", {})}
    prepare = dict(setup.job.get("prepare", {}))
    parts = overlay(prepare.get("parts", {}), job.pop("parts", {}))
    if parts:
        prepare["parts"] = parts
    if "contrast_head" in job:
        prepare["contrast_head"] = job.pop("contrast_head")
    return JobSpec.from_dict({**job, "prepare": prepare, "seed": seed})


def overlay(parts: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return options of parts with others laid over them."""
    return {
        name: {**parts.get(name, {}), **others.get(name, {})}
        for name in dict.fromkeys([*parts, *others])
    }


@dataclass(frozen=True)
class Reproduction:
    """What came out of an experiment; `failed` are the jobs that did not reach their end."""

    experiment: Experiment
    scale: str
    table: PaperTable
    verdicts: tuple[Verdict, ...]
    outcomes: tuple[Outcome, ...]
    failed: tuple[Entry, ...]
    files: tuple[Path, ...]


def reproduce(
    experiment: Experiment,
    scale: str,
    out: str | Path,
    *,
    seeds: Sequence[int] | None = None,
    settings: Settings | None = None,
    store: str | Path | None = None,
    artifacts: str | Path | None = None,
    on_event: OnEvent | None = None,
    show: Show | None = None,
    watch: Callable[[], AbstractContextManager[Progress | None]] = nullcontext,
    notify: Notify | None = None,
    command: str = "",
    **how: Any,
) -> Reproduction:
    """Run an experiment or resume an earlier run of it, and write its table and figures.

    Args:
        experiment: The experiment.
        scale: One of `acclimate.paper.SCALES`.
        out: Folder for `table.md`, `.tex` and `.html`, `result.json` and the figure.
        seeds: Of every job; None for the experiment's own.
        settings: What is to be changed of the scale.
        store: Folder of the jobs; `out` if None. Experiments that are given the same one share
            the jobs they have in common.
        artifacts: Folder of what is prepared; in `store` if None.
        on_event: Called with what happens to the jobs.
        show: Gives such a function for the jobs of one suite: an experiment may have several.
        watch: Gives a function that is called with the stages of training.
        notify: Called with what was done besides the jobs.
        command: What was typed, for the record.
        **how: Of `acclimate.bench.run_suite`: engine, n_workers, retries, device.

    Raises:
        BadInput: The experiment cannot be run yet, or no job reached its end.
    """
    place = Path(out if store is None else store)
    prepared = place / ARTIFACTS if artifacts is None else Path(artifacts)
    if experiment.check is not None:
        experiment.check()

    def run(suite: Suite, where: Path) -> list[Outcome]:
        jobs = Store(where, suite).jobs()
        with nullcontext(on_event) if show is None else show(jobs) as watch:
            return run_suite(
                suite, where, on_event=watch, artifacts=prepared, command=command or None, **how
            )

    record: Mapping[str, Any] = {}
    if experiment.plan is None:
        suite = experiment.suite(scale, seeds, settings)
        check_weights(suite)
    else:
        context = PlanContext(place, run, str(how.get("device", "auto")), watch, notify)
        suite, record = experiment.plan(scale, seeds, settings or Settings(), context)
    outcomes = run(suite, place)
    done = {outcome.entry.spec.key for outcome in outcomes}
    failed = tuple(entry for entry in suite.entries if entry.spec.key not in done)
    if not outcomes:
        raise BadInput(
            "no_finished_job",
            f"None of the {len(suite.entries)} jobs of {experiment.id} finished. For the reasons, "
            f"run: acclimate bench status {place}",
        )
    notes = [*suite.notes.splitlines(), *_describe_protocols(outcomes)]
    notes.append(f"Selection: {get_rule(suite.selection).sentence}.")
    if failed:
        names = "; ".join(dict.fromkeys(f"{own.label}, {own.group}" for own in failed))
        notes.append(f"{len(failed)} of {len(suite.entries)} jobs failed: {names}.")
    table, drawing = experiment.tabulate(outcomes, notes), Drawing()
    if experiment.figure is not None:
        drawing = experiment.figure(FigureContext(table, outcomes, prepared, place))
        table = drawing.table or table
        table = dataclasses.replace(table, notes=(*drawing.notes, *table.notes))
    verdicts = (*experiment.judge(outcomes, suite.entries), *drawing.verdicts)
    result = {
        "experiment": experiment.id,
        "scale": scale,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "versions": versions(),
        "selection": suite.selection,
        "settings": dataclasses.asdict(settings or Settings()),
        "bootstrap": {"resamples": RESAMPLES, "enough": ENOUGH},
        **record,
        "table": table.to_dict(),
        "verdicts": [verdict.to_dict() for verdict in verdicts],
        "jobs": [_describe_job(outcome) for outcome in outcomes],
    }
    document = make_document(table, verdicts, [f"Scale: {scale}."])
    contents: dict[str, str | bytes] = {
        "table.md": document.to_markdown(),
        "table.tex": document.to_latex(),
        "table.html": render_document(document, "acclimate reproduce", drawing.files),
        "result.json": json.dumps(result, indent=1, ensure_ascii=False) + "\n",
        **drawing.files,
    }
    folder = make_folder(Path(out))
    for name, text in contents.items():
        write_atomically(folder / name, text.encode() if isinstance(text, str) else text)
    files = tuple(folder / name for name in contents)
    return Reproduction(experiment, scale, table, verdicts, tuple(outcomes), failed, files)


def check_weights(suite: Suite) -> None:
    """Refuse to start if the weights of a model are nowhere.

    Raises:
        BadInput: With how to get them.
    """
    for entry in suite.entries:
        spec, name = entry.spec, entry.spec.model_name
        if spec.weights is not None:
            continue
        if is_dense_name(name) and spec.model != "builtin-scenes":
            raise BadInput(
                "no_weights",
                f"{entry.group} needs weights of {name}, and none are published. Train the model: "
                f"{how_to_train(name)}. Then pass the file: --weights {name}=FILE",
                name=name,
            )
        path = zoo.weights_path(name) if name in zoo.list_models() else None
        if path is not None and not path.is_file():
            raise BadInput(
                "not_found",
                f"{entry.group} needs the weights of {name}, which were not found at {path}. Run: "
                f"acclimate zoo get {name}, or pass a file: --weights {name}=FILE",
                path=path,
            )


def _describe_protocols(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line on how each setup was measured; several if its rows differ in that."""
    lines: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        line = "{protocol_line}; predictions {predicts}; images {data_source}"
        own = lines.setdefault(outcome.entry.group, {})
        own[line.format_map(outcome.provenance)] = None
    return [f"Protocol, {group}: {line}." for group, own in lines.items() for line in own]


def _describe_job(outcome: Outcome) -> dict[str, Any]:
    entry = outcome.entry
    return {
        "label": entry.label,
        "group": entry.group,
        "axes": dict(entry.axes),
        "key": entry.spec.key,
        "spec": entry.spec.to_dict(),
        "folder": outcome.folder,
        "summary": outcome.result.to_dict(),
        "provenance": dict(outcome.provenance),
    }
