"""What `acclimate reproduce` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acclimate.cli.terminal import get_console, printable

if TYPE_CHECKING:
    from acclimate.commands.suites import Reproduced


def show_one(one: Reproduced) -> None:
    """Print published numbers, ours and the difference, setup by setup, and the claims."""
    from acclimate.paper import claims_table

    console, table, found = get_console(), one.table, one.found
    at = "" if found is None else f", {found.scale}"
    console.print(f"{table.id}{at}: {table.title}", style="bold")
    console.print(f"{table.place}; {table.unit}", style="dim", soft_wrap=True)
    for setup in table.setups:
        console.print(f"\n{setup}", style="bold")
        table.to_table(setup).show(console)
    if not table.rows:
        console.print("The text has no numbers of it.")
    for text in table.notes:
        console.print(f"note: {text}", style="dim", soft_wrap=not console.is_terminal)
    console.print()
    if found is None:
        return
    if found.verdicts:
        console.print("What the paper draws from it", style="bold")
        claims_table(found.verdicts).show(console)
        console.print()
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
