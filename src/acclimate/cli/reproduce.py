"""What `acclimate reproduce` prints."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from acclimate.cli.terminal import get_console, printable

if TYPE_CHECKING:
    from acclimate.commands.suites import Reproduced


def show_one(one: Reproduced) -> None:
    """Print published numbers, ours and the difference, setup by setup, and the claims."""
    from acclimate.paper.tables import make_document

    console, found = get_console(), one.found
    if found is None:
        facts = [] if one.table.rows else ["The text has no numbers of it."]
        make_document(one.table, (), facts).show(console)
        return
    title = f"{one.table.id}, {found.scale}: {one.table.title}"
    replace(make_document(one.table, found.verdicts), title=title).show(console)
    names = ", ".join(path.name for path in found.files)
    console.print(f"{one.folder}: {names}", style="dim", soft_wrap=True)
    for entry in found.failed:
        text = f"failed: {entry.label}, {entry.group}, seed {entry.spec.seed}"
        get_console(stderr=True).print(printable(text), style="bold red", soft_wrap=True)


def show_list(done: list[Reproduced]) -> bool:
    """Print all experiments if none was run; return whether all jobs have finished."""
    if done:
        return not any(one.found is not None and one.found.failed for one in done)
    from acclimate.paper import EXPERIMENTS, SCALES, WHOLES, list_aliases
    from acclimate.report.table import Column, Table, plain

    rows = [
        tuple(map(plain, (name, ", ".join(list_aliases(name)), experiment.shows)))
        for name, experiment in EXPERIMENTS.items()
    ]
    columns = (Column("id", "label"), Column("also", "label"), Column("what", "words"))
    wholes = "; ".join(f"{name} = {', '.join(parts)}" for name, parts in WHOLES.items())
    notes = (f"several at once: {wholes}", f"each at the scales {', '.join(SCALES)}")
    Table(columns, tuple(rows), notes=notes).show(get_console())
    return True
