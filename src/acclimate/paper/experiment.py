"""An experiment of the paper: its jobs at every scale, its table, and what is drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.bench.job import JobSpec
from acclimate.bench.outcome import Entry, Outcome
from acclimate.bench.suite import Suite
from acclimate.errors import BadInput, did_you_mean
from acclimate.methods import get_method
from acclimate.paper.cells import AVERAGE, MEAN, Grid, Kind, Measured, read_grids
from acclimate.paper.claims import Claim, Verdict, judge
from acclimate.paper.plan import Planner
from acclimate.paper.published import Published, load_published
from acclimate.paper.scales import Settings, Setup, check_scale, describe_setup, find_setups
from acclimate.paper.tables import PaperTable, make_table, published_cells

_OF_ARTIFACT = ("parts", "contrast_head")


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
    """What a figure is drawn from.

    Attributes:
        table: Of the run.
        outcomes: Of its jobs.
        artifacts: Folder of what was prepared for them.
        store: Folder of the suite that they are in.
    """

    table: PaperTable
    outcomes: Sequence[Outcome]
    artifacts: Path
    store: Path = Path()


@dataclass(frozen=True)
class Drawing:
    """What a figure consists of.

    Attributes:
        files: Contents by file name; of pictures in pixels, their bytes.
        table: Instead of the table of the jobs, if the figure has measured more.
        verdicts: Besides those of the experiment's claims.
        notes: What a reader must know.
    """

    files: Mapping[str, str | bytes]
    table: PaperTable | None = None
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper that can be run again.

    Attributes:
        id: On the command line.
        shows: What it is about, in a few words.
        settings: Settings of the paper that it runs in.
        variants: Returns the method configurations for a scale and a setup.
        kind: What the columns are.
        measured: What the numbers are.
        claims: What the paper draws from it.
        whole: Whether the small scale runs all corruptions and images, too.
        notes: What a reader must know of our run.
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
        check_scale(scale)
        return find_setups(self.settings, scale, settings or Settings(), self.whole)

    def suite(
        self, scale: str, seeds: Sequence[int] | None = None, settings: Settings | None = None
    ) -> Suite:
        """Return the jobs of a scale.

        Args:
            scale: One of `SCALES`.
            seeds: Of every job; None for `default_seeds`.
            settings: What is to be changed of the scale.

        Raises:
            BadInput: The experiment cannot be run yet, or not in this way; or its jobs depend on
                models that are trained first.
        """
        if self.plan is not None:
            raise BadInput(
                "models_not_trained",
                f"The jobs of {self.id} depend on models that are trained first. Use reproduce(), "
                "which does both.",
                name=self.id,
            )
        for name in ("trials", "selection"):
            if settings is not None and getattr(settings, name):
                raise BadInput(
                    "not_applicable",
                    f"The option --{name} applies only to experiments with several domains "
                    f"(table-6); {self.id} has none. Remove it.",
                    option=name,
                )
        setups = self.setups(scale, settings)
        chosen = self.default_seeds(scale) if seeds is None else tuple(seeds)
        entries = [
            _entry(self, setup, variant, seed)
            for setup in setups
            for variant in self._pick(scale, setup, settings)
            for seed in chosen
        ]
        return Suite(
            title=f"{self.id}, {scale}: {self.published.title}",
            entries=tuple(entries),
            notes="\n".join(self.describe(scale, settings)),
            selection="paper",
        )

    def describe(self, scale: str, settings: Settings | None = None) -> tuple[str, ...]:
        """Return what a reader of a run at a scale must know."""
        setups = self.setups(scale, settings)
        scaled = () if scale != "smoke" else ("A trial on a toy task: these numbers mean nothing.",)
        rows = settings.rows if settings is not None else ()
        asked = (f"Only these rows were run: {', '.join(rows)}.",) if rows else ()
        return (*scaled, *(describe_setup(setup) for setup in setups), *asked, *self.notes)

    def _pick(self, scale: str, setup: Setup, settings: Settings | None) -> Sequence[Variant]:
        """Return the method configurations, or those of the rows that were asked for."""
        found = self.variants(scale, setup)
        rows = settings.rows if settings is not None else ()
        known = list(dict.fromkeys(variant.row for variant in found))
        for row in rows:
            if row not in known:
                raise BadInput(
                    "unknown_name",
                    f'The experiment {self.id} has no row "{row}". {did_you_mean(row, known)}',
                    kind="row",
                    name=row,
                    known=tuple(known),
                )
        return [variant for variant in found if not rows or variant.row in rows]

    def tabulate(self, outcomes: Sequence[Outcome], notes: Sequence[str] = ()) -> PaperTable:
        """Return published numbers, ours and their differences."""
        marks = {
            str(outcome.entry.axes["row"]): str(outcome.entry.axes["mark"])
            for outcome in outcomes
            if outcome.entry.axes.get("mark")
        }
        return make_table(
            self.published,
            read_grids(outcomes, self.kind, self.measured),
            self.kind,
            marks,
            notes or self.notes,
            self.measured,
        )

    def judge(
        self, outcomes: Sequence[Outcome], entries: Sequence[Entry] = ()
    ) -> tuple[Verdict, ...]:
        """Return what became of the paper's claims, setup by setup.

        A claim on a row that neither the paper has in a setting nor we were to run is not made
        there.

        Args:
            outcomes: Of the jobs that reached their end.
            entries: All jobs of the suite, so that claims on those that failed are not lost.
        """
        found = []
        for grid in read_grids(outcomes, self.kind, self.measured):
            asked = {str(entry.axes["row"]) for entry in entries if entry.group == grid.name}
            known = {*grid.rows, *asked, *self.published.rows.get(grid.paper, ())}
            numbers = published_cells(self.published, grid.paper)
            for claim in self._claims_of(grid, entries):
                if grid.paper.startswith(claim.where) and {row for row, _ in claim.cells} <= known:
                    found.append(judge(claim, grid, numbers))
        return tuple(found)

    def _claims_of(self, grid: Grid, entries: Sequence[Entry]) -> list[Claim]:
        """Return the claims; of several sets of domains, those on sets that were to be run."""
        if self.kind != "domains":
            return list(self.claims)
        columns = {str(entry.axes["column"]) for entry in entries if entry.group == grid.name}
        columns |= {column for _, column in grid.cells}
        if not set(self.published.columns) <= columns:
            columns.discard(AVERAGE)  # over fewer sets than the paper's
        return [own for own in self.claims if {column for _, column in own.cells} <= columns]


def make_spec(setup: Setup, variant: Variant, seed: int = 0) -> JobSpec:
    """Return the job of a method configuration in a setup."""
    own = {key: value for key, value in variant.job.items() if key not in _OF_ARTIFACT}
    job = {**setup.job, **own}
    job["protocol"] = {**setup.job.get("protocol", {}), **variant.job.get("protocol", {})}
    prepare = dict(setup.job.get("prepare", {}))
    parts = {name: dict(options) for name, options in prepare.get("parts", {}).items()}
    for name, options in variant.job.get("parts", {}).items():
        parts[name] = {**parts.get(name, {}), **options}
    if parts:
        prepare["parts"] = parts
    if "contrast_head" in variant.job:
        prepare["contrast_head"] = variant.job["contrast_head"]
    return JobSpec.from_dict({**job, "prepare": prepare, "seed": seed})


def _entry(experiment: Experiment, setup: Setup, variant: Variant, seed: int) -> Entry:
    spec = make_spec(setup, variant, seed)
    column = MEAN if experiment.kind == "corruptions" else variant.column
    described = ", ".join(f"{name} {value}" for name, value in variant.axes.items())
    return Entry(
        spec=spec,
        label=f"{variant.row}, {described}"
        if column not in ("error", MEAN) and described
        else variant.row,
        group=setup.name,
        axes={
            **variant.axes,
            "setting": setup.paper,
            "row": variant.row,
            "column": column,
            "mark": variant.mark or _mark(spec.method),
        },
    )


def _mark(method: str) -> str:
    kind = get_method(method)
    marks = (
        "oracle" if kind.card.is_oracle else "",
        "reconstruction" if kind.card.reconstruction else "",
    )
    return ", ".join(mark for mark in marks if mark)
