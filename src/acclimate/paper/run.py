"""Run an experiment and write down what came out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acclimate import zoo
from acclimate.bench.outcome import Entry, Outcome
from acclimate.bench.schedule import OnEvent, run_suite
from acclimate.bench.selection import get_rule
from acclimate.bench.store import ARTIFACTS, Store
from acclimate.bench.suite import Suite
from acclimate.data.places import Notify, Progress
from acclimate.errors import BadInput
from acclimate.paper.claims import ENOUGH, RESAMPLES, Verdict
from acclimate.paper.experiment import Drawing, Experiment, FigureContext
from acclimate.paper.plan import PlanContext
from acclimate.paper.render import render_latex, render_markdown, render_page
from acclimate.paper.scales import Settings
from acclimate.paper.tables import PaperTable
from acclimate.storage import make_folder, versions, write_atomically
from acclimate.zoo.named import how_to_train
from acclimate.zoo.segmentation import is_dense_name

#: Gives a function that is called with what happens to the jobs of a suite, by their folders.
Show = Callable[[Mapping[str, Entry]], AbstractContextManager[OnEvent]]


@dataclass(frozen=True)
class Reproduction:
    """What came out of an experiment.

    Attributes:
        experiment: That was run.
        scale: At which scale.
        table: Published, ours, difference.
        verdicts: What became of the paper's claims.
        outcomes: Of the jobs that reached their end.
        failed: The jobs that did not.
        files: What was written, by name.
    """

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
    folder = Path(out)
    place = folder if store is None else Path(store)
    if experiment.check is not None:
        experiment.check()
    prepared = place / ARTIFACTS if artifacts is None else Path(artifacts)

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
        device = str(how.get("device", "auto"))
        context = PlanContext(place, run, device, watch, notify)
        plan = experiment.plan(scale, seeds, settings or Settings(), context)
        suite, record = plan.suite, plan.record
    outcomes = run(suite, place)
    done = {outcome.entry.spec.key for outcome in outcomes}
    failed = tuple(entry for entry in suite.entries if entry.spec.key not in done)
    if not outcomes:
        raise BadInput(
            "no_finished_job",
            f"None of the {len(suite.entries)} jobs of {experiment.id} finished. For the reasons, "
            f"run: acclimate bench status {place}",
        )
    notes = (*suite.notes.splitlines(), *describe_protocols(outcomes))
    notes = (*notes, f"Selection: {get_rule(suite.selection).sentence}.")
    if failed:
        names = "; ".join(dict.fromkeys(f"{own.label}, {own.group}" for own in failed))
        notes = (*notes, f"{len(failed)} of {len(suite.entries)} jobs failed: {names}.")
    table = experiment.tabulate(outcomes, notes)
    verdicts = experiment.judge(outcomes, suite.entries)
    drawing = Drawing({})
    if experiment.figure is not None:
        drawing = experiment.figure(FigureContext(table, outcomes, prepared, place))
        table = drawing.table or table
        table = dataclasses.replace(table, notes=(*drawing.notes, *table.notes))
        verdicts = (*verdicts, *drawing.verdicts)
    about = {
        "experiment": experiment.id,
        "scale": scale,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "versions": versions(),
        "selection": suite.selection,
        "settings": dataclasses.asdict(settings or Settings()),
        "bootstrap": {"resamples": RESAMPLES, "enough": ENOUGH},
        **record,
    }
    contents: dict[str, str | bytes] = {
        "table.md": render_markdown(table, verdicts, [f"Scale: {scale}."]),
        "table.tex": render_latex(table),
        "table.html": render_page(table, verdicts, [f"Scale: {scale}."], drawing.files),
        "result.json": _result(about, table, verdicts, outcomes),
        **drawing.files,
    }
    files = tuple(_write(folder / name, content) for name, content in contents.items())
    return Reproduction(experiment, scale, table, verdicts, tuple(outcomes), failed, files)


def describe_protocols(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Return a line on how each setup was measured; several if its rows differ in that."""
    lines: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        origin = outcome.provenance
        line = (
            f"{origin['protocol_line']}; predictions {origin['predicts']}; images "
            f"{origin['data_source']}"
        )
        lines.setdefault(outcome.entry.group, {})[line] = None
    return tuple(f"Protocol, {group}: {line}." for group, own in lines.items() for line in own)


def check_weights(suite: Suite) -> None:
    """Refuse to start if the weights of a model are nowhere.

    Raises:
        BadInput: With how to get them.
    """
    for entry in suite.entries:
        spec = entry.spec
        if (
            spec.weights is None
            and is_dense_name(spec.model_name)
            and spec.model != "builtin-scenes"
        ):
            raise BadInput(
                "no_weights",
                f"{entry.group} needs weights of {spec.model_name}, and none are published. Train "
                f"the model: {how_to_train(spec.model_name)}. Then pass the file: --weights "
                f"{spec.model_name}=FILE",
                name=spec.model_name,
            )
        if spec.weights is not None or spec.model_name not in zoo.list_models():
            continue
        path = zoo.weights_path(spec.model_name)
        if not path.is_file():
            raise BadInput(
                "not_found",
                f"{entry.group} needs the weights of {spec.model_name}, which were not found at "
                f"{path}. Run: acclimate zoo get {spec.model_name}, or pass a file: --weights "
                f"{spec.model_name}=FILE",
                path=path,
            )


def _result(
    about: dict[str, Any],
    table: PaperTable,
    verdicts: Sequence[Verdict],
    outcomes: Sequence[Outcome],
) -> str:
    content = {
        **about,
        "table": table.to_dict(),
        "verdicts": [verdict.to_dict() for verdict in verdicts],
        "jobs": [
            {
                "label": outcome.entry.label,
                "group": outcome.entry.group,
                "axes": dict(outcome.entry.axes),
                "key": outcome.entry.spec.key,
                "spec": outcome.entry.spec.to_dict(),
                "folder": outcome.folder,
                "summary": outcome.result.to_dict(),
                "provenance": dict(outcome.provenance),
            }
            for outcome in outcomes
        ],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _write(path: Path, content: str | bytes) -> Path:
    make_folder(path.parent)
    write_atomically(path, content.encode() if isinstance(content, str) else content)
    return path
